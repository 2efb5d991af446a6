package ds41

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/libds41/libds41/bindings/go/internal/raw"
)

// DType is the type of a tensor's elements. Numbers are those of ds41_dtype.
type DType int32

const (
	DTypeNone    DType = 0
	DTypeF32     DType = 1
	DTypeBF16    DType = 2
	DTypeFP8E4M3 DType = 3 // One UE8M0 scale byte per 32 x 32 block.
	DTypeQ2K     DType = 4 // 84 bytes per 256 values of a row; shapes count values.
	DTypeI32     DType = 5
	DTypeU8      DType = 6
	DTypeI8      DType = 7
	DTypeF16     DType = 8
	DTypeUE8M0   DType = 9
)

// String is the name that messages use, such as BF16.
func (d DType) String() string { return raw.Dtype_name(int32(d)) }

// Element is what the slices of NewTensor and Values hold.
type Element interface {
	BF16 | float32 | int32 | uint8 | int8
}

func dtypeOf[T Element]() DType {
	var element T
	switch any(element).(type) {
	case BF16:
		return DTypeBF16
	case float32:
		return DTypeF32
	case int32:
		return DTypeI32
	case int8:
		return DTypeI8
	default:
		return DTypeU8
	}
}

// Bytes is the same memory as bytes.
func Bytes[T Element](values []T) []byte {
	if len(values) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&values[0])), len(values)*int(unsafe.Sizeof(values[0])))
}

// Tensor is a view of memory, row-major and contiguous: of a slice, or of memory outside Go. It keeps its owner alive,
// and does not change.
type Tensor struct {
	form         raw.Form
	data, scales []byte

	// The objects outside Go that hold data and scales; nil for slices.
	owner, scalesOwner *object

	// Where data is on a device, whose memory Go cannot read.
	buffer *Buffer
	offset uint64
}

// NewTensor is a view of a slice: BF16, F32, I32, U8 or I8 by the type of its elements. The slice has as many elements
// as the shape says; nothing is copied.
func NewTensor[T Element](data []T, shape ...int) (*Tensor, error) {
	return newTensor("NewTensor", dtypeOf[T](), Bytes(data), shape)
}

// NewTensorOf is a view of bytes that hold elements of any type, as those of Q2_K. Tensors of FP8_E4M3 get their scales
// by WithScales.
func NewTensorOf(dtype DType, data []byte, shape ...int) (*Tensor, error) {
	return newTensor("NewTensorOf", dtype, data, shape)
}

func newTensor(call string, dtype DType, data []byte, shape []int) (*Tensor, error) {
	form, nBytes, err := formOf(call, dtype, shape)
	if err != nil {
		return nil, err
	}
	if uint64(len(data)) != nBytes {
		return nil, errorf(StatusInvalidShape, "%s: data has %d bytes, need %d for %v %v", call, len(data), nBytes, dtype,
			shape)
	}
	return &Tensor{form: form, data: data}, nil
}

// formOf checks a shape, and counts the bytes that such a tensor has.
func formOf(call string, dtype DType, shape []int) (form raw.Form, nBytes uint64, err error) {
	if len(shape) < 1 || len(shape) > raw.DS41_MAX_DIMS {
		return form, 0, errorf(StatusInvalidShape, "%s: shape has %d dimensions, need 1 to %d", call, len(shape),
			raw.DS41_MAX_DIMS)
	}
	form.DType, form.NDims = int32(dtype), int32(len(shape))
	for i, size := range shape {
		form.Shape[i] = int64(size)
	}
	if failure := raw.Tensor_bytes(&form, &nBytes); failure != nil {
		return form, 0, errorf(Status(failure.Status), "%s: %s", call, failure.Message)
	}
	return form, nBytes, nil
}

// WithScales is the tensor, of FP8_E4M3, with the scale bytes of its 32 x 32 blocks: UE8M0 or U8, in rows of blocks.
func (t *Tensor) WithScales(scales *Tensor) (*Tensor, error) {
	if t == nil || scales == nil {
		return nil, errorf(StatusInvalidArgument, "Tensor.WithScales: the tensor or its scales are nil")
	}
	if t.DType() != DTypeFP8E4M3 || scales.DType() != DTypeUE8M0 && scales.DType() != DTypeU8 {
		return nil, errorf(StatusInvalidDType, "Tensor.WithScales: got %v with scales of %v, need FP8_E4M3 with UE8M0 or U8",
			t.DType(), scales.DType())
	}
	if scales.form.NDims != 2 {
		return nil, errorf(StatusInvalidShape, "Tensor.WithScales: scales have shape %v, need 2 dimensions", scales.Shape())
	}
	joined := *t
	joined.scales, joined.scalesOwner = scales.data, scales.owner
	joined.form.ScaleShape = [2]int64{scales.form.Shape[0], scales.form.Shape[1]}
	return &joined, nil
}

// WithPlainActivations is the tensor, of quantised weights, to be multiplied with activations as they are:
// DS41_TENSOR_PLAIN_ACTIVATIONS.
func (t *Tensor) WithPlainActivations() *Tensor {
	if t == nil {
		return nil
	}
	plain := *t
	plain.form.Flags |= uint32(raw.DS41_TENSOR_PLAIN_ACTIVATIONS)
	return &plain
}

// Rows is a view of the rows from first to end - 1.
func (t *Tensor) Rows(first, end int) (*Tensor, error) {
	if t == nil {
		return nil, errorf(StatusInvalidArgument, "Tensor.Rows: the tensor is nil")
	}
	if t.scales != nil {
		return nil, errorf(StatusInvalidArgument, "Tensor.Rows: the tensor has scales, which stand for blocks of rows")
	}
	n := int(t.form.Shape[0])
	if first < 0 || end <= first || end > n {
		return nil, errorf(StatusInvalidShape, "Tensor.Rows: got rows %d to %d, need a range in [0, %d) that is not empty",
			first, end, n)
	}
	rows, rowBytes := *t, len(t.data)/n
	rows.form.Shape[0] = int64(end - first)
	rows.data = t.data[first*rowBytes : end*rowBytes : end*rowBytes]
	rows.offset += uint64(first * rowBytes)
	return &rows, nil
}

// DType of the elements; DTypeNone for nil.
func (t *Tensor) DType() DType {
	if t == nil {
		return DTypeNone
	}
	return DType(t.form.DType)
}

// Shape is outermost first.
func (t *Tensor) Shape() []int {
	if t == nil {
		return nil
	}
	return toShape(t.form.Shape[:t.form.NDims])
}

// ScaleShape is that of the scale bytes; nil where there are none.
func (t *Tensor) ScaleShape() []int {
	if t == nil || t.form.ScaleShape[0] == 0 {
		return nil
	}
	return toShape(t.form.ScaleShape[:])
}

func toShape(sizes []int64) []int {
	shape := make([]int, len(sizes))
	for i, size := range sizes {
		shape[i] = int(size)
	}
	return shape
}

// NBytes is how many bytes the elements have, scales not counted.
func (t *Tensor) NBytes() int {
	if t == nil {
		return 0
	}
	return len(t.data)
}

func (t *Tensor) String() string {
	if t == nil {
		return "no tensor"
	}
	return fmt.Sprintf("%v [%s]", t.DType(), strings.Trim(strings.Join(strings.Fields(fmt.Sprint(t.Shape())), ", "), "[]"))
}

// CopyBytes copies the elements out, which may lie outside Go and on a device.
func (t *Tensor) CopyBytes() ([]byte, error) {
	if err := t.use("Tensor.CopyBytes", "the tensor"); err != nil {
		return nil, err
	}
	defer t.release()
	out := make([]byte, len(t.data))
	return out, t.read(out)
}

func (t *Tensor) read(out []byte) error {
	if t.buffer != nil {
		return t.buffer.Download(t.offset, out)
	}
	copy(out, t.data)
	return nil
}

// Values copies the elements out; T has to be that of the tensor's type.
func Values[T Element](t *Tensor) ([]T, error) {
	if err := t.use("Values", "the tensor"); err != nil {
		return nil, err
	}
	defer t.release()
	if want := dtypeOf[T](); want != t.DType() {
		return nil, errorf(StatusInvalidDType, "Values: the tensor is %v, got a slice for %v", t.DType(), want)
	}
	var element T
	out := make([]T, len(t.data)/int(unsafe.Sizeof(element)))
	return out, t.read(Bytes(out))
}

// use keeps the memory in place until release.
func (t *Tensor) use(call, argument string) error {
	if t == nil {
		return errorf(StatusInvalidArgument, "%s: %s is nil", call, argument)
	}
	if t.form.NDims == 0 {
		return errorf(StatusInvalidArgument, "%s: %s was not made by a function of this package", call, argument)
	}
	if t.owner != nil {
		if err := t.owner.use(call, argument); err != nil {
			return err
		}
	}
	if t.scalesOwner != nil {
		if err := t.scalesOwner.use(call, argument); err != nil {
			if t.owner != nil {
				t.owner.release()
			}
			return err
		}
	}
	return nil
}

func (t *Tensor) release() {
	if t.owner != nil {
		t.owner.release()
	}
	if t.scalesOwner != nil {
		t.scalesOwner.release()
	}
	runtime.KeepAlive(t)
}
