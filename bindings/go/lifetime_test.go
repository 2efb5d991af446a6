package ds41

import (
	"errors"
	"io"
	"runtime"
	"sync/atomic"
	"testing"
)

// objects of each kind, the parents before their children.
type objects struct {
	*fixture
	memory     *Memory
	checkpoint *Checkpoint
	model      *Model
	ctx        *Context
	seq        *Sequence
	buffer     *Buffer
	x          *Tensor
}

func newObjects(t testing.TB) *objects {
	t.Helper()
	f := openFixture(t, "a_golden_stable")
	o := &objects{fixture: f}
	checkpoint := f.checkpoint(t)
	var err error
	must := func(failed error) {
		t.Helper()
		if failed != nil {
			t.Fatal(failed)
		}
	}
	o.memory, err = NewMemory(64)
	must(err)
	o.checkpoint, err = OpenCheckpoint(checkpoint)
	must(err)
	o.model, err = Load(checkpoint, nil)
	must(err)
	o.ctx, err = o.model.NewContext(&ContextOptions{Threads: 1})
	must(err)
	o.seq, err = o.model.NewSequence()
	must(err)
	o.buffer, err = o.model.NewBuffer(2 * f.dim() * 2)
	must(err)
	must(o.buffer.Upload(0, make([]byte, o.buffer.Len())))
	o.x, err = o.buffer.Tensor(DTypeBF16, 0, 2, f.dim())
	must(err)
	return o
}

func (o *objects) all() []io.Closer {
	return []io.Closer{o.file, o.memory, o.checkpoint, o.model, o.ctx, o.seq, o.buffer}
}

func TestObjectsCloseInAnyOrderAndTwice(t *testing.T) {
	for name, order := range map[string][]int{
		"parents first":  {0, 1, 2, 3, 4, 5, 6},
		"children first": {6, 5, 4, 3, 2, 1, 0},
		"mixed":          {4, 3, 6, 0, 5, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			o := newObjects(t)
			if err := o.ctx.Prefill(0, o.seq, o.x, 0, o.x); err != nil {
				t.Fatal(err)
			}
			for n := 0; n < 2; n++ {
				for _, i := range order {
					if err := o.all()[i].Close(); err != nil {
						t.Errorf("Close of %d: %v", i, err)
					}
				}
			}
		})
	}
}

func TestChildrenOutliveTheirParents(t *testing.T) {
	f := openFixture(t, "a_golden_stable")
	want := f.run(t, f.model(t, nil), 0, 1)
	model := f.model(t, nil)
	ctx, seq := newRun(t, model, 1)
	model.Close()
	got, err := f.runOn(t, ctx, seq, 0)
	if err != nil {
		t.Fatal(err)
	}
	compareBits(t, "after Close of the model", got, want)
}

func TestUseAfterCloseIsAnError(t *testing.T) {
	o := newObjects(t)
	open := newObjects(t)
	bufferTensor, fileTensor := o.x, mustTensor(t, o.file, "layers.0.attn.wq_a.weight")
	memoryTensor, err := o.memory.Tensor(DTypeU8, 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	step, err := o.ctx.DecodePrep(Span{o.seq, 0, 2})
	if err != nil {
		t.Fatal(err)
	}
	closedSeqStep, err := open.ctx.DecodePrep(Span{open.seq, 0, 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range o.all() {
		object.Close()
	}
	second := func(_ interface{}, err error) error { return err }
	third := func(_ string, _ bool, err error) error { return err }
	for name, err := range map[string]error{
		"Model.Config":              second(o.model.Config()),
		"Model.EstimateMemory":      second(o.model.EstimateMemory(1, 1, 1)),
		"Model.SetLayer":            o.model.SetLayer(0, &LayerWeights{}),
		"Model.NewContext":          second(o.model.NewContext(nil)),
		"Model.NewSequence":         second(o.model.NewSequence()),
		"Model.NewBuffer":           second(o.model.NewBuffer(1)),
		"Context.Prefill":           o.ctx.Prefill(0, open.seq, open.x, 0, open.x),
		"Context.DecodePrep":        second(o.ctx.DecodePrep(Span{open.seq, 0, 1})),
		"Context.Synchronize":       o.ctx.Synchronize(),
		"Context.SetTap":            o.ctx.SetTap(nil),
		"Context.DecodeCapturable":  second(o.ctx.DecodeCapturable(0)),
		"Step.Body":                 step.Body(0, open.x, open.x),
		"Prefill of a closed seq":   open.ctx.Prefill(0, o.seq, open.x, 0, open.x),
		"DecodePrep of closed seq":  second(open.ctx.DecodePrep(Span{o.seq, 0, 1})),
		"Prefill of closed buffer":  open.ctx.Prefill(0, open.seq, bufferTensor, 0, open.x),
		"Prefill into closed":       open.ctx.Prefill(0, open.seq, open.x, 0, bufferTensor),
		"Sequence.Reset":            o.seq.Reset(),
		"Sequence.Position":         second(o.seq.Position(0)),
		"Sequence.Reserve":          o.seq.Reserve(1),
		"Buffer.Upload":             o.buffer.Upload(0, []byte{1}),
		"Buffer.Download":           o.buffer.Download(0, []byte{1}),
		"Buffer.Tensor":             second(o.buffer.Tensor(DTypeU8, 0, 1)),
		"Memory.Write":              o.memory.Write(0, []byte{1}),
		"Memory.Read":               o.memory.Read(0, []byte{1}),
		"Memory.Tensor":             second(o.memory.Tensor(DTypeU8, 0, 1)),
		"File.Tensor":               second(o.file.Tensor("layers.0.attn.wq_a.weight")),
		"File.Metadata":             third(o.file.Metadata("config")),
		"File.LayerWeights":         second(o.file.LayerWeights(0)),
		"LayerWeights without any":  second(o.file.LayerWeights(99)),
		"Checkpoint.Config":         second(o.checkpoint.Config()),
		"Checkpoint.Tensors":        second(o.checkpoint.Tensors()),
		"Checkpoint.EstimateMemory": second(o.checkpoint.EstimateMemory(nil, 1, 1, 1)),
		"CopyBytes of a file":       second(fileTensor.CopyBytes()),
		"CopyBytes of a buffer":     second(bufferTensor.CopyBytes()),
		"CopyBytes of memory":       second(memoryTensor.CopyBytes()),
		"SetLayer of a closed file": open.newEmpty(t).SetLayer(0, &LayerWeights{WqA: fileTensor}),
	} {
		if !errors.Is(err, ErrClosed) || !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("%s: got %v, want ErrClosed", name, err)
		}
	}
	if o.seq.Bytes() != 0 || o.ctx.Bytes() != 0 {
		t.Error("closed objects hold memory")
	}
	open.seq.Close()
	wantError(t, closedSeqStep.Body(0, open.x, open.x), ErrClosed, "Step.Body", "sequence", "closed")
}

func mustTensor(t testing.TB, file *File, name string) *Tensor {
	t.Helper()
	tensor, err := file.Tensor(name)
	if err != nil {
		t.Fatal(err)
	}
	return tensor
}

func TestTensorKeepsItsOwner(t *testing.T) {
	f := openFixture(t, "a_golden_stable")
	file, err := OpenFile(f.path)
	if err != nil {
		t.Fatal(err)
	}
	memory, err := NewMemory(1 << 16)
	if err != nil {
		t.Fatal(err)
	}
	if err := memory.Write(1<<15, []byte{42}); err != nil {
		t.Fatal(err)
	}
	buffer, err := f.newEmpty(t).NewBuffer(1 << 16)
	if err != nil {
		t.Fatal(err)
	}
	if err := buffer.Upload(1<<15, []byte{43}); err != nil {
		t.Fatal(err)
	}
	const name = "layers.0.attn.wq_a.weight"
	want, err := mustTensor(t, f.file, name).CopyBytes()
	if err != nil {
		t.Fatal(err)
	}
	inFile := mustTensor(t, file, name)
	inMemory, err := memory.Tensor(DTypeU8, 1<<15, 16, 4)
	if err != nil {
		t.Fatal(err)
	}
	inBuffer, err := buffer.Tensor(DTypeU8, 1<<15, 16, 4)
	if err != nil {
		t.Fatal(err)
	}
	view, err := inMemory.Rows(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	inMemory = nil
	var freed [3]int32
	for i, o := range []*object{file.base(), memory.base(), buffer.base()} {
		free, n := o.free, &freed[i]
		o.free = func() { free(); atomic.AddInt32(n, 1) }
	}
	file, memory, buffer = nil, nil, nil // only tensors lead to them now
	for i := 0; i < 5; i++ {
		runtime.GC()
	}
	got, err := inFile.CopyBytes()
	if err != nil || string(got) != string(want) {
		t.Errorf("the tensor of the file has changed (%v)", err)
	}
	if got, err = view.CopyBytes(); err != nil || got[0] != 42 {
		t.Errorf("the memory has %d (%v)", got, err)
	}
	if got, err = inBuffer.CopyBytes(); err != nil || got[0] != 43 {
		t.Errorf("the buffer has %d (%v)", got, err)
	}
	for i := range freed {
		if atomic.LoadInt32(&freed[i]) != 0 {
			t.Errorf("owner %d was freed while a tensor views it", i)
		}
	}
	runtime.KeepAlive(inFile)
	runtime.KeepAlive(view)
	runtime.KeepAlive(inBuffer)
	inFile, view, inBuffer = nil, nil, nil
	collect(t, "owners without tensors are freed", func() bool {
		return atomic.LoadInt32(&freed[0])+atomic.LoadInt32(&freed[1])+atomic.LoadInt32(&freed[2]) == 3
	})
}

// Dropped objects are freed, with a log and a tap that refer to what they need.
func TestDroppedObjectsAreFreed(t *testing.T) {
	f := openFixture(t, "a_golden_stable")
	var freed int32
	func() {
		model, err := NewModel(f.config, &ModelOptions{Log: func(LogLevel, string) {}})
		if err != nil {
			t.Fatal(err)
		}
		for layer := range f.config.CompressRatios {
			weights, err := f.file.LayerWeights(layer)
			if err == nil {
				err = model.SetLayer(layer, weights)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		ctx, err := model.NewContext(nil)
		if err != nil {
			t.Fatal(err)
		}
		taps := 0
		if err := ctx.SetTap(func(*Tap) { taps++ }); err != nil {
			t.Fatal(err)
		}
		seq, err := model.NewSequence()
		if err != nil {
			t.Fatal(err)
		}
		x := tensorOf(t, make([]BF16, f.dim()), 1, f.dim())
		if err := ctx.Prefill(0, seq, x, 0, x); err != nil {
			t.Fatal(err)
		}
		if taps == 0 {
			t.Error("no tap was delivered")
		}
		for _, o := range []*object{model.base(), ctx.base(), seq.base()} {
			free := o.free
			o.free = func() { free(); atomic.AddInt32(&freed, 1) }
		}
	}()
	collect(t, "model, context and sequence are freed", func() bool { return atomic.LoadInt32(&freed) == 3 })
}

func TestBorrowedMemoryIsKeptForTheModelAndItsChildren(t *testing.T) {
	f := openFixture(t, "a_golden_stable")
	want := f.run(t, f.model(t, nil), 0, 1)
	model := f.newEmpty(t)
	var memories []*Memory
	var freed int32
	for layer := range f.config.CompressRatios {
		weights, err := f.file.LayerWeights(layer)
		if err != nil {
			t.Fatal(err)
		}
		inSlices := *weights
		for i, entry := range weights.all() {
			if *entry == nil {
				continue
			}
			bytes, err := (*entry).CopyBytes()
			if err != nil {
				t.Fatal(err)
			}
			memory, err := NewMemory(len(bytes))
			if err != nil {
				t.Fatal(err)
			}
			free := memory.free
			memory.free = func() { free(); atomic.AddInt32(&freed, 1) }
			memories = append(memories, memory)
			if err := memory.Write(0, bytes); err != nil {
				t.Fatal(err)
			}
			slice, err := NewTensorOf((*entry).DType(), bytes, (*entry).Shape()...)
			if err != nil {
				t.Fatal(err)
			}
			*inSlices.all()[i] = slice
			if *entry, err = memory.Tensor((*entry).DType(), 0, (*entry).Shape()...); err != nil {
				t.Fatal(err)
			}
		}
		wantError(t, model.BorrowLayer(layer, &inSlices), ErrInvalidArgument, "wq_a", "slice", "Memory")
		if err := model.BorrowLayer(layer, weights); err != nil {
			t.Fatal(err)
		}
	}
	estimate, err := model.EstimateMemory(1, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	copied, err := f.model(t, nil).EstimateMemory(1, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	if estimate.Weights >= copied.Weights/2 {
		t.Errorf("the model holds %d bytes of weights, of %d that were borrowed", estimate.Weights, copied.Weights)
	}
	ctx, seq := newRun(t, model, 1)
	for _, memory := range memories {
		memory.Close()
	}
	model.Close()
	got, err := f.runOn(t, ctx, seq, 0)
	if err != nil {
		t.Fatal(err)
	}
	compareBits(t, "borrowed from closed memory", got, want)
	if n := atomic.LoadInt32(&freed); n != 0 {
		t.Errorf("%d memories were freed under a context", n)
	}
	ctx.Close()
	seq.Close()
	if n := atomic.LoadInt32(&freed); int(n) != len(memories) {
		t.Errorf("%d of %d memories were freed with the last child", n, len(memories))
	}
}
