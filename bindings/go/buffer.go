package ds41

import (
	"runtime"
	"unsafe"

	"github.com/libds41/libds41/bindings/go/internal/raw"
)

// Buffer is memory on the model's device.
type Buffer struct {
	object
	native *raw.Buffer
	data   []byte // On the device: only its address and length may be used.
}

// NewBuffer allocates n bytes; the contents are undefined.
func (m *Model) NewBuffer(n int) (*Buffer, error) {
	if err := m.base().lock("Model.NewBuffer", "the receiver"); err != nil {
		return nil, err
	}
	defer m.unlock()
	if n < 1 {
		return nil, errorf(StatusInvalidArgument, "Model.NewBuffer: n is %d, need 1 or more", n)
	}
	var native *raw.Buffer
	if err := errorOf(raw.Buffer_create(&native, m.native, uint64(n))); err != nil {
		return nil, err
	}
	core := m.core.retain()
	b := &Buffer{native: native, data: unsafe.Slice((*byte)(raw.Buffer_get_data(native)), n)}
	b.init("buffer", func() {
		raw.Buffer_destroy(native)
		core.release()
	})
	runtime.SetFinalizer(b, (*Buffer).Close)
	return b, nil
}

func (b *Buffer) base() *object {
	if b == nil {
		return nil
	}
	return &b.object
}

// Close frees the memory once no call uses it. Work that was enqueued has to be over: Context.Synchronize. It may be
// called again.
func (b *Buffer) Close() error {
	b.base().close()
	return nil
}

// Len is the size in bytes, also after Close.
func (b *Buffer) Len() int {
	if b == nil {
		return 0
	}
	return len(b.data)
}

// Data is the address on the device, for what the owner of a stream enqueues there (Step.CaptureExternal); nil after
// Close. It is valid until then, and keeps nothing alive.
func (b *Buffer) Data() unsafe.Pointer {
	if err := b.base().use("Buffer.Data", "the receiver"); err != nil {
		return nil
	}
	defer b.release()
	return raw.Buffer_get_data(b.native)
}

// Upload copies bytes to an offset.
func (b *Buffer) Upload(offset uint64, source []byte) error {
	if err := b.base().lock("Buffer.Upload", "the receiver"); err != nil {
		return err
	}
	defer b.unlock()
	if len(source) == 0 && offset <= uint64(len(b.data)) {
		return nil
	}
	return errorOf(raw.Buffer_upload(b.native, offset, source))
}

// Download copies bytes from an offset.
func (b *Buffer) Download(offset uint64, target []byte) error {
	if err := b.base().lock("Buffer.Download", "the receiver"); err != nil {
		return err
	}
	defer b.unlock()
	if len(target) == 0 && offset <= uint64(len(b.data)) {
		return nil
	}
	return errorOf(raw.Buffer_download(b.native, offset, target))
}

// Tensor is a view of the buffer from an offset on, in bytes.
func (b *Buffer) Tensor(dtype DType, offset int, shape ...int) (*Tensor, error) {
	if err := b.base().use("Buffer.Tensor", "the receiver"); err != nil {
		return nil, err
	}
	defer b.release()
	t, err := tensorIn("Buffer.Tensor", b.base(), b.data, dtype, offset, shape)
	if err != nil {
		return nil, err
	}
	t.buffer, t.offset = b, uint64(offset)
	return t, nil
}
