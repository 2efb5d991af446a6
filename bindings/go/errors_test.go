package ds41

import (
	"errors"
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/libds41/libds41/bindings/go/internal/raw"
)

// scene is a model with weights, a context, a sequence, and rows that fit.
type scene struct {
	*fixture
	model *Model
	ctx   *Context
	seq   *Sequence
	x     *Tensor // [2, dim]
}

func newScene(t testing.TB) *scene {
	t.Helper()
	f := openFixture(t, "a_golden_stable")
	s := &scene{fixture: f, model: f.model(t, nil)}
	s.ctx, s.seq = newRun(t, s.model, 1)
	s.x = tensorOf(t, make([]BF16, 2*f.dim()), 2, f.dim())
	return s
}

var sentinels = map[Status]error{
	StatusInvalidArgument: ErrInvalidArgument,
	StatusInvalidStruct:   ErrInvalidStruct,
	StatusInvalidDType:    ErrInvalidDType,
	StatusInvalidShape:    ErrInvalidShape,
	StatusInvalidLayer:    ErrInvalidLayer,
	StatusInvalidPosition: ErrInvalidPosition,
	StatusInvalidConfig:   ErrInvalidConfig,
	StatusWrongOrder:      ErrWrongOrder,
	StatusMissingWeights:  ErrMissingWeights,
	StatusUnsupported:     ErrUnsupported,
	StatusNoBackend:       ErrNoBackend,
	StatusOutOfMemory:     ErrOutOfMemory,
	StatusDeviceError:     ErrDevice,
	StatusIOError:         ErrIO,
	StatusInvalidFile:     ErrInvalidFile,
	StatusMissingTensor:   ErrMissingTensor,
	StatusCancelled:       ErrCancelled,
	StatusInternal:        ErrInternal,
}

func TestEachStatusIsItsSentinelAndNoOther(t *testing.T) {
	for status := range sentinels {
		err := errorOf(&raw.Failure{Status: int32(status), Message: "a sentence"})
		for other, sentinel := range sentinels {
			if errors.Is(err, sentinel) != (other == status) {
				t.Errorf("%v: errors.Is of %v is wrong", status, other)
			}
		}
		if failed, ok := err.(*Error); !ok || failed.Status != status || failed.Message != "a sentence" {
			t.Errorf("%v: got %#v", status, err)
		}
	}
	if err := errorOf(nil); err != nil {
		t.Errorf("no failure gives the error %v", err)
	}
}

func TestEachStatusIsProvoked(t *testing.T) {
	s := newScene(t)
	dim := s.dim()
	folder := t.TempDir()
	gguf := filepath.Join(folder, "newer.gguf")
	write(t, gguf, append([]byte("GGUF\x63\x00\x00\x00"), make([]byte, 16)...)) // version 99
	text := filepath.Join(folder, "text.safetensors")
	write(t, text, []byte("this is no safetensors file"))
	wrongConfig := *s.config
	wrongConfig.HeadDim = 33
	empty, err := NewModel(s.config, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()
	emptyCtx, emptySeq := newRun(t, empty, 1)
	checkpoint := s.checkpoint(t)

	for _, c := range []struct {
		name     string
		call     func() error
		sentinel error
		words    []string
	}{
		{"nil x", func() error { return s.ctx.Prefill(0, s.seq, nil, 0, s.x) }, ErrInvalidArgument, []string{"x is nil"}},
		{"overlap", func() error {
			rows := make([]BF16, 3*dim)
			return s.ctx.Prefill(0, s.seq, tensorOf(t, rows[:2*dim], 2, dim), 0, tensorOf(t, rows[dim:], 2, dim))
		}, ErrInvalidArgument, []string{"ds41_layer_prefill"}},
		{"misaligned", func() error {
			bytes := make([]byte, 2*dim*2+1)
			x, err := NewTensorOf(DTypeBF16, bytes[1:], 2, dim)
			if err != nil {
				return err
			}
			return s.ctx.Prefill(0, s.seq, x, 0, x)
		}, ErrInvalidArgument, []string{"ds41_layer_prefill"}},
		{"a sequence of another model", func() error { return s.ctx.Prefill(0, emptySeq, s.x, 0, s.x) },
			ErrInvalidArgument, []string{"seq"}},
		{"struct without init", func() error {
			config := raw.NewConfig()
			defer raw.DeleteConfig(config)
			return errorOf(raw.Config_validate(config))
		}, ErrInvalidStruct, []string{"struct_size"}},
		{"f32 rows", func() error {
			x := tensorOf(t, make([]float32, 2*dim), 2, dim)
			return s.ctx.Prefill(0, s.seq, x, 0, s.x)
		}, ErrInvalidDType, []string{"x", "F32", "BF16"}},
		{"wide rows", func() error {
			x := tensorOf(t, make([]BF16, 2*(dim+1)), 2, dim+1)
			return s.ctx.Prefill(0, s.seq, x, 0, s.x)
		}, ErrInvalidShape, []string{"x", "65", "64"}},
		{"transposed rows", func() error {
			x := tensorOf(t, make([]BF16, 2*dim), dim, 2)
			return s.ctx.Prefill(0, s.seq, x, 0, s.x)
		}, ErrInvalidShape, []string{"x", "64, 2"}},
		{"flat rows", func() error {
			x := tensorOf(t, make([]BF16, 2*dim), 2*dim)
			return s.ctx.Prefill(0, s.seq, x, 0, s.x)
		}, ErrInvalidShape, []string{"x", "128"}},
		{"layer beyond", func() error { return s.ctx.Prefill(6, s.seq, s.x, 0, s.x) }, ErrInvalidLayer, []string{"6"}},
		{"layer beyond 32 bits", func() error { return s.ctx.Prefill(1<<32, s.seq, s.x, 0, s.x) }, ErrInvalidLayer, nil},
		{"layer below 32 bits", func() error { return s.ctx.Prefill(-1<<40, s.seq, s.x, 0, s.x) }, ErrInvalidLayer, nil},
		{"gap", func() error { return s.ctx.Prefill(0, s.seq, s.x, 7, s.x) }, ErrInvalidPosition, []string{"7", "0"}},
		{"config", func() error { _, err := NewModel(&wrongConfig, nil); return err }, ErrInvalidConfig,
			[]string{"head_dim", "33"}},
		{"too many layers", func() error {
			config := *s.config
			config.CompressRatios = make([]int32, 257)
			return config.Validate()
		}, ErrInvalidConfig, []string{"CompressRatios", "257", "256"}},
		{"consumer before its source", func() error { return s.ctx.Prefill(3, s.seq, s.x, 0, s.x) }, ErrWrongOrder, nil},
		{"no weights", func() error { return emptyCtx.Prefill(0, emptySeq, s.x, 0, s.x) }, ErrMissingWeights, nil},
		{"newer GGUF", func() error { _, err := OpenCheckpoint(gguf); return err }, ErrUnsupported, []string{"99"}},
		{"backend", func() error { _, err := NewModel(s.config, &ModelOptions{Backend: "abacus"}); return err },
			ErrNoBackend, []string{"abacus", "cpu"}},
		{"memory", func() error { _, err := s.model.NewBuffer(math.MaxInt64 / 2); return err }, ErrOutOfMemory, nil},
		{"no file", func() error { _, err := OpenFile(filepath.Join(folder, "none")); return err }, ErrIO,
			[]string{"none"}},
		{"no safetensors", func() error { _, err := OpenFile(text); return err }, ErrInvalidFile, nil},
		{"no tensor", func() error { _, err := s.file.Tensor("layers.0.attn.wq_z"); return err }, ErrMissingTensor,
			[]string{"wq_z"}},
		{"cancelled", func() error {
			_, err := Load(checkpoint, &LoadOptions{Progress: func(Progress) error { return errors.New("enough") }})
			return err
		}, ErrCancelled, nil},
	} {
		t.Run(c.name, func(t *testing.T) { wantError(t, c.call(), c.sentinel, c.words...) })
	}

	// None of them has left anything behind.
	s.compareGolden(t, s.runAgain(t))
}

func (s *scene) runAgain(t testing.TB) []BF16 {
	t.Helper()
	outs, err := s.runOn(t, s.ctx, s.seq, 0)
	if err != nil {
		t.Fatal(err)
	}
	return outs
}

func TestNilAndZeroValuesAreErrors(t *testing.T) {
	s := newScene(t)
	var (
		noModel      *Model
		noContext    *Context
		noSequence   *Sequence
		noStep       *Step
		noBuffer     *Buffer
		noGraph      *Graph
		noMemory     *Memory
		noFile       *File
		noCheckpoint *Checkpoint
		noTensor     *Tensor
		noConfig     *Config
	)
	second := func(_ interface{}, err error) error { return err }
	for name, err := range map[string]error{
		"NewModel":                  second(NewModel(nil, nil)),
		"Config.Validate":           noConfig.Validate(),
		"Config.Role":               second(noConfig.Role(0)),
		"Model.SetLayer":            noModel.SetLayer(0, &LayerWeights{}),
		"SetLayer(nil)":             openFixture(t, "a_golden_stable").newEmpty(t).SetLayer(0, nil),
		"SetLayer without tensors":  openFixture(t, "a_golden_stable").newEmpty(t).SetLayer(0, &LayerWeights{}),
		"Model.NewContext":          second(noModel.NewContext(nil)),
		"Model.NewSequence":         second(noModel.NewSequence()),
		"Model.NewBuffer":           second(noModel.NewBuffer(1)),
		"NewBuffer(0)":              second(s.model.NewBuffer(0)),
		"NewBuffer(-1)":             second(s.model.NewBuffer(-1)),
		"Model.Config":              second(noModel.Config()),
		"Model.EstimateMemory":      second(noModel.EstimateMemory(1, 1, 1)),
		"Context.Prefill":           noContext.Prefill(0, s.seq, s.x, 0, s.x),
		"Prefill of nil seq":        s.ctx.Prefill(0, nil, s.x, 0, s.x),
		"Prefill into nil":          s.ctx.Prefill(0, s.seq, s.x, 0, nil),
		"Prefill of zero x":         s.ctx.Prefill(0, s.seq, &Tensor{}, 0, s.x),
		"Prefill on zero":           new(Context).Prefill(0, s.seq, s.x, 0, s.x),
		"Prefill of zero seq":       s.ctx.Prefill(0, &Sequence{}, s.x, 0, s.x),
		"Context.DecodePrep":        second(noContext.DecodePrep(Span{s.seq, 0, 1})),
		"DecodePrep of nothing":     second(s.ctx.DecodePrep()),
		"DecodePrep of nil":         second(s.ctx.DecodePrep(Span{nil, 0, 1})),
		"DecodePrep of zero":        second(s.ctx.DecodePrep(Span{&Sequence{}, 0, 1})),
		"DecodePrep of one twice":   second(s.ctx.DecodePrep(Span{s.seq, 0, 1}, Span{s.seq, 0, 1})),
		"Context.Synchronize":       noContext.Synchronize(),
		"Context.SetTap":            noContext.SetTap(nil),
		"Context.DecodeCapturable":  second(noContext.DecodeCapturable(0)),
		"Step.Body":                 noStep.Body(0, s.x, s.x),
		"Step.Body on zero":         new(Step).Body(0, s.x, s.x),
		"Step.Capture":              second(noStep.Capture(func(*Capture) error { return nil })),
		"Step.Capture on zero":      second(new(Step).Capture(func(*Capture) error { return nil })),
		"Step.CaptureExternal":      second(noStep.CaptureExternal(nil)),
		"Step.Launch":               noStep.Launch(nil),
		"Step.Launch on zero":       new(Step).Launch(&Graph{}),
		"Sequence.Reset":            noSequence.Reset(),
		"Sequence.Position":         second(noSequence.Position(0)),
		"Sequence.Reserve":          noSequence.Reserve(1),
		"Buffer.Upload":             noBuffer.Upload(0, nil),
		"Buffer.Download":           noBuffer.Download(0, nil),
		"Buffer.Tensor":             second(noBuffer.Tensor(DTypeU8, 0, 1)),
		"Memory.Write":              noMemory.Write(0, nil),
		"Memory.Tensor":             second(noMemory.Tensor(DTypeU8, 0, 1)),
		"NewMemory(0)":              second(NewMemory(0)),
		"File.Tensor":               second(noFile.Tensor("x")),
		"Checkpoint.Config":         second(noCheckpoint.Config()),
		"Checkpoint.Tensors":        second(noCheckpoint.Tensors()),
		"Checkpoint.EstimateMemory": second(noCheckpoint.EstimateMemory(nil, 1, 1, 1)),
		"Tensor.CopyBytes":          second(noTensor.CopyBytes()),
		"Tensor.Rows":               second(noTensor.Rows(0, 1)),
		"Tensor.WithScales":         second(noTensor.WithScales(nil)),
		"Values":                    second(Values[float32](nil)),
		"a NUL in a path":           second(OpenFile("a\x00b")),
		"a NUL in a backend":        second(NewModel(s.config, &ModelOptions{Backend: "cpu\x00"})),
		"a NUL in a name":           second(s.file.Tensor("a\x00")),
	} {
		wantError(t, err, ErrInvalidArgument)
		if err != nil && len(err.Error()) < 20 {
			t.Errorf("%s: %q is no sentence", name, err)
		}
	}
	wantError(t, second(noTensor.AsQ2K()), ErrInvalidDType)
	for _, close := range []func() error{noModel.Close, noContext.Close, noSequence.Close, noBuffer.Close, noMemory.Close,
		noGraph.Close, noFile.Close, noCheckpoint.Close, new(Context).Close, new(Graph).Close} {
		if err := close(); err != nil {
			t.Error(err)
		}
	}
	if noSequence.Bytes() != 0 || noContext.Bytes() != 0 || noModel.Backend() != "" || noTensor.Shape() != nil ||
		noBuffer.Data() != nil {
		t.Error("getters of nil have to give nothing")
	}
}

func (f *fixture) newEmpty(t testing.TB) *Model {
	t.Helper()
	model, err := NewModel(f.config, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	return model
}

// The sentence is kept per thread, and goroutines move between threads: each has to get its own.
func TestSentencesDoNotMixBetweenGoroutines(t *testing.T) {
	s := newScene(t)
	var group sync.WaitGroup
	for g := 0; g < 16; g++ {
		name := strings.Repeat("n", g+1)
		group.Add(1)
		go func() {
			defer group.Done()
			for i := 0; i < 200; i++ {
				_, err := s.file.Tensor(name)
				var failed *Error
				if !errors.As(err, &failed) || !strings.Contains(failed.Message, `'`+name+`'`) &&
					!strings.Contains(failed.Message, `"`+name+`"`) && !strings.Contains(failed.Message, " "+name+" ") {
					t.Errorf("the sentence for %s is %v", name, err)
					return
				}
				runtime.Gosched()
			}
		}()
	}
	group.Wait()
}

func TestConstantsAreThoseOfTheHeader(t *testing.T) {
	for name, pair := range map[string][2]int{
		"OK":               {int(StatusOK), int(raw.DS41_STATUS_OK)},
		"INVALID_ARGUMENT": {int(StatusInvalidArgument), int(raw.DS41_STATUS_INVALID_ARGUMENT)},
		"INVALID_STRUCT":   {int(StatusInvalidStruct), int(raw.DS41_STATUS_INVALID_STRUCT)},
		"INVALID_DTYPE":    {int(StatusInvalidDType), int(raw.DS41_STATUS_INVALID_DTYPE)},
		"INVALID_SHAPE":    {int(StatusInvalidShape), int(raw.DS41_STATUS_INVALID_SHAPE)},
		"INVALID_LAYER":    {int(StatusInvalidLayer), int(raw.DS41_STATUS_INVALID_LAYER)},
		"INVALID_POSITION": {int(StatusInvalidPosition), int(raw.DS41_STATUS_INVALID_POSITION)},
		"INVALID_CONFIG":   {int(StatusInvalidConfig), int(raw.DS41_STATUS_INVALID_CONFIG)},
		"WRONG_ORDER":      {int(StatusWrongOrder), int(raw.DS41_STATUS_WRONG_ORDER)},
		"MISSING_WEIGHTS":  {int(StatusMissingWeights), int(raw.DS41_STATUS_MISSING_WEIGHTS)},
		"UNSUPPORTED":      {int(StatusUnsupported), int(raw.DS41_STATUS_UNSUPPORTED)},
		"NO_BACKEND":       {int(StatusNoBackend), int(raw.DS41_STATUS_NO_BACKEND)},
		"OUT_OF_MEMORY":    {int(StatusOutOfMemory), int(raw.DS41_STATUS_OUT_OF_MEMORY)},
		"IO_ERROR":         {int(StatusIOError), int(raw.DS41_STATUS_IO_ERROR)},
		"INVALID_FILE":     {int(StatusInvalidFile), int(raw.DS41_STATUS_INVALID_FILE)},
		"MISSING_TENSOR":   {int(StatusMissingTensor), int(raw.DS41_STATUS_MISSING_TENSOR)},
		"CANCELLED":        {int(StatusCancelled), int(raw.DS41_STATUS_CANCELLED)},
		"INTERNAL":         {int(StatusInternal), int(raw.DS41_STATUS_INTERNAL)},
		"NONE":             {int(DTypeNone), int(raw.DS41_DTYPE_NONE)},
		"F32":              {int(DTypeF32), int(raw.DS41_DTYPE_F32)},
		"BF16":             {int(DTypeBF16), int(raw.DS41_DTYPE_BF16)},
		"FP8_E4M3":         {int(DTypeFP8E4M3), int(raw.DS41_DTYPE_FP8_E4M3)},
		"Q2_K":             {int(DTypeQ2K), int(raw.DS41_DTYPE_Q2_K)},
		"I32":              {int(DTypeI32), int(raw.DS41_DTYPE_I32)},
		"U8":               {int(DTypeU8), int(raw.DS41_DTYPE_U8)},
		"I8":               {int(DTypeI8), int(raw.DS41_DTYPE_I8)},
		"F16":              {int(DTypeF16), int(raw.DS41_DTYPE_F16)},
		"UE8M0":            {int(DTypeUE8M0), int(raw.DS41_DTYPE_UE8M0)},
		"TOPK_STABLE":      {int(TopKStable), int(raw.DS41_TOPK_STABLE)},
		"TOPK_TORCH_CPU":   {int(TopKTorchCPU), int(raw.DS41_TOPK_TORCH_CPU)},
		"LOG_ERROR":        {int(LogError), int(raw.DS41_LOG_ERROR)},
		"LOG_WARNING":      {int(LogWarning), int(raw.DS41_LOG_WARNING)},
		"LOG_INFO":         {int(LogInfo), int(raw.DS41_LOG_INFO)},
		"LOG_DEBUG":        {int(LogDebug), int(raw.DS41_LOG_DEBUG)},
		"ALL_LAYERS":       {AllLayers, raw.DS41_ALL_LAYERS},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %d here and %d in the header", name, pair[0], pair[1])
		}
	}
	n := 0
	for status := Status(1); status < 256; status++ { // a status that a later library adds needs a sentinel
		if name := status.String(); strings.HasPrefix(name, "DS41_STATUS_") {
			n++
			if sentinels[status] == nil {
				t.Errorf("%s has no sentinel", name)
			}
		}
	}
	if n < 17 {
		t.Errorf("the library knows %d statuses", n)
	}
	if DTypeFP8E4M3.String() != "FP8_E4M3" || DType(77).String() != "unknown dtype" {
		t.Errorf("dtypes are called %v and %v", DTypeFP8E4M3, DType(77))
	}
	if Version() != HeaderVersion() {
		t.Errorf("the library is %s, the header %s", Version(), HeaderVersion())
	}
}
