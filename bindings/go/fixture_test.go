package ds41

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

const fixtureFolder = "../../tests/fixtures"

// fixture is a golden case of tests/fixtures: weights, inputs, and what the outputs have to be.
type fixture struct {
	path   string
	file   *File
	config *Config
	steps  []fixtureStep
}

type fixtureStep struct {
	StartPos int64 `json:"start_pos"`
	Tokens   int   `json:"tokens"`
}

func openFixture(t testing.TB, name string) *fixture {
	t.Helper()
	path := filepath.Join(fixtureFolder, name+".safetensors")
	file, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	f := &fixture{path: path, file: file}
	f.config, err = ParseConfig([]byte(f.metadata(t, "config")))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(f.metadata(t, "steps")), &f.steps); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) metadata(t testing.TB, key string) string {
	t.Helper()
	value, ok, err := f.file.Metadata(key)
	if err != nil || !ok {
		t.Fatalf("metadata %s: %v, %v", key, ok, err)
	}
	return value
}

// bf16 copies a tensor out of the file, where it lies at any byte.
func (f *fixture) bf16(t testing.TB, name string) []BF16 {
	t.Helper()
	tensor, err := f.file.Tensor(name)
	if err != nil {
		t.Fatal(err)
	}
	values, err := Values[BF16](tensor)
	if err != nil {
		t.Fatal(err)
	}
	return values
}

func (f *fixture) input(t testing.TB, step, layer int) []BF16 {
	t.Helper()
	return f.bf16(t, fmt.Sprintf("step%d.layer%d.x", step, layer))
}

func (f *fixture) nLayers() int { return len(f.config.CompressRatios) }
func (f *fixture) dim() int     { return int(f.config.Dim) }

// model has the weights of all layers.
func (f *fixture) model(t testing.TB, options *ModelOptions) *Model {
	t.Helper()
	model, err := NewModel(f.config, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	for layer := 0; layer < f.nLayers(); layer++ {
		weights, err := f.file.LayerWeights(layer)
		if err != nil {
			t.Fatal(err)
		}
		if err := model.SetLayer(layer, weights); err != nil {
			t.Fatal(err)
		}
	}
	return model
}

// run takes the case's steps through all layers, prefills in chunks of so many tokens (0: whole), and gives the outputs
// of all steps and layers, one behind the other.
func (f *fixture) run(t testing.TB, model *Model, chunk, threads int) []BF16 {
	t.Helper()
	ctx, seq := newRun(t, model, threads)
	outs, err := f.runOn(t, ctx, seq, chunk)
	if err != nil {
		t.Fatal(err)
	}
	return outs
}

func newRun(t testing.TB, model *Model, threads int) (*Context, *Sequence) {
	t.Helper()
	ctx, err := model.NewContext(&ContextOptions{Threads: threads})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ctx.Close() })
	seq, err := model.NewSequence()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { seq.Close() })
	return ctx, seq
}

func (f *fixture) runOn(t testing.TB, ctx *Context, seq *Sequence, chunk int) ([]BF16, error) {
	var outs []BF16
	for i, s := range f.steps {
		if s.StartPos == 0 {
			if err := seq.Reset(); err != nil {
				return nil, err
			}
			step, err := f.prefill(t, ctx, seq, i, chunk)
			if err != nil {
				return nil, err
			}
			outs = append(outs, step...)
			continue
		}
		step, err := ctx.DecodePrep(Span{seq, s.StartPos, s.Tokens})
		if err != nil {
			return nil, err
		}
		for layer := 0; layer < f.nLayers(); layer++ {
			out := nans(s.Tokens * f.dim())
			x := tensorOf(t, f.input(t, i, layer), s.Tokens, f.dim())
			if err := step.Body(layer, x, tensorOf(t, out, s.Tokens, f.dim())); err != nil {
				return nil, err
			}
			outs = append(outs, out...)
		}
	}
	return outs, ctx.Synchronize()
}

func (f *fixture) prefill(t testing.TB, ctx *Context, seq *Sequence, index, chunk int) ([]BF16, error) {
	tokens, dim := f.steps[index].Tokens, f.dim()
	if chunk == 0 {
		chunk = tokens
	}
	xs, outs := make([]*Tensor, f.nLayers()), make([]*Tensor, f.nLayers())
	all := nans(f.nLayers() * tokens * dim)
	for layer := range xs {
		xs[layer] = tensorOf(t, f.input(t, index, layer), tokens, dim)
		outs[layer] = tensorOf(t, all[layer*tokens*dim:][:tokens*dim], tokens, dim)
	}
	for first := 0; first < tokens; first += chunk {
		end := first + chunk
		if end > tokens {
			end = tokens
		}
		for layer := range xs {
			x, err := xs[layer].Rows(first, end)
			if err != nil {
				return nil, err
			}
			out, err := outs[layer].Rows(first, end)
			if err != nil {
				return nil, err
			}
			if err := ctx.Prefill(layer, seq, x, int64(first), out); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// nans is an output in which rows that are not written show.
func nans(n int) []BF16 {
	values := make([]BF16, n)
	for i := range values {
		values[i] = 0xFFFF
	}
	return values
}

func tensorOf[T Element](t testing.TB, values []T, shape ...int) *Tensor {
	t.Helper()
	tensor, err := NewTensor(values, shape...)
	if err != nil {
		t.Fatal(err)
	}
	return tensor
}

// compareGolden holds all outputs against the file at the case's tolerance for `out`.
func (f *fixture) compareGolden(t testing.TB, got []BF16) {
	t.Helper()
	var tolerance struct {
		Float struct {
			AtolOfMax float64 `json:"atol_of_max"`
			Rtol      float64 `json:"rtol"`
		} `json:"float"`
	}
	if err := json.Unmarshal([]byte(f.metadata(t, "tolerance")), &tolerance); err != nil {
		t.Fatal(err)
	}
	if tolerance.Float.AtolOfMax == 0 || tolerance.Float.Rtol == 0 {
		t.Fatal("the case has no tolerance for floats")
	}
	for step := range f.steps {
		for layer := 0; layer < f.nLayers(); layer++ {
			name := fmt.Sprintf("step%d.layer%d.out", step, layer)
			want := f.bf16(t, name)
			max := 0.0
			for _, value := range want {
				max = math.Max(max, math.Abs(float64(value.Float32())))
			}
			for i, value := range want {
				a, b := float64(got[i].Float32()), float64(value.Float32())
				if !(math.Abs(a-b) <= tolerance.Float.AtolOfMax*max+tolerance.Float.Rtol*math.Abs(b)) {
					t.Errorf("%s[%d] is %g, want %g", name, i, a, b)
					break
				}
			}
			got = got[len(want):]
		}
	}
	if len(got) != 0 {
		t.Errorf("%d values more than the file has", len(got))
	}
}

func compareBits(t testing.TB, what string, got, want []BF16) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: value %d is %#04x, want %#04x", what, i, got[i], want[i])
		}
	}
}

// wantError checks the sentinel, and that the sentence holds the words.
func wantError(t testing.TB, err, sentinel error, words ...string) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Errorf("got error %v, want %v", err, sentinel)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the sentence %q does not tell %q", err, word)
		}
	}
}

// collect runs finalizers until the condition holds.
func collect(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if runtime.GC(); holds() {
			return
		}
	}
	t.Errorf("%s: not after 10 seconds of collecting", what)
}

// checkpoint is the fixture as a safetensors file with its config.json beside it.
func (f *fixture) checkpoint(t testing.TB) string {
	t.Helper()
	folder := t.TempDir()
	bytes, err := os.ReadFile(f.path)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, "model.safetensors")
	write(t, path, bytes)
	write(t, filepath.Join(folder, "config.json"), []byte(f.metadata(t, "config")))
	return path
}

func write(t testing.TB, path string, bytes []byte) {
	t.Helper()
	if err := os.WriteFile(path, bytes, 0o600); err != nil {
		t.Fatal(err)
	}
}
