package ds41

import (
	"runtime"
	"sync"

	"github.com/libds41/libds41/bindings/go/internal/raw"
)

// Graph is the device half of a decode step, or of some layers of one, as one launch: Step.Capture. It keeps the memory
// of the buffers that its layers work on, whose addresses are in it, also when they are closed.
type Graph struct {
	object
	native *raw.Graph
	home   *home
}

// home is what a context shares with its graphs: by it they know each other, and here graphs that are closed while the
// context is in a call wait for the next one. It leads to neither.
type home struct {
	turn *turn // Of the context.

	mu      sync.Mutex // Guards what follows; nobody waits for the turn with it.
	closed  bool       // The context was destroyed.
	retired []func()
}

// destroy runs what destroys a graph, now or when the context is in no other call.
func (h *home) destroy(graph func()) {
	h.mu.Lock()
	closed := h.closed
	if !closed && !h.turn.TryLock() {
		h.retired = append(h.retired, graph)
		h.mu.Unlock()
		return
	}
	h.mu.Unlock()
	graph()
	if !closed {
		h.turn.Unlock()
	}
}

// tidy destroys what is waiting; the turn is held, or the context is gone.
func (h *home) tidy() {
	h.mu.Lock()
	retired := h.retired
	h.retired = nil
	h.mu.Unlock()
	for _, graph := range retired {
		graph()
	}
}

// close runs what destroys the context.
func (h *home) close(ctx func()) {
	h.turn.Lock() // a graph may be on its way
	ctx()
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.turn.Unlock()
	h.tidy()
}

func (g *Graph) base() *object {
	if g == nil {
		return nil
	}
	return &g.object
}

// Close waits for the context's work and frees the graph; while the context is in a call, that is left to its next one.
// It may come after that of the context, and be called again.
func (g *Graph) Close() error {
	g.base().close()
	return nil
}

// Capture is what the function of Step.Capture records layers with, for as long as it runs.
type Capture struct {
	ctx *Context

	mu     sync.Mutex
	over   bool
	owners []*object // In use until the graph is freed.
}

// Body records one layer: x and out are BF16 [rows, dim] in buffers, and may be one tensor. A launch uses the same
// places again, and checks that what the layer reads has been published.
func (c *Capture) Body(layer int, x, out *Tensor) error {
	const call = "Capture.Body"
	if c == nil {
		return errorf(StatusInvalidArgument, "%s: the receiver is nil", call)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx == nil || c.over {
		return errorf(StatusWrongOrder, "%s: the capture is over, need one that Step.Capture runs its function with", call)
	}
	if err := x.use(call, "x"); err != nil {
		return err
	}
	defer x.release()
	if err := out.use(call, "out"); err != nil {
		return err
	}
	defer out.release()
	failure := raw.Decode_body(c.ctx.native, toInt32(layer), &x.form, x.data, &out.form, out.data)
	if failure == nil {
		c.keep(x.owner)
		c.keep(out.owner)
	}
	return c.ctx.result(failure)
}

func (c *Capture) keep(owner *object) {
	if owner == nil {
		return // C takes no slice for device memory
	}
	for _, kept := range c.owners {
		if kept == owner {
			return
		}
	}
	owner.keep()
	c.owners = append(c.owners, owner)
}

// end stops recording and gives the owners away.
func (c *Capture) end() []*object {
	c.mu.Lock()
	defer c.mu.Unlock()
	owners := c.owners
	c.over, c.owners = true, nil
	return owners
}

// Capture makes a graph of the layers that the function records. Nothing runs, and nothing changes: the step may be the
// first that the graph is launched on. It gives the number of rows.
//
// Meanwhile the function cannot use the context and the sequences of the step, and what allocates or copies device
// memory is refused with ErrWrongOrder. When it returns an error, which comes out as it is, panics, or records nothing,
// there is no graph. The backend may have none: Context.DecodeCapturable.
func (s *Step) Capture(record func(*Capture) error) (*Graph, error) {
	return s.capture("Step.Capture", 0, record)
}

// CaptureExternal is Capture for the owner of the context's stream: the function begins and ends the capture of the
// stream, into a graph of the owner's, with the layers and whatever else there is to enqueue in between. The owner
// launches that graph on the stream right after each Launch of the one that this returns, which only checks and
// advances the sequences, and never after that one is closed.
//
// When the function returns with the stream still being captured, that is the error, and the context refuses steps
// until the stream's capture has ended.
func (s *Step) CaptureExternal(record func(*Capture) error) (*Graph, error) {
	return s.capture("Step.CaptureExternal", uint32(raw.DS41_GRAPH_EXTERNAL), record)
}

func (s *Step) capture(call string, flags uint32, record func(*Capture) error) (*Graph, error) {
	if record == nil {
		return nil, errorf(StatusInvalidArgument, "%s: record is nil", call)
	}
	if err := s.lock(call); err != nil {
		return nil, err
	}
	defer s.unlock()
	runtime.LockOSThread() // a capture belongs to the thread that begins it
	defer runtime.UnlockOSThread()
	c := s.ctx
	if err := errorOf(raw.Graph_begin(c.native, flags)); err != nil {
		return nil, err
	}
	capture := &Capture{ctx: c}
	ended := false
	defer func() { // of a function that has failed, has panicked, or ends its goroutine
		for _, owner := range capture.end() {
			owner.release()
		}
		if !ended {
			c.leftOpen = !c.discard() && flags != 0
		}
	}()
	var err error
	inCallback(s.turns, func() { err = record(capture) })
	if err != nil {
		return nil, err
	}
	var native *raw.Graph
	failure := raw.Graph_end(c.native, &native)
	ended = true
	c.leftOpen = failure != nil && flags != 0
	if failure != nil {
		return nil, errorOf(failure)
	}
	owners, shared, home := capture.end(), c.core.retain(), c.home
	g := &Graph{native: native, home: home}
	g.init("graph", func() {
		home.destroy(func() {
			raw.Graph_destroy(native)
			for _, owner := range owners {
				owner.release()
			}
			shared.release()
		})
	})
	runtime.SetFinalizer(g, (*Graph).Close)
	return g, nil
}

// Launch enqueues the layers of a graph, with the bits of Body for each. The step may have fewer rows than the graph:
// those of its outputs behind them become zeros. In one step, graphs and layers that run by Body take turns, in
// ascending order of layers.
//
// A graph has to be captured again when a selection that it takes from a layer outside of it lies elsewhere since a
// larger step ran (ErrWrongOrder).
func (s *Step) Launch(g *Graph) error {
	const call = "Step.Launch"
	if err := s.lock(call); err != nil {
		return err
	}
	defer s.unlock()
	if err := g.base().use(call, "g"); err != nil {
		return err
	}
	defer g.release()
	if g.home != s.ctx.home {
		return errorf(StatusInvalidArgument, "%s: g was captured on another context, need one of the step's", call)
	}
	return s.ctx.result(raw.Graph_launch(g.native))
}

// discard ends a capture without a result, and tells whether there was one that could be ended.
func (c *Context) discard() bool {
	var native *raw.Graph
	if raw.Graph_end(c.native, &native) != nil {
		return false
	}
	raw.Graph_destroy(native)
	return true
}

// tidy does what closed graphs, and a capture that could not be ended, have left to the next call.
func (c *Context) tidy() {
	c.home.tidy()
	if c.leftOpen && c.discard() {
		c.leftOpen = false
	}
}
