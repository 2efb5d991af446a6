package ds41

import (
	"runtime"
	"sort"
	"unsafe"

	"github.com/libds41/libds41/bindings/go/internal/raw"
)

// ContextFlags are options that are on or off, DS41_CTX_* in the header.
type ContextFlags uint32

// PinThreads binds each thread of the context, but not the caller's, to a CPU of its own.
const PinThreads = ContextFlags(raw.DS41_CTX_PIN_THREADS)

// MaxThreads of a context.
const MaxThreads = raw.DS41_MAX_THREADS

// ContextOptions are the options of Model.NewContext; the zero value has the defaults.
type ContextOptions struct {
	Threads    int // That a step may use, the caller's among them. 0: as many as CPUs that the process may run on.
	Flags      ContextFlags
	TopKEndPos int64          // TopKTorchCPU only: rank as if each prefill ended at this position.
	Stream     unsafe.Pointer // A CUDA stream on a CUDA backend; nil elsewhere. Has to outlive the context.

	// CUDA: thread blocks that share the attention of a token's heads, 1 to 8. 0: as many as fill a GPU. The bits are the
	// same for any.
	AttentionSplit int
}

// Context executes steps. Calls from several goroutines run one after the other.
type Context struct {
	object
	native *raw.Ctx
	core   *core
	tap    *tapState
	home   *home

	leftOpen bool // Perhaps a capture that could not be ended, since its stream is still captured.

	step  uint64 // Number of the step that was begun last.
	spans []raw.Span
}

// NewContext makes a context. The model is immutable from here on.
func (m *Model) NewContext(options *ContextOptions) (*Context, error) {
	if err := m.base().lock("Model.NewContext", "the receiver"); err != nil {
		return nil, err
	}
	defer m.unlock()
	if options == nil {
		options = &ContextOptions{}
	}
	nativeOptions := raw.NewCtx_options()
	defer raw.DeleteCtx_options(nativeOptions)
	raw.Ctx_options_init(nativeOptions.Swigcptr())
	nativeOptions.SetN_threads(toInt32(options.Threads))
	nativeOptions.SetFlags(uint32(options.Flags))
	nativeOptions.SetTopk_end_pos(options.TopKEndPos)
	nativeOptions.SetStream(options.Stream)
	nativeOptions.SetAttention_split(toInt32(options.AttentionSplit))
	defer m.core.log.Rethrow()
	var native *raw.Ctx
	if err := errorOf(raw.Ctx_create(&native, m.native, nativeOptions)); err != nil {
		return nil, err
	}
	shared, tap, home := m.core.retain(), &tapState{}, &home{}
	c := &Context{native: native, core: shared, tap: tap, home: home}
	c.init("context", func() {
		home.close(func() { raw.Ctx_destroy(native) })
		tap.callback.Delete()
		tap.callback = nil // what it refers to does not wait for the context to be collected
		shared.release()
	})
	home.turn = c.turn
	runtime.SetFinalizer(c, (*Context).Close)
	return c, nil
}

func (c *Context) base() *object {
	if c == nil {
		return nil
	}
	return &c.object
}

// Close waits for the context's work and frees it. It may be called again.
func (c *Context) Close() error {
	c.base().close()
	return nil
}

// Synchronize waits until everything that was enqueued has finished, and reports faults of that work.
func (c *Context) Synchronize() error {
	if err := c.base().lock("Context.Synchronize", "the receiver"); err != nil {
		return err
	}
	defer c.unlock()
	c.tidy()
	return c.result(raw.Ctx_synchronize(c.native))
}

// Bytes of workspace that the context holds now; 0 after Close, and in a callback of a call that uses it.
func (c *Context) Bytes() uint64 {
	if err := c.base().lock("Context.Bytes", "the receiver"); err != nil {
		return 0
	}
	defer c.unlock()
	return raw.Ctx_get_bytes(c.native)
}

// Prefill runs one layer over new tokens of one sequence: x and out are BF16 [tokens, dim], and may be one tensor.
// The first call of a step begins it; calls for further layers with the same tokens belong to it.
func (c *Context) Prefill(layer int, seq *Sequence, x *Tensor, startPos int64, out *Tensor) error {
	const call = "Context.Prefill"
	if err := c.base().lock(call, "the receiver"); err != nil {
		return err
	}
	defer c.unlock()
	c.tidy()
	if err := seq.base().lock(call, "seq"); err != nil {
		return err
	}
	defer seq.unlock()
	if err := x.use(call, "x"); err != nil {
		return err
	}
	defer x.release()
	if err := out.use(call, "out"); err != nil {
		return err
	}
	defer out.release()
	if c.tap.callback != nil {
		c.tap.turns = []*turn{c.turn, seq.turn}
	}
	nTokens := 1 // of a tensor that the call refuses for its shape
	if x.form.NDims == 2 {
		nTokens = int(x.form.Shape[0])
	}
	failure := raw.Layer_prefill(c.native, toInt32(layer), seq.native, &x.form, x.data, toInt32(nTokens), startPos,
		&out.form, out.data)
	if failure == nil {
		c.step++
	}
	return c.result(failure)
}

// Span is some new tokens of one sequence.
type Span struct {
	Seq      *Sequence
	StartPos int64
	Tokens   int // 1 for a decode step; a few to verify drafts.
}

// Step is what DecodePrep has prepared. It is over when another one begins on its context, also by Prefill, and when
// one of its sequences is reset, closed, or taken into a step of another context.
type Step struct {
	ctx    *Context
	number uint64
	seqs   []*Sequence // By id: two contexts that take the same sequences wait for them in the same order.
	turns  []*turn
}

// DecodePrep begins a step of several sequences: the host half, once for all layers. Row i of the step's tensors is
// token i of the spans' tokens, one span after the other.
func (c *Context) DecodePrep(spans ...Span) (*Step, error) {
	const call = "Context.DecodePrep"
	if err := c.base().lock(call, "the receiver"); err != nil {
		return nil, err
	}
	defer c.unlock()
	c.tidy()
	step := &Step{ctx: c, seqs: make([]*Sequence, 0, len(spans)), turns: make([]*turn, 0, len(spans)+1)}
	for i, span := range spans {
		if span.Seq == nil {
			return nil, errorf(StatusInvalidArgument, "%s: spans[%d].Seq is nil", call, i)
		}
		step.seqs = append(step.seqs, span.Seq)
	}
	sort.Slice(step.seqs, func(i, j int) bool { return step.seqs[i].id < step.seqs[j].id })
	n := 0
	for i, seq := range step.seqs { // C tells about one that is there twice
		if i == 0 || seq != step.seqs[n-1] {
			step.seqs[n] = seq
			n++
		}
	}
	step.seqs = step.seqs[:n]
	step.turns = append(step.turns, c.turn)
	for _, seq := range step.seqs {
		step.turns = append(step.turns, seq.turn)
	}
	if err := step.lockSeqs(call); err != nil {
		return nil, err
	}
	defer step.unlockSeqs()
	c.spans = c.spans[:0]
	for _, span := range spans {
		c.spans = append(c.spans, raw.Span{Seq: span.Seq.native, StartPos: span.StartPos, NTokens: toInt32(span.Tokens)})
	}
	failure := raw.Decode_prep(c.native, c.spans)
	if failure == nil {
		c.step++
		step.number = c.step
	}
	if err := c.result(failure); err != nil {
		return nil, err
	}
	return step, nil
}

// Body enqueues the device half of one layer: x and out are BF16 [rows, dim], and may be one tensor.
func (s *Step) Body(layer int, x, out *Tensor) error {
	const call = "Step.Body"
	if err := s.lock(call); err != nil {
		return err
	}
	defer s.unlock()
	if err := x.use(call, "x"); err != nil {
		return err
	}
	defer x.release()
	if err := out.use(call, "out"); err != nil {
		return err
	}
	defer out.release()
	s.ctx.tap.turns = s.turns
	return s.ctx.result(raw.Decode_body(s.ctx.native, toInt32(layer), &x.form, x.data, &out.form, out.data))
}

// lock takes the context and the sequences for a call that belongs to the step.
func (s *Step) lock(call string) error {
	if s == nil {
		return errorf(StatusInvalidArgument, "%s: the receiver is nil", call)
	}
	if err := s.ctx.base().lock(call, "the context"); err != nil {
		return err
	}
	if s.number != s.ctx.step {
		s.ctx.unlock()
		return errorf(StatusWrongOrder, "%s: the step is over, another one has begun on its context", call)
	}
	if err := s.lockSeqs(call); err != nil {
		s.ctx.unlock()
		return err
	}
	return nil
}

func (s *Step) unlock() {
	s.unlockSeqs()
	s.ctx.unlock()
}

func (s *Step) lockSeqs(call string) error {
	for i, seq := range s.seqs {
		if err := seq.base().lock(call, "a sequence of the step"); err != nil {
			for _, locked := range s.seqs[:i] {
				locked.unlock()
			}
			return err
		}
	}
	return nil
}

func (s *Step) unlockSeqs() {
	for _, seq := range s.seqs {
		seq.unlock()
	}
}

// DecodeCapturable tells whether Step.Body of a layer may be captured into a graph (Step.Capture) as the context
// stands: not on backends without graphs (cpu, reference), nor while a tap is set, nor an index source with
// TopKTorchCPU.
func (c *Context) DecodeCapturable(layer int) (bool, error) {
	if err := c.base().lock("Context.DecodeCapturable", "the receiver"); err != nil {
		return false, err
	}
	defer c.unlock()
	var capturable int32
	if err := errorOf(raw.Decode_capturable(c.native, toInt32(layer), &capturable)); err != nil {
		return false, err
	}
	return capturable != 0, nil
}

// result is errorOf after a call in which callbacks may have panicked.
func (c *Context) result(failure *raw.Failure) error {
	c.core.log.Rethrow()
	c.tap.callback.Rethrow()
	return errorOf(failure)
}
