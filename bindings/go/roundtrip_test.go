package ds41

import (
	"errors"
	"fmt"
	"testing"

	"github.com/libds41/libds41/bindings/go/internal/cresult"
)

// cOutputs is what the C interface gives for the case.
func (f *fixture) cOutputs(t testing.TB) []BF16 {
	t.Helper()
	var startPos, nTokens []int64
	n := 0
	for _, step := range f.steps {
		startPos, nTokens = append(startPos, step.StartPos), append(nTokens, int64(step.Tokens))
		n += step.Tokens * f.nLayers() * f.dim()
	}
	values, err := cresult.Run(f.path, startPos, nTokens, n)
	if err != nil {
		t.Fatal(err)
	}
	return BF16s(values)
}

func TestOutputsAreTheBitsOfC(t *testing.T) {
	for _, name := range []string{"a_golden_stable", "e_fp8_weights", "d_ratio_4_3"} {
		t.Run(name, func(t *testing.T) {
			f := openFixture(t, name)
			want := f.cOutputs(t)
			model := f.model(t, nil)
			for _, chunk := range []int{0, 1, 5} {
				for _, threads := range []int{1, 2} {
					got := f.run(t, model, chunk, threads)
					compareBits(t, fmt.Sprintf("chunks of %d, %d threads", chunk, threads), got, want)
				}
			}
		})
	}
}

func TestOutputsAreThoseOfTheGoldenFile(t *testing.T) {
	for _, backend := range []string{"cpu", "reference"} { // those that read a slice where it is
		t.Run(backend, func(t *testing.T) {
			f := openFixture(t, "a_golden_stable")
			model := f.model(t, &ModelOptions{Backend: backend})
			if model.Backend() != backend {
				t.Errorf("the model runs on %s", model.Backend())
			}
			f.compareGolden(t, f.run(t, model, 0, 1))
		})
	}
}

func TestTorchRuleGivesTheValuesOfTheReference(t *testing.T) {
	f := openFixture(t, "a_golden_reference_rules")
	f.compareGolden(t, f.run(t, f.model(t, &ModelOptions{TopK: TopKTorchCPU}), 0, 1))
}

func TestQ2KWeightsComeAsBlocks(t *testing.T) {
	first, second := openFixture(t, "f_q2k_weights.1of2"), openFixture(t, "f_q2k_weights.2of2")
	model, err := NewModel(first.config, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	for layer := range first.config.CompressRatios {
		weights := &LayerWeights{} // the case is in two files
		for _, part := range []*fixture{first, second} {
			here, err := part.file.LayerWeights(layer)
			if errors.Is(err, ErrMissingTensor) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			for i, tensor := range here.all() {
				if *tensor != nil {
					*weights.all()[i] = *tensor
				}
			}
		}
		n := 0
		for _, tensor := range weights.all() {
			if (*tensor).DType() == DTypeU8 {
				if *tensor, err = (*tensor).AsQ2K(); err != nil {
					t.Fatal(err)
				}
				n++
			}
		}
		if n != 5 {
			t.Errorf("layer %d has %d tensors of Q2_K, want 5", layer, n)
		}
		if err := model.SetLayer(layer, weights); err != nil {
			t.Fatal(err)
		}
	}
	ctx, seq := newRun(t, model, 1)
	dim := first.dim()
	x := make([]BF16, 3*dim)
	for i := range x {
		x[i] = ToBF16(float32(i%7) / 4)
	}
	whole, steps := nans(3*dim), nans(3*dim)
	if err := ctx.Prefill(0, seq, tensorOf(t, x, 3, dim), 0, tensorOf(t, whole, 3, dim)); err != nil {
		t.Fatal(err)
	}
	if err := seq.Reset(); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < 3; i++ {
		step, err := ctx.DecodePrep(Span{seq, int64(i), 1})
		if err != nil {
			t.Fatal(err)
		}
		row := func(values []BF16) *Tensor { return tensorOf(t, values[i*dim:][:dim], 1, dim) }
		if err := step.Body(0, row(x), row(steps)); err != nil {
			t.Fatal(err)
		}
	}
	compareBits(t, "decode steps", steps, whole)
}

func TestSequencesInOneStepGiveTheBitsOfEachAlone(t *testing.T) {
	f := openFixture(t, "a_golden_stable")
	model := f.model(t, nil)
	ctx, a := newRun(t, model, 1)
	_, b := newRun(t, model, 1)
	dim := f.dim()
	x := f.input(t, 0, 0)[:5*dim]
	alone := nans(5 * dim)
	if err := ctx.Prefill(0, a, tensorOf(t, x, 5, dim), 0, tensorOf(t, alone, 5, dim)); err != nil {
		t.Fatal(err)
	}
	if err := a.Reset(); err != nil {
		t.Fatal(err)
	}
	// a gets tokens 0 and 1, then 2; b gets token 0, then 1 and 2.
	for _, spans := range [][]Span{{{a, 0, 2}, {b, 0, 1}}, {{a, 2, 1}, {b, 1, 2}}} {
		step, err := ctx.DecodePrep(spans...)
		if err != nil {
			t.Fatal(err)
		}
		var rows, want []BF16
		for _, span := range spans {
			from, n := int(span.StartPos)*dim, span.Tokens*dim
			rows, want = append(rows, x[from:from+n]...), append(want, alone[from:from+n]...)
		}
		out := nans(3 * dim)
		if err := step.Body(0, tensorOf(t, rows, 3, dim), tensorOf(t, out, 3, dim)); err != nil {
			t.Fatal(err)
		}
		compareBits(t, "rows of two sequences", out, want)
	}
}

func TestMemoryOfAnyKindGivesTheSameBits(t *testing.T) {
	f := openFixture(t, "a_golden_stable")
	model := f.model(t, nil)
	ctx, seq := newRun(t, model, 1)
	const n = 4
	dim := f.dim()
	x := f.input(t, 0, 0)[:n*dim]
	want := nans(n * dim)
	run := func(x, out *Tensor) {
		t.Helper()
		if err := seq.Reset(); err != nil {
			t.Fatal(err)
		}
		if err := ctx.Prefill(0, seq, x, 0, out); err != nil {
			t.Fatal(err)
		}
	}
	run(tensorOf(t, x, n, dim), tensorOf(t, want, n, dim))

	// Slices from the middle of a struct whose other members are Go pointers, which C must not get to see.
	inside := struct {
		before  *string
		x       [8 * 64]BF16
		between []string
		out     [8 * 64]BF16
		after   map[string]int
	}{before: new(string), between: []string{"a"}, after: map[string]int{"b": 1}}
	copy(inside.x[64:], x)
	copy(inside.out[:], nans(len(inside.out)))
	run(tensorOf(t, inside.x[64:64+n*dim], n, dim), tensorOf(t, inside.out[64:64+n*dim], n, dim))
	compareBits(t, "slices from the middle of a struct", inside.out[64:64+n*dim], want)
	compareBits(t, "what lies before the slice", inside.out[:64], nans(64))
	compareBits(t, "what lies behind the slice", inside.out[64+n*dim:], nans(len(inside.out)-64-n*dim))

	inPlace := append([]BF16(nil), x...)
	both := tensorOf(t, inPlace, n, dim)
	run(both, both)
	compareBits(t, "in place", inPlace, want)

	buffer, err := model.NewBuffer(2 * n * dim * 2)
	if err != nil {
		t.Fatal(err)
	}
	defer buffer.Close()
	if err := buffer.Upload(0, Bytes(x)); err != nil {
		t.Fatal(err)
	}
	if err := buffer.Upload(uint64(n*dim*2), Bytes(nans(n*dim))); err != nil {
		t.Fatal(err)
	}
	bufferX, err := buffer.Tensor(DTypeBF16, 0, n, dim)
	if err != nil {
		t.Fatal(err)
	}
	bufferOut, err := buffer.Tensor(DTypeBF16, n*dim*2, n, dim)
	if err != nil {
		t.Fatal(err)
	}
	run(bufferX, bufferOut)
	got, err := Values[BF16](bufferOut)
	if err != nil {
		t.Fatal(err)
	}
	compareBits(t, "buffers", got, want)
	last, err := bufferOut.Rows(n-1, n)
	if err != nil {
		t.Fatal(err)
	}
	if got, err = Values[BF16](last); err != nil {
		t.Fatal(err)
	}
	compareBits(t, "the last row of a buffer", got, want[(n-1)*dim:])

	memory, err := NewMemory(n * dim * 2)
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	memoryOut, err := memory.Tensor(DTypeBF16, 0, n, dim)
	if err != nil {
		t.Fatal(err)
	}
	run(tensorOf(t, BF16s(bitsOf(x)), n, dim), memoryOut)
	if got, err = Values[BF16](memoryOut); err != nil {
		t.Fatal(err)
	}
	compareBits(t, "memory outside Go", got, want)
}

func bitsOf(values []BF16) []uint16 {
	bits := make([]uint16, len(values))
	for i, value := range values {
		bits[i] = uint16(value)
	}
	return bits
}
