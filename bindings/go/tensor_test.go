package ds41

import (
	"fmt"
	"math"
	"testing"
)

func TestSliceHasToFitItsShape(t *testing.T) {
	rows := make([]BF16, 12)
	for _, c := range []struct {
		call     func() (*Tensor, error)
		sentinel error
		words    []string
	}{
		{func() (*Tensor, error) { return NewTensor(rows, 3, 5) }, ErrInvalidShape, []string{"24 bytes", "30", "BF16"}},
		{func() (*Tensor, error) { return NewTensor(rows, 3, 3) }, ErrInvalidShape, []string{"24 bytes", "18"}},
		{func() (*Tensor, error) { return NewTensor([]BF16(nil), 3, 4) }, ErrInvalidShape, []string{"0 bytes", "24"}},
		{func() (*Tensor, error) { return NewTensor(rows) }, ErrInvalidShape, []string{"0 dimensions", "1 to 4"}},
		{func() (*Tensor, error) { return NewTensor(rows, 12, 1, 1, 1, 1) }, ErrInvalidShape, []string{"5 dimensions"}},
		{func() (*Tensor, error) { return NewTensor(rows, -3, -4) }, ErrInvalidShape, []string{"-3"}},
		{func() (*Tensor, error) { return NewTensor(rows, 1<<40, 1<<40) }, ErrInvalidShape, []string{"NewTensor"}},
		{func() (*Tensor, error) { return NewTensorOf(DTypeNone, make([]byte, 4), 4) }, ErrInvalidDType, []string{"NONE"}},
		{func() (*Tensor, error) { return NewTensorOf(77, make([]byte, 4), 4) }, ErrInvalidDType, []string{"77"}},
		{func() (*Tensor, error) { return NewTensorOf(DTypeQ2K, make([]byte, 84), 1, 255) }, ErrInvalidShape,
			[]string{"255", "256"}},
	} {
		tensor, err := c.call()
		if tensor != nil {
			t.Errorf("got %v beside the error %v", tensor, err)
		}
		wantError(t, err, c.sentinel, c.words...)
	}
}

func TestTensorIsAViewOfItsSlice(t *testing.T) {
	values := []float32{0, 1, 2, 3, 4, 5}
	tensor := tensorOf(t, values, 3, 2)
	values[3] = 42
	got, err := Values[float32](tensor)
	if err != nil || fmt.Sprint(got) != "[0 1 2 42 4 5]" {
		t.Errorf("got %v, %v", got, err)
	}
	got[0] = 7 // a copy
	if values[0] != 0 {
		t.Error("Values has not copied")
	}
	rows, err := tensor.Rows(1, 3)
	if err != nil || fmt.Sprint(rows.Shape()) != "[2 2]" || rows.NBytes() != 16 || rows.DType() != DTypeF32 {
		t.Fatalf("got %v, %v", rows, err)
	}
	if got, err = Values[float32](rows); err != nil || fmt.Sprint(got) != "[2 42 4 5]" {
		t.Errorf("got %v, %v", got, err)
	}
	if s := rows.String(); s != "F32 [2, 2]" {
		t.Errorf("the tensor is called %q", s)
	}
	for _, r := range [][2]int{{-1, 1}, {0, 4}, {2, 2}, {3, 1}} {
		_, err := tensor.Rows(r[0], r[1])
		wantError(t, err, ErrInvalidShape, "Rows", fmt.Sprint(r[0]), fmt.Sprint(r[1]))
	}
	_, err = Values[BF16](tensor)
	wantError(t, err, ErrInvalidDType, "F32", "BF16")
	a, b, c := tensorOf(t, []int32{1}, 1), tensorOf(t, []int8{1}, 1), tensorOf(t, []byte{1}, 1)
	if a.DType() != DTypeI32 || b.DType() != DTypeI8 || c.DType() != DTypeU8 {
		t.Errorf("got %v, %v, %v", a, b, c)
	}
}

func TestFP8TakesScalesThatFit(t *testing.T) {
	f := openFixture(t, "e_fp8_weights")
	want := f.run(t, f.model(t, nil), 0, 1)
	model := f.newEmpty(t)
	n := 0
	for layer := range f.config.CompressRatios {
		weights, err := f.file.LayerWeights(layer)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range weights.all() {
			if (*entry).DType() != DTypeFP8E4M3 {
				continue
			}
			n++
			codes, err := (*entry).CopyBytes()
			if err != nil {
				t.Fatal(err)
			}
			shape, scaleShape := (*entry).Shape(), (*entry).ScaleShape()
			if scaleShape[0] != (shape[0]+31)/32 || scaleShape[1] != shape[1]/32 {
				t.Fatalf("scales of %v have shape %v", *entry, scaleShape)
			}
			scales := append([]byte(nil), (*entry).scales...)
			tensor, err := NewTensorOf(DTypeFP8E4M3, codes, shape...)
			if err != nil {
				t.Fatal(err)
			}
			if n == 1 {
				bare := *weights
				bare.WqA = tensor
				wantError(t, model.SetLayer(layer, &bare), ErrInvalidArgument, "wq_a", "scales")
				scaled, err := tensor.WithScales(tensorOf(t, scales, len(scales), 1))
				if err != nil {
					t.Fatal(err)
				}
				bare.WqA = scaled
				wantError(t, model.SetLayer(layer, &bare), ErrInvalidShape, "wq_a", "scale")
				_, err = scaled.Rows(0, 1)
				wantError(t, err, ErrInvalidArgument, "scales")
			}
			if *entry, err = tensor.WithScales(tensorOf(t, scales, scaleShape...)); err != nil {
				t.Fatal(err)
			}
		}
		if err := model.SetLayer(layer, weights); err != nil {
			t.Fatal(err)
		}
	}
	if n == 0 {
		t.Fatal("the case has no FP8 weights")
	}
	compareBits(t, "codes and scales in slices", f.run(t, model, 0, 1), want)

	plain := f.newEmpty(t)
	for layer := range f.config.CompressRatios {
		weights, err := f.file.LayerWeights(layer)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range weights.all() {
			if (*entry).DType() == DTypeFP8E4M3 {
				*entry = (*entry).WithPlainActivations()
			}
		}
		if err := plain.SetLayer(layer, weights); err != nil {
			t.Fatal(err)
		}
	}
	same := 0
	got := f.run(t, plain, 0, 1)
	for i := range got {
		if got[i] == want[i] {
			same++
		}
	}
	if same == len(got) {
		t.Error("plain activations give the same bits: the flag is lost")
	}
	_, err := tensorOf(t, []float32{1}, 1).WithScales(tensorOf(t, []byte{1}, 1, 1))
	wantError(t, err, ErrInvalidDType, "F32")
	fp8, err := NewTensorOf(DTypeFP8E4M3, make([]byte, 32), 1, 32)
	if err != nil {
		t.Fatal(err)
	}
	_, err = fp8.WithScales(tensorOf(t, []byte{1}, 1))
	wantError(t, err, ErrInvalidShape, "2 dimensions")
}

func TestAsQ2KTakesBlocksAlone(t *testing.T) {
	_, err := tensorOf(t, []float32{1}, 1, 1).AsQ2K()
	wantError(t, err, ErrInvalidDType, "F32", "U8")
	_, err = tensorOf(t, make([]byte, 85), 1, 85).AsQ2K()
	wantError(t, err, ErrInvalidShape, "85", "84")
	blocks, err := tensorOf(t, make([]byte, 3*168), 3, 168).AsQ2K()
	if err != nil || blocks.String() != "Q2_K [3, 512]" {
		t.Errorf("got %v, %v", blocks, err)
	}
}

func TestTensorsInMemoryHaveToFit(t *testing.T) {
	memory, err := NewMemory(100)
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	for _, c := range [][2]int{{0, 26}, {4, 25}, {101, 1}, {-1, 1}, {1 << 62, 1}} {
		_, err := memory.Tensor(DTypeF32, c[0], c[1])
		wantError(t, err, ErrInvalidShape, "Memory.Tensor", "100")
	}
	if _, err := memory.Tensor(DTypeF32, 4, 24); err != nil {
		t.Error(err)
	}
	wantError(t, memory.Write(98, []byte{1, 2, 3}), ErrInvalidArgument, "3 bytes", "98", "100")
	wantError(t, memory.Read(-1, []byte{1}), ErrInvalidArgument, "-1")
	got := []byte{9, 9}
	if err := memory.Write(98, []byte{1, 2}); err != nil {
		t.Fatal(err)
	}
	if err := memory.Read(98, got); err != nil || got[0] != 1 || got[1] != 2 {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := NewMemory(math.MaxInt64); err == nil {
		t.Error("got all memory that there can be")
	}
}

func TestBF16RoundsToNearestEven(t *testing.T) {
	for _, c := range []struct {
		bits uint32
		want BF16
	}{
		{0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81}, {0x3f807fff, 0x3f80},
		{0x7f7fffff, 0x7f80}, {0xff800000, 0xff80}, {0x80000000, 0x8000}, {0x00000001, 0}, {0x7f800001, 0x7fc0},
		{0xffbfffff, 0xffff},
	} {
		if got := ToBF16(math.Float32frombits(c.bits)); got != c.want {
			t.Errorf("%#08x became %#04x, want %#04x", c.bits, got, c.want)
		}
	}
	for i := 0; i < 1<<16; i++ {
		value := BF16(i).Float32()
		if got := ToBF16(value); got != BF16(i) && value == value {
			t.Errorf("%#04x became %#04x", i, got)
		}
	}
	if BF16s(nil) != nil || Bytes([]float32{}) != nil {
		t.Error("nothing became something")
	}
}
