package ds41

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// graphScene is a model on the simulated device.
type graphScene struct {
	*fixture
	model *Model
}

func newGraphScene(t testing.TB) *graphScene {
	t.Helper()
	folder := os.Getenv("DS41_TEST_PLUGINS")
	if folder == "" {
		t.Skip("DS41_TEST_PLUGINS is not set: there is no simulated device")
	}
	t.Setenv("DS41_PLUGIN_PATH", folder)
	f := openFixture(t, "a_golden_stable")
	s := &graphScene{f, f.model(t, &ModelOptions{Backend: "sim"})}
	if s.model.Backend() != "sim" {
		t.Fatalf("the model runs on %s", s.model.Backend())
	}
	return s
}

func (s *graphScene) allLayers() []int {
	layers := make([]int, s.nLayers())
	for layer := range layers {
		layers[layer] = layer
	}
	return layers
}

// token is one of a text: the case's own tokens, from another one on for each text.
type token struct {
	text, at int
}

// graphRows are inputs and outputs of a step's layers.
type graphRows struct {
	scene   *graphScene
	t       testing.TB
	n       int
	x, out  []*Tensor
	buffers []*Buffer
	inputs  [][]BF16
}

func (s *graphScene) rows(t testing.TB, n int) *graphRows {
	t.Helper()
	r := &graphRows{scene: s, t: t, n: n}
	for layer := range s.allLayers() {
		r.inputs = append(r.inputs, s.input(t, 0, layer))
		for _, tensors := range []*[]*Tensor{&r.x, &r.out} {
			buffer, err := s.model.NewBuffer(n * s.dim() * 2)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { buffer.Close() })
			tensor, err := buffer.Tensor(DTypeBF16, 0, n, s.dim())
			if err != nil {
				t.Fatal(err)
			}
			r.buffers, *tensors = append(r.buffers, buffer), append(*tensors, tensor)
		}
	}
	return r
}

// put uploads inputs; the rows behind them are NaN, and so are the outputs.
func (r *graphRows) put(tokens ...token) {
	r.t.Helper()
	dim := r.scene.dim()
	for layer, input := range r.inputs {
		values := nans(r.n * dim)
		for i, token := range tokens {
			at := (5*token.text + token.at) % r.scene.steps[0].Tokens
			copy(values[i*dim:], input[at*dim:][:dim])
		}
		for i, values := range [][]BF16{values, nans(r.n * dim)} {
			if err := r.buffers[2*layer+i].Upload(0, Bytes(values)); err != nil {
				r.t.Fatal(err)
			}
		}
	}
}

// take is what came out: all layers of the first row, then of the second.
func (r *graphRows) take(ctx *Context) [][]BF16 {
	r.t.Helper()
	if err := ctx.Synchronize(); err != nil {
		r.t.Fatal(err)
	}
	rows, dim := make([][]BF16, r.n), r.scene.dim()
	for _, out := range r.out {
		values, err := Values[BF16](out)
		if err != nil {
			r.t.Fatal(err)
		}
		for i := range rows {
			rows[i] = append(rows[i], values[i*dim:][:dim]...)
		}
	}
	return rows
}

func (r *graphRows) prep(ctx *Context, spans ...Span) *Step {
	r.t.Helper()
	step, err := ctx.DecodePrep(spans...)
	if err != nil {
		r.t.Fatal(err)
	}
	return step
}

func (r *graphRows) body(step *Step, layers ...int) {
	r.t.Helper()
	for _, layer := range layers {
		if err := step.Body(layer, r.x[layer], r.out[layer]); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *graphRows) record(layers ...int) func(*Capture) error {
	return func(c *Capture) error {
		for _, layer := range layers {
			if err := c.Body(layer, r.x[layer], r.out[layer]); err != nil {
				return err
			}
		}
		return nil
	}
}

func (r *graphRows) capture(step *Step, layers ...int) *Graph {
	r.t.Helper()
	graph, err := step.Capture(r.record(layers...))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { graph.Close() })
	return graph
}

func (r *graphRows) launch(step *Step, graph *Graph) {
	r.t.Helper()
	if err := step.Launch(graph); err != nil {
		r.t.Fatal(err)
	}
}

// eager is what the first tokens of a text give without a graph.
func (s *graphScene) eager(t testing.TB, text, n int) [][]BF16 {
	t.Helper()
	ctx, seq := newRun(t, s.model, 0)
	r := s.rows(t, 1)
	var outs [][]BF16
	for at := 0; at < n; at++ {
		r.put(token{text, at})
		r.body(r.prep(ctx, Span{seq, int64(at), 1}), s.allLayers()...)
		outs = append(outs, r.take(ctx)[0])
	}
	return outs
}

func TestGraphGivesTheBitsOfItsLayers(t *testing.T) {
	s := newGraphScene(t)
	want := s.eager(t, 0, s.steps[0].Tokens)
	for _, split := range []int{0, 3, 8} {
		ctx, err := s.model.NewContext(&ContextOptions{AttentionSplit: split})
		if err != nil {
			t.Fatal(err)
		}
		defer ctx.Close()
		_, seq := newRun(t, s.model, 0)
		if capturable, err := ctx.DecodeCapturable(0); err != nil || !capturable {
			t.Fatalf("layer 0 is capturable: %v, %v", capturable, err)
		}
		r := s.rows(t, 1)
		step := r.prep(ctx, Span{seq, 0, 1})
		graph := r.capture(step, s.allLayers()...)
		r.put(token{0, 0})
		r.launch(step, graph) // the step that it was made with has not run
		compareBits(t, "token 0", r.take(ctx)[0], want[0])
		for at := 1; at < len(want); at++ {
			r.put(token{0, at})
			r.launch(r.prep(ctx, Span{seq, int64(at), 1}), graph)
			compareBits(t, "a token behind", r.take(ctx)[0], want[at])
		}
		if position, err := seq.Position(s.nLayers() - 1); err != nil || position != int64(len(want)) {
			t.Errorf("the sequence is at %d (%v)", position, err)
		}
	}
}

func TestGraphServesAllSequencesAndFewerRows(t *testing.T) {
	s := newGraphScene(t)
	texts := [][][]BF16{s.eager(t, 0, 12), s.eager(t, 1, 12)}
	ctx, a := newRun(t, s.model, 0)
	_, b := newRun(t, s.model, 0)
	r := s.rows(t, 3)
	graph := r.capture(r.prep(ctx, Span{a, 0, 2}, Span{b, 0, 1}), s.allLayers()...)
	at := []int{0, 0}
	for _, n := range [][]int{{2, 1}, {1, 0}, {0, 1}, {1, 1}, {0, 3}, {3, 0}, {1, 2}, {0, 1}} {
		var tokens []token
		var spans []Span
		for text, seq := range []*Sequence{a, b} {
			for i := 0; i < n[text]; i++ {
				tokens = append(tokens, token{text, at[text] + i})
			}
			if n[text] > 0 {
				spans = append(spans, Span{seq, int64(at[text]), n[text]})
			}
			at[text] += n[text]
		}
		r.put(tokens...)
		r.launch(r.prep(ctx, spans...), graph)
		rows := r.take(ctx)
		for i, token := range tokens {
			compareBits(t, "a row of the step", rows[i], texts[token.text][token.at])
		}
		for _, row := range rows[len(tokens):] {
			compareBits(t, "a row behind the step's", row, make([]BF16, len(row)))
		}
	}
}

func TestGraphsAndLayersWithoutOneShareAStep(t *testing.T) {
	s := newGraphScene(t)
	ctx, seq := newRun(t, s.model, 0)
	r, want := s.rows(t, 1), s.eager(t, 0, 8)
	all := s.allLayers()
	parts := [][]int{all[:2], all[2:3], all[3:]}
	step := r.prep(ctx, Span{seq, 0, 1})
	var graphs []*Graph
	for _, layers := range parts {
		graphs = append(graphs, r.capture(step, layers...))
	}
	for at := range want {
		r.put(token{0, at})
		step := r.prep(ctx, Span{seq, int64(at), 1})
		for i, layers := range parts {
			if at>>i&1 == 1 {
				r.launch(step, graphs[i])
			} else {
				r.body(step, layers...)
			}
		}
		compareBits(t, "a token", r.take(ctx)[0], want[at])
	}
}

func TestFunctionOfACaptureThatFails(t *testing.T) {
	s := newGraphScene(t)
	ctx, seq := newRun(t, s.model, 0)
	other, err := s.model.NewSequence()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	r, wide := s.rows(t, 1), s.rows(t, 2)
	step := r.prep(ctx, Span{seq, 0, 1})
	own := errors.New("of the function")
	failed := func(record func(*Capture) error) error {
		t.Helper()
		graph, err := step.Capture(func(c *Capture) error {
			if err := c.Body(0, r.x[0], r.out[0]); err != nil {
				t.Error(err)
			}
			return record(c)
		})
		if graph != nil {
			t.Error("a capture that has failed gives a graph")
		}
		return err
	}
	if err := failed(func(*Capture) error { return own }); err != own {
		t.Errorf("got error %v, want that of the function", err)
	}
	func() {
		defer func() {
			if value := recover(); value != "of the function" {
				t.Errorf("recovered %v", value)
			}
		}()
		_ = failed(func(*Capture) error { panic("of the function") })
	}()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = failed(func(*Capture) error { runtime.Goexit(); return nil })
	}()
	<-gone
	_, err = step.Capture(func(*Capture) error { return nil })
	wantError(t, err, ErrWrongOrder, "ds41_graph_end", "no layer")
	_, err = step.Capture(nil)
	wantError(t, err, ErrInvalidArgument, "Step.Capture", "nil")

	// What is refused meanwhile.
	ofC := func(f func() error, words ...string) {
		t.Helper()
		wantError(t, failed(func(*Capture) error { return f() }), ErrWrongOrder, words...)
	}
	ofC(func() error { return r.buffers[0].Upload(0, []byte{1}) }, "ds41_buffer_upload")
	ofC(func() error { return r.buffers[0].Download(0, []byte{1}) }, "ds41_buffer_download")
	ofC(func() error { _, err := s.model.NewBuffer(4); return err }, "ds41_buffer_create")
	ofC(func() error { return other.Reserve(20) }, "ds41_seq_reserve")
	ofC(ctx.Synchronize, "Context.Synchronize", "callback")
	ofC(func() error { return step.Body(1, r.x[1], r.out[1]) }, "Step.Body", "callback")
	ofC(seq.Reset, "Sequence.Reset", "callback")
	ofC(func() error { _, err := step.Capture(r.record(0)); return err }, "Step.Capture", "callback")
	var kept *Capture
	twice := failed(func(c *Capture) error { kept = c; return c.Body(0, r.x[0], r.out[0]) })
	wantError(t, twice, ErrWrongOrder, "layer is 0")
	wantError(t, kept.Body(0, r.x[0], r.out[0]), ErrWrongOrder, "Capture.Body", "over")
	wantError(t, (&Capture{}).Body(0, r.x[0], r.out[0]), ErrWrongOrder, "Capture.Body", "over")
	wantError(t, (*Capture)(nil).Body(0, r.x[0], r.out[0]), ErrInvalidArgument, "Capture.Body", "nil")
	wantError(t, failed(func(c *Capture) error { return c.Body(1, nil, r.out[1]) }), ErrInvalidArgument, "x is nil")
	wantError(t, failed(func(c *Capture) error { return c.Body(1, wide.x[1], wide.out[1]) }), ErrInvalidShape, "[2, 64]")
	slice := tensorOf(t, nans(s.dim()), 1, s.dim())
	wantError(t, failed(func(c *Capture) error { return c.Body(1, slice, r.out[1]) }), ErrInvalidArgument, "x")

	// All of it has changed nothing, and keeps nothing.
	graph := r.capture(step, s.allLayers()...)
	r.put(token{0, 0})
	r.launch(step, graph)
	compareBits(t, "after captures that have failed", r.take(ctx)[0], s.eager(t, 0, 1)[0])
	graph.Close()
	for _, buffer := range r.buffers {
		if buffer.users != 0 {
			t.Errorf("a buffer has %d users", buffer.users)
		}
	}
}

// What is refused to the thread that captures is refused however often the function waits.
func TestCaptureStaysOnItsThread(t *testing.T) {
	s := newGraphScene(t)
	ctx, seq := newRun(t, s.model, 0)
	r := s.rows(t, 1)
	done := make(chan struct{})
	var others sync.WaitGroup
	for i := 0; i < 2*runtime.GOMAXPROCS(0); i++ {
		others.Add(1)
		go func() {
			defer others.Done()
			for {
				select {
				case <-done:
					return
				default:
					time.Sleep(50 * time.Microsecond)
				}
			}
		}()
	}
	graph, err := r.prep(ctx, Span{seq, 0, 1}).Capture(func(c *Capture) error {
		for i := 0; i < 200; i++ {
			time.Sleep(100 * time.Microsecond)
			if err := r.buffers[0].Upload(0, []byte{1}); !errors.Is(err, ErrWrongOrder) {
				t.Errorf("an upload after %d waits: %v", i, err)
				break
			}
		}
		return r.record(s.allLayers()...)(c)
	})
	close(done)
	others.Wait()
	if err != nil {
		t.Fatal(err)
	}
	graph.Close()
}

func TestStreamOfAnExternalCaptureIsItsOwnersToCapture(t *testing.T) {
	s := newGraphScene(t)
	ctx, seq := newRun(t, s.model, 0)
	r := s.rows(t, 1)
	step := r.prep(ctx, Span{seq, 0, 1})
	_, err := step.CaptureExternal(r.record(0))
	wantError(t, err, ErrWrongOrder, "ds41_decode_body", "not being captured")
	_, err = step.CaptureExternal(func(*Capture) error { return nil })
	wantError(t, err, ErrWrongOrder, "ds41_graph_end", "no layer")
	r.put(token{0, 0})
	r.launch(step, r.capture(step, s.allLayers()...))
	compareBits(t, "after it", r.take(ctx)[0], s.eager(t, 0, 1)[0])
	if users := r.buffers[0].users; r.buffers[0].Data() == nil || r.buffers[0].users != users {
		t.Error("a buffer has no address, or who asks for it stays a user")
	}
	r.buffers[0].Close()
	if r.buffers[0].Data() != nil {
		t.Error("a buffer that is closed has an address")
	}
}

func TestLaunchesThatAreRefusedChangeNothing(t *testing.T) {
	s := newGraphScene(t)
	ctx, seq := newRun(t, s.model, 0)
	foreign, other := newRun(t, s.model, 0)
	r, wide := s.rows(t, 1), s.rows(t, 9)
	all, consumer := s.allLayers(), 0
	for layer := range all {
		if role, err := s.config.Role(layer); err == nil && role.Ratio > 0 && !role.IsIndexSource {
			consumer = layer
			break
		}
	}
	if consumer == 0 {
		t.Fatal("no layer takes the selection of another one")
	}
	step := r.prep(ctx, Span{seq, 0, 1})
	whole, part := r.capture(step, all...), r.capture(step, consumer)
	wantError(t, step.Launch(part), ErrWrongOrder, "ds41_graph_launch", "layer")
	wantError(t, step.Launch(nil), ErrInvalidArgument, "Step.Launch", "g is nil")
	wantError(t, step.Launch(&Graph{}), ErrInvalidArgument, "not made by a function of this package")
	foreignGraph := r.capture(r.prep(foreign, Span{other, 0, 1}), 0)
	wantError(t, step.Launch(foreignGraph), ErrInvalidArgument, "another context")
	foreign.Close()
	wantError(t, step.Launch(foreignGraph), ErrInvalidArgument, "another context")
	wantError(t, r.prep(ctx, Span{seq, 0, 1}, Span{other, 0, 1}).Launch(whole), ErrInvalidShape, "2 rows")
	wantError(t, step.Launch(whole), ErrWrongOrder, "the step is over")
	_, err := step.Capture(r.record(0))
	wantError(t, err, ErrWrongOrder, "the step is over")

	if err := ctx.SetTap(func(*Tap) {}); err != nil {
		t.Fatal(err)
	}
	step = r.prep(ctx, Span{seq, 0, 1})
	wantError(t, step.Launch(whole), ErrWrongOrder, "tap")
	_, err = step.Capture(r.record(0))
	wantError(t, err, ErrWrongOrder, "tap")
	if err := ctx.SetTap(nil); err != nil {
		t.Fatal(err)
	}

	r.put(token{0, 0})
	r.body(step, 0)
	_, err = step.Capture(r.record(1))
	wantError(t, err, ErrWrongOrder, "layer 0")
	wantError(t, step.Launch(whole), ErrInvalidPosition, "start_pos")
	if err := seq.Reset(); err != nil {
		t.Fatal(err)
	}
	wantError(t, step.Launch(whole), ErrWrongOrder, "over")
	step = r.prep(ctx, Span{seq, 0, 1})
	r.launch(step, whole)
	want := s.eager(t, 0, 3)
	compareBits(t, "after launches that were refused", r.take(ctx)[0], want[0])
	wantError(t, step.Launch(whole), ErrInvalidPosition, "start_pos")

	// Selections of nine rows lie elsewhere, and a graph that takes one from outside has to be captured again.
	wide.put(token{1, 0})
	wide.body(wide.prep(ctx, Span{other, 0, 9}), all...)
	r.put(token{0, 1})
	step = r.prep(ctx, Span{seq, 1, 1})
	r.body(step, all[:consumer]...)
	wantError(t, step.Launch(part), ErrWrongOrder, "stale")
	r.body(step, all[consumer:]...)
	compareBits(t, "without the stale graph", r.take(ctx)[0], want[1])
	step = r.prep(ctx, Span{seq, 2, 1})
	part = r.capture(step, consumer)
	r.put(token{0, 2})
	r.body(step, all[:consumer]...)
	r.launch(step, part)
	r.body(step, all[consumer+1:]...)
	compareBits(t, "captured again", r.take(ctx)[0], want[2])
}

func TestGraphKeepsItsBuffersAndClosesInAnyOrder(t *testing.T) {
	s := newGraphScene(t)
	want := s.eager(t, 0, 1)
	for name, order := range map[string][]int{
		"parents first":  {0, 1, 2, 3},
		"children first": {3, 2, 1, 0},
		"mixed":          {2, 1, 3, 0},
	} {
		t.Run(name, func(t *testing.T) {
			own := &graphScene{s.fixture, s.fixture.model(t, &ModelOptions{Backend: "sim"})}
			ctx, seq := newRun(t, own.model, 0)
			r := own.rows(t, 1)
			r.put(token{0, 0})
			step := r.prep(ctx, Span{seq, 0, 1})
			graph := r.capture(step, own.allLayers()...)
			var freed int32
			for _, buffer := range r.buffers {
				free := buffer.free
				buffer.free = func() { free(); atomic.AddInt32(&freed, 1) }
			}
			open := map[int]bool{0: true, 1: true, 2: true, 3: true}
			for n := 0; n < 2; n++ {
				for _, i := range order {
					switch i {
					case 0:
						own.model.Close()
					case 1:
						ctx.Close()
					case 2:
						for _, buffer := range r.buffers {
							buffer.Close()
						}
					default:
						graph.Close()
					}
					open[i] = false
					switch launched := step.Launch(graph); {
					case !open[1] || !open[3]:
						wantError(t, launched, ErrClosed, "Step.Launch", "closed")
					case launched == nil:
						if err := ctx.Synchronize(); err != nil {
							t.Error(err)
						}
						if err := seq.Reset(); err != nil {
							t.Error(err)
						}
						step = r.prep(ctx, Span{seq, 0, 1})
					default:
						t.Error(launched)
					}
					wantFreed := int32(0)
					if !open[2] && !open[3] {
						wantFreed = int32(len(r.buffers))
					}
					if got := atomic.LoadInt32(&freed); got != wantFreed {
						t.Errorf("%d buffers are freed, want %d", got, wantFreed)
					}
				}
			}
		})
	}
	ctx, seq := newRun(t, s.model, 0)
	r := s.rows(t, 1)
	r.put(token{0, 0})
	step := r.prep(ctx, Span{seq, 0, 1})
	graph := r.capture(step, s.allLayers()...)
	for i, buffer := range r.buffers {
		if i%2 == 0 {
			buffer.Close() // inputs
		}
	}
	r.launch(step, graph)
	compareBits(t, "from closed buffers", r.take(ctx)[0], want[0])
}

func TestGraphThatIsClosedDuringACallOfItsContext(t *testing.T) {
	s := newGraphScene(t)
	ctx, seq := newRun(t, s.model, 0)
	r, want := s.rows(t, 1), s.eager(t, 0, 10)
	step := r.prep(ctx, Span{seq, 0, 1})
	first := r.capture(step, s.allLayers()...)
	graph, err := step.Capture(func(c *Capture) error {
		first.Close()
		if len(ctx.home.retired) != 1 {
			t.Error("the graph does not wait for its context")
		}
		return r.record(s.allLayers()...)(c)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer graph.Close()
	if users := r.buffers[0].users; users != 2 {
		t.Errorf("a buffer of two graphs has %d users", users)
	}
	if err := ctx.Synchronize(); err != nil || len(ctx.home.retired) != 0 || r.buffers[0].users != 1 {
		t.Errorf("the graph still waits, or its buffers do (%v)", err)
	}
	for at := range want {
		r.put(token{0, at})
		step := r.prep(ctx, Span{seq, int64(at), 1})
		spare := r.capture(step, s.allLayers()...)
		var group sync.WaitGroup
		group.Add(1)
		go func() {
			defer group.Done()
			spare.Close()
		}()
		r.launch(step, graph)
		group.Wait()
		compareBits(t, "a token", r.take(ctx)[0], want[at])
	}
}

func TestDroppedGraphIsFreed(t *testing.T) {
	s := newGraphScene(t)
	ctx, seq := newRun(t, s.model, 0)
	var freed int32
	func() {
		r := s.rows(t, 1)
		graph, err := r.prep(ctx, Span{seq, 0, 1}).Capture(r.record(0))
		if err != nil {
			t.Fatal(err)
		}
		free := graph.free
		graph.free = func() { free(); atomic.AddInt32(&freed, 1) }
	}()
	collect(t, "a graph without a user is freed", func() bool { return atomic.LoadInt32(&freed) == 1 })
}

func TestBackendsInHostMemoryHaveNoGraphs(t *testing.T) {
	for _, backend := range []string{"cpu", "reference"} {
		f := openFixture(t, "a_golden_stable")
		ctx, seq := newRun(t, f.model(t, &ModelOptions{Backend: backend}), 1)
		if capturable, err := ctx.DecodeCapturable(0); err != nil || capturable {
			t.Errorf("%s: layer 0 is capturable: %v, %v", backend, capturable, err)
		}
		step, err := ctx.DecodePrep(Span{seq, 0, 1})
		if err != nil {
			t.Fatal(err)
		}
		for _, capture := range []func(func(*Capture) error) (*Graph, error){step.Capture, step.CaptureExternal} {
			_, err = capture(func(*Capture) error { t.Error("a capture that has not begun"); return nil })
			wantError(t, err, ErrUnsupported, "ds41_graph_begin", backend, "no graphs")
		}
	}
}
