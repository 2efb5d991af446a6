package ds41

import (
	"fmt"
	"path/filepath"
	"reflect"
	"testing"
	"unsafe"
)

func TestCheckpointIsDescribedAndLoaded(t *testing.T) {
	f := openFixture(t, "e_fp8_weights")
	path := f.checkpoint(t)
	checkpoint, err := OpenCheckpoint(path)
	if err != nil {
		t.Fatal(err)
	}
	defer checkpoint.Close()
	if checkpoint.Format() != "safetensors" || len(checkpoint.Files()) != 1 || checkpoint.Files()[0] != path ||
		len(checkpoint.Problems()) != 0 {
		t.Errorf("got %s, %v, %v", checkpoint.Format(), checkpoint.Files(), checkpoint.Problems())
	}
	config, err := checkpoint.Config()
	if err != nil || !reflect.DeepEqual(config, f.config) {
		t.Errorf("got %+v, %v", config, err)
	}
	tensors, err := checkpoint.Tensors()
	if err != nil {
		t.Fatal(err)
	}
	dim, rank := f.dim(), int(f.config.QLoraRank)
	want := CheckpointTensor{Layer: 0, Member: "wq_a", Name: "layers.0.attn.wq_a.weight", Type: "F8_E4M3",
		Shape: []int{rank, dim}, DType: DTypeFP8E4M3, NBytes: uint64(rank*dim + rank/32*dim/32),
		NModelBytes: uint64(rank*dim + rank/32*dim/32)}
	if len(tensors) < 8*f.nLayers() || !reflect.DeepEqual(tensors[0], want) {
		t.Errorf("%d tensors, the first is %+v, want %+v", len(tensors), tensors[0], want)
	}
	if q := tensors[1]; q.Member != "q_norm" || len(q.Shape) != 1 {
		t.Errorf("the second tensor is %+v", q)
	}

	outs := f.run(t, f.model(t, nil), 0, 1)
	for _, flags := range []LoadFlags{0, LoadMap} {
		estimate, err := checkpoint.EstimateMemory(&LoadOptions{Flags: flags}, 2, 10, 4)
		if err != nil {
			t.Fatal(err)
		}
		model, err := Load(path, &LoadOptions{Flags: flags, Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer model.Close()
		now, err := model.EstimateMemory(2, 10, 4)
		if err != nil || *now != *estimate || now.Window == 0 || now.Workspace == 0 {
			t.Errorf("flags %d: the checkpoint says %+v, the model %+v, %v", flags, estimate, now, err)
		}
		compareBits(t, "of a loaded model", f.run(t, model, 0, 1), outs)
	}
}

func TestLoadOptionsArriveInC(t *testing.T) {
	f := openFixture(t, "e_fp8_weights")
	path := f.checkpoint(t)
	model, err := Load(path, &LoadOptions{
		Model:      ModelOptions{Backend: "reference"},
		MaxSeqLen:  48,
		FirstLayer: 1,
		NLayers:    2,
		Threads:    2,
		Flags:      LoadExpandFP8,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	config, err := model.Config()
	if err != nil || config.MaxSeqLen != 48 || model.Backend() != "reference" {
		t.Errorf("got %+v on %s, %v", config, model.Backend(), err)
	}
	ctx, seq := newRun(t, model, 1)
	x := tensorOf(t, make([]BF16, f.dim()), 1, f.dim())
	wantError(t, ctx.Prefill(0, seq, x, 0, x), ErrMissingWeights)
	wantError(t, ctx.Prefill(3, seq, x, 0, x), ErrMissingWeights)
	for layer := 1; layer <= 2; layer++ {
		if err := ctx.Prefill(layer, seq, x, 0, x); err != nil {
			t.Error(err)
		}
	}
	if position, err := seq.Position(1); err != nil || position != 1 {
		t.Errorf("layer 1 stands at %d, %v", position, err)
	}
	if position, err := seq.Position(AllLayers); err != nil || position != 1 {
		t.Errorf("the sequence stands at %d, %v", position, err)
	}
	before := seq.Bytes()
	if err := seq.Reserve(48); err != nil || seq.Bytes() <= before {
		t.Errorf("%d bytes before, %d for 48 positions, %v", before, seq.Bytes(), err)
	}
	wantError(t, seq.Reserve(49), ErrInvalidArgument, "49", "48")
	if ctx.Bytes() == 0 {
		t.Error("a context that has computed holds nothing")
	}
	if capturable, err := ctx.DecodeCapturable(1); err != nil || capturable {
		t.Errorf("capturable is %v, %v", capturable, err)
	}
	_, err = ctx.DecodeCapturable(99)
	wantError(t, err, ErrInvalidLayer, "99")

	other := *f.config
	other.WindowSize++
	model, err = Load(path, &LoadOptions{Config: &other})
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	if config, err := model.Config(); err != nil || config.WindowSize != other.WindowSize {
		t.Errorf("got %+v, %v", config, err)
	}
	for _, c := range []struct {
		options  LoadOptions
		sentinel error
	}{
		{LoadOptions{Flags: 1 << 31}, ErrInvalidArgument},
		{LoadOptions{Threads: -1}, ErrInvalidArgument},
		{LoadOptions{Threads: 1 << 33}, ErrInvalidArgument},
		{LoadOptions{MaxSeqLen: -1}, ErrInvalidArgument},
		{LoadOptions{FirstLayer: 99}, ErrInvalidLayer},
		{LoadOptions{NLayers: 99}, ErrInvalidLayer},
		{LoadOptions{Model: ModelOptions{TopK: 7}}, ErrInvalidArgument},
		{LoadOptions{Model: ModelOptions{Backend: "abacus"}}, ErrNoBackend},
		{LoadOptions{Config: &Config{}}, ErrInvalidConfig},
		{LoadOptions{Config: &Config{KVSourceLayers: make([]int32, 300)}}, ErrInvalidConfig},
	} {
		_, err := Load(path, &c.options)
		wantError(t, err, c.sentinel)
	}
	_, err = model.NewContext(&ContextOptions{Threads: -1})
	wantError(t, err, ErrInvalidArgument, "n_threads")
	_, err = model.NewContext(&ContextOptions{Threads: MaxThreads + 1})
	wantError(t, err, ErrInvalidArgument, "n_threads")
	_, err = model.NewContext(&ContextOptions{Flags: 1 << 30})
	wantError(t, err, ErrInvalidArgument, "flags")
	for _, split := range []int{-1, 9} {
		_, err = model.NewContext(&ContextOptions{AttentionSplit: split})
		wantError(t, err, ErrInvalidArgument, "attention_split", fmt.Sprint(split), "[0, 8]")
	}
	_, err = model.NewContext(&ContextOptions{TopKEndPos: -5})
	wantError(t, err, ErrInvalidArgument, "topk_end_pos")
	memory, err := NewMemory(64)
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	_, err = model.NewContext(&ContextOptions{Stream: unsafe.Pointer(&memory.data[0])})
	wantError(t, err, ErrInvalidArgument, "stream")
	pinned, err := model.NewContext(&ContextOptions{Threads: 2, Flags: PinThreads})
	if err != nil {
		t.Fatal(err)
	}
	pinned.Close()
}

func TestProblemsOfACheckpointAreListed(t *testing.T) {
	f := openFixture(t, "a_golden_stable")
	path := f.checkpoint(t)
	write(t, filepath.Join(filepath.Dir(path), "config.json"), []byte(`{"dim": 64}`))
	checkpoint, err := OpenCheckpoint(path)
	if err != nil {
		t.Fatal(err)
	}
	defer checkpoint.Close()
	if len(checkpoint.Problems()) == 0 {
		t.Error("a configuration without layers is no problem")
	}
	_, err = checkpoint.Config()
	wantError(t, err, ErrInvalidFile)
	_, err = Load(path, nil)
	wantError(t, err, ErrInvalidFile)
	_, err = Load(filepath.Dir(path)+"/none", nil)
	wantError(t, err, ErrIO, "none")
}
