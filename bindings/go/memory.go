package ds41

import (
	"runtime"
	"unsafe"

	"github.com/libds41/libds41/bindings/go/internal/raw"
)

// Memory is memory of the host outside Go, for weights that a model borrows: C may keep pointers to it.
type Memory struct {
	object
	data []byte
}

// NewMemory allocates n bytes of 0, aligned to 64 bytes.
func NewMemory(n int) (*Memory, error) {
	if n < 1 {
		return nil, errorf(StatusInvalidArgument, "NewMemory: n is %d, need 1 or more", n)
	}
	native := raw.Memory_alloc(uint64(n))
	if native == nil {
		return nil, errorf(StatusOutOfMemory, "NewMemory: there is no memory for %d bytes", n)
	}
	m := &Memory{data: unsafe.Slice((*byte)(native), n)}
	m.init("memory", func() { raw.Memory_free(native) })
	runtime.SetFinalizer(m, (*Memory).Close)
	return m, nil
}

func (m *Memory) base() *object {
	if m == nil {
		return nil
	}
	return &m.object
}

// Close frees the memory, or leaves that to the last model that borrows it. It may be called again.
func (m *Memory) Close() error {
	m.base().close()
	return nil
}

// Len is the size in bytes, also after Close.
func (m *Memory) Len() int {
	if m == nil {
		return 0
	}
	return len(m.data)
}

// Write copies bytes to an offset.
func (m *Memory) Write(offset int, source []byte) error {
	return m.copy("Memory.Write", offset, source, true)
}

// Read copies bytes from an offset.
func (m *Memory) Read(offset int, target []byte) error {
	return m.copy("Memory.Read", offset, target, false)
}

func (m *Memory) copy(call string, offset int, bytes []byte, write bool) error {
	if err := m.base().use(call, "the receiver"); err != nil {
		return err
	}
	defer m.release()
	if offset < 0 || offset > len(m.data) || len(bytes) > len(m.data)-offset {
		return errorf(StatusInvalidArgument, "%s: got %d bytes at offset %d, need a range in [0, %d]", call, len(bytes),
			offset, len(m.data))
	}
	if write {
		copy(m.data[offset:], bytes)
	} else {
		copy(bytes, m.data[offset:])
	}
	return nil
}

// Tensor is a view of the memory from an offset on.
func (m *Memory) Tensor(dtype DType, offset int, shape ...int) (*Tensor, error) {
	if err := m.base().use("Memory.Tensor", "the receiver"); err != nil {
		return nil, err
	}
	defer m.release()
	return tensorIn("Memory.Tensor", m.base(), m.data, dtype, offset, shape)
}

// tensorIn is a view of what the owner holds.
func tensorIn(call string, owner *object, data []byte, dtype DType, offset int, shape []int) (*Tensor, error) {
	form, nBytes, err := formOf(call, dtype, shape)
	if err != nil {
		return nil, err
	}
	if offset < 0 || offset > len(data) || nBytes > uint64(len(data)-offset) {
		return nil, errorf(StatusInvalidShape, "%s: %v %v at offset %d needs %d bytes, the %s has %d", call, dtype, shape,
			offset, nBytes, owner.kind, len(data))
	}
	end := offset + int(nBytes)
	return &Tensor{form: form, data: data[offset:end:end], owner: owner}, nil
}
