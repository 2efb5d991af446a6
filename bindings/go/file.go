package ds41

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/libds41/libds41/bindings/go/internal/raw"
)

// File is a safetensors file, mapped into memory. It must not be changed or truncated until it is closed.
type File struct {
	object
	native *raw.File
	names  []string
}

// OpenFile maps a safetensors file and checks its header.
func OpenFile(path string) (*File, error) {
	if err := checkString("OpenFile", "path", path); err != nil {
		return nil, err
	}
	var native *raw.File
	if err := errorOf(raw.File_load(&native, path)); err != nil {
		return nil, err
	}
	f := &File{native: native, names: make([]string, raw.File_get_n_tensors(native))}
	for i := range f.names {
		f.names[i] = raw.File_get_tensor_name(native, int64(i))
	}
	f.init("file", func() { raw.File_destroy(native) })
	runtime.SetFinalizer(f, (*File).Close)
	return f, nil
}

func (f *File) base() *object {
	if f == nil {
		return nil
	}
	return &f.object
}

// Close unmaps the file, or leaves that to the last model that borrows tensors of it. It may be called again.
func (f *File) Close() error {
	f.base().close()
	return nil
}

// Names of the tensors, in ascending order of bytes, also after Close.
func (f *File) Names() []string {
	if f == nil {
		return nil
	}
	return append([]string(nil), f.names...)
}

// Metadata is the value of a key of the file's metadata; ok tells whether there is one.
func (f *File) Metadata(key string) (value string, ok bool, err error) {
	if err := f.base().use("File.Metadata", "the receiver"); err != nil {
		return "", false, err
	}
	defer f.release()
	if err := checkString("File.Metadata", "key", key); err != nil {
		return "", false, err
	}
	found := raw.File_get_metadata(f.native, key)
	if found == nil {
		return "", false, nil
	}
	return *found, true, nil
}

// Tensor is a view of one tensor in the mapping, with its scales where it has any. Its bytes may lie at any address.
// Q2_K has no dtype in this format: such tensors come as U8, and AsQ2K says what they are.
func (f *File) Tensor(name string) (*Tensor, error) {
	if err := f.base().use("File.Tensor", "the receiver"); err != nil {
		return nil, err
	}
	defer f.release()
	if err := checkString("File.Tensor", "name", name); err != nil {
		return nil, err
	}
	var form raw.Form
	var data, scales unsafe.Pointer
	if err := errorOf(raw.File_tensor(f.native, name, &form, &data, &scales)); err != nil {
		return nil, err
	}
	var nBytes uint64
	if err := errorOf(raw.Tensor_bytes(&form, &nBytes)); err != nil {
		return nil, err
	}
	t := &Tensor{form: form, data: unsafe.Slice((*byte)(data), int(nBytes)), owner: f.base()}
	if scales != nil {
		t.scales = unsafe.Slice((*byte)(scales), int(form.ScaleShape[0]*form.ScaleShape[1]))
		t.scalesOwner = f.base()
	}
	return t, nil
}

// AsQ2K takes U8 [rows, blocks * 84] as Q2_K [rows, blocks * 256].
func (t *Tensor) AsQ2K() (*Tensor, error) {
	const blockBytes, blockValues = 84, 256
	if t.DType() != DTypeU8 {
		return nil, errorf(StatusInvalidDType, "Tensor.AsQ2K: got %v, need U8", t.DType())
	}
	if t.form.NDims != 2 || t.form.Shape[1]%blockBytes != 0 {
		return nil, errorf(StatusInvalidShape, "Tensor.AsQ2K: got shape %v, need [rows, a multiple of %d]", t.Shape(),
			blockBytes)
	}
	blocks := *t
	blocks.form.DType = int32(DTypeQ2K)
	blocks.form.Shape[1] = t.form.Shape[1] / blockBytes * blockValues
	return &blocks, nil
}

// LayerWeights are views of all tensors of a layer, by the names of the release: layers.LAYER.attn.NAME.
func (f *File) LayerWeights(layer int) (*LayerWeights, error) {
	weights := &LayerWeights{}
	prefix := fmt.Sprintf("layers.%d.attn.", layer)
	for _, name := range f.Names() {
		short := strings.TrimPrefix(name, prefix)
		if short == name || strings.HasSuffix(short, ".scale") { // scales come with their weights
			continue
		}
		tensor, err := f.Tensor(name)
		if err != nil {
			return nil, err
		}
		member := strings.ReplaceAll(strings.TrimSuffix(short, ".weight"), ".", "_")
		if err := weights.Set(member, tensor); err != nil {
			return nil, errorf(StatusInvalidFile, "File.LayerWeights: %s is no weight of these layers", name)
		}
	}
	if *weights == (LayerWeights{}) {
		if err := f.base().use("File.LayerWeights", "the receiver"); err != nil {
			return nil, err
		}
		f.release()
		return nil, errorf(StatusMissingTensor, "File.LayerWeights: the file has no tensor called %s...", prefix)
	}
	return weights, nil
}
