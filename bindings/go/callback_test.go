package ds41

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestTapsDeliverWhatTheGoldenFileHolds(t *testing.T) {
	f := openFixture(t, "a_golden_stable")
	model := f.model(t, nil)
	want := f.run(t, model, 0, 1)
	ctx, seq := newRun(t, model, 1)
	type key struct {
		step, layer int
		name        string
	}
	got := map[key]*Tap{}
	starts := map[int64]int{}
	for i, step := range f.steps {
		starts[step.StartPos] = i
	}
	if err := ctx.SetTap(func(tap *Tap) {
		got[key{starts[tap.StartPos], tap.Layer, tap.Name}] = tap
	}, "q", "idx"); err != nil {
		t.Fatal(err)
	}
	outs, err := f.runOn(t, ctx, seq, 0)
	if err != nil {
		t.Fatal(err)
	}
	compareBits(t, "with taps", outs, want)
	if n := 2 * len(f.steps) * f.nLayers(); len(got) != n {
		t.Fatalf("got %d taps, want %d", len(got), n)
	}
	for step := range f.steps {
		for layer := 0; layer < f.nLayers(); layer++ {
			tap := got[key{step, layer, "q"}]
			if tap == nil || tap.Tokens != f.steps[step].Tokens || tap.Span != 0 ||
				fmt.Sprint(tap.Tensor.Shape()) != fmt.Sprint([]int{tap.Tokens, int(f.config.NHeads), int(f.config.HeadDim)}) {
				t.Fatalf("step %d, layer %d: q is %+v", step, layer, tap)
			}
			values, err := Values[BF16](tap.Tensor)
			if err != nil {
				t.Fatal(err)
			}
			golden := f.bf16(t, fmt.Sprintf("step%d.layer%d.q", step, layer))
			max := 0.0
			for _, value := range golden {
				max = math.Max(max, math.Abs(float64(value.Float32())))
			}
			for i, value := range values {
				a, b := float64(value.Float32()), float64(golden[i].Float32())
				if !(math.Abs(a-b) <= (max+math.Abs(b))/128) { // the case's tolerance for q: 2^-7 of both
					t.Fatalf("step %d, layer %d: q[%d] is %g, want %g", step, layer, i, a, b)
				}
			}
			if _, err := Values[int32](got[key{step, layer, "idx"}].Tensor); err != nil {
				t.Errorf("idx: %v", err)
			}
		}
	}

	n := len(got)
	if err := ctx.SetTap(nil); err != nil {
		t.Fatal(err)
	}
	got = map[key]*Tap{}
	if _, err := f.runOn(t, ctx, seq, 0); err != nil {
		t.Fatal(err)
	}
	if len(got) != 0 {
		t.Errorf("%d taps after the tap was removed (%d before)", len(got), n)
	}
	wantError(t, ctx.SetTap(func(*Tap) {}, "q", "nonsense"), ErrInvalidArgument, "nonsense")
	wantError(t, ctx.SetTap(func(*Tap) {}, "q\x00"), ErrInvalidArgument, "NUL")
	wantError(t, ctx.SetTap(func(*Tap) {}, make([]string, 65)...), ErrInvalidArgument, "65", "64")
	if err := ctx.SetTap(func(*Tap) {}, "q", "latent", "index_k", "comp_rows", "index_q", "index_weights", "scores",
		"candidates", "kv_rows", "idx", "o", "ring", "state_kv", "state_gate"); err != nil {
		t.Errorf("all names: %v", err)
	}
}

func TestTapCannotUseWhatItsCallUses(t *testing.T) {
	s := newScene(t)
	other, otherSeq := newRun(t, s.model, 1)
	n := 0
	if err := s.ctx.SetTap(func(*Tap) {
		n++
		wantError(t, s.ctx.Synchronize(), ErrWrongOrder, "callback")
		wantError(t, s.seq.Reset(), ErrWrongOrder, "callback")
		wantError(t, other.Prefill(0, s.seq, s.x, 0, s.x), ErrWrongOrder, "callback")
		if s.seq.Bytes() != 0 || s.ctx.Bytes() != 0 {
			t.Error("got sizes in a tap")
		}
		if err := otherSeq.Reset(); err != nil {
			t.Errorf("another sequence: %v", err)
		}
		x := tensorOf(t, make([]BF16, s.dim()), 1, s.dim())
		if err := other.Prefill(0, otherSeq, x, 0, x); err != nil {
			t.Errorf("another context: %v", err)
		}
	}, "q"); err != nil {
		t.Fatal(err)
	}
	if err := s.ctx.Prefill(0, s.seq, s.x, 0, s.x); err != nil {
		t.Fatal(err)
	}
	step, err := s.ctx.DecodePrep(Span{s.seq, 2, 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := step.Body(0, s.x, s.x); err != nil {
		t.Fatal(err)
	}
	if n != 2 {
		t.Errorf("the tap was called %d times, want 2", n)
	}
	if err := s.ctx.Synchronize(); err != nil {
		t.Errorf("after the tap: %v", err)
	}
}

func TestPanicInACallbackContinuesInItsCall(t *testing.T) {
	s := newScene(t)
	if err := s.ctx.SetTap(func(*Tap) { panic("in a tap") }, "q"); err != nil {
		t.Fatal(err)
	}
	wantPanic(t, "in a tap", func() { s.ctx.Prefill(0, s.seq, s.x, 0, s.x) })
	if err := s.ctx.SetTap(func(*Tap) { runtime.Goexit() }, "q"); err != nil {
		t.Fatal(err)
	}
	if err := s.ctx.Prefill(1, s.seq, s.x, 0, s.x); err != nil {
		t.Errorf("after a tap that has left by Goexit: %v", err)
	}
	if err := s.ctx.SetTap(nil); err != nil {
		t.Fatal(err)
	}
	s.compareGolden(t, s.runAgain(t))

	checkpoint := s.checkpoint(t)
	wantPanic(t, "in progress", func() {
		Load(checkpoint, &LoadOptions{Progress: func(Progress) error { panic("in progress") }})
	})
	_, err := Load(checkpoint, &LoadOptions{Progress: func(Progress) error { runtime.Goexit(); return nil }})
	wantError(t, err, ErrCancelled)
	wantPanic(t, "in log", func() {
		Load(checkpoint, &LoadOptions{Model: ModelOptions{Log: func(LogLevel, string) { panic("in log") }}})
	})
}

func wantPanic(t testing.TB, want string, call func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if got := recover(); got != want {
			t.Errorf("got panic %v, want %q", got, want)
		}
	}()
	call()
}

// What a callback refers to is let go with what it was given to.
func TestCallbacksAreReleased(t *testing.T) {
	s := newScene(t)
	checkpoint := s.checkpoint(t)
	var released [5]int32
	guard := func(i int) *[1 << 10]byte {
		guard := new([1 << 10]byte)
		runtime.SetFinalizer(guard, func(*[1 << 10]byte) { atomic.AddInt32(&released[i], 1) })
		return guard
	}
	tap := func(i int) func(*Tap) {
		guard := guard(i)
		return func(*Tap) { guard[0]++ }
	}
	closed, _ := newRun(t, s.model, 1)
	for _, err := range []error{s.ctx.SetTap(tap(0)), s.ctx.SetTap(tap(1)), closed.SetTap(tap(2)), closed.Close()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	func() {
		progress, log := guard(3), guard(4)
		model, err := Load(checkpoint, &LoadOptions{
			Model:    ModelOptions{Log: func(LogLevel, string) { log[0]++ }},
			Progress: func(Progress) error { progress[0]++; return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		model.Close()
	}()
	collect(t, "callbacks that nobody can call are released", func() bool {
		return atomic.LoadInt32(&released[0])*atomic.LoadInt32(&released[2])*atomic.LoadInt32(&released[3])*
			atomic.LoadInt32(&released[4]) == 1
	})
	if atomic.LoadInt32(&released[1]) != 0 {
		t.Error("the tap of an open context was released")
	}
	runtime.KeepAlive(s.ctx)
}

func TestLogCannotUseItsModelInACall(t *testing.T) {
	s := newScene(t)
	n := 0
	shared := newCore(func(level LogLevel, message string) {
		n++
		if level != LogWarning || message != "a line" {
			t.Errorf("got %d, %q", level, message)
		}
		_, err := s.model.EstimateMemory(1, 1, 1)
		wantError(t, err, ErrWrongOrder, "callback")
	})
	shared.turn = s.model.turn
	if err := s.model.lock("", ""); err != nil {
		t.Fatal(err)
	}
	shared.log.Log(int32(LogWarning), "a line")
	s.model.unlock()
	if _, err := s.model.EstimateMemory(1, 1, 1); err != nil || n != 1 {
		t.Errorf("%d lines, and then %v", n, err)
	}
}

func TestLogTellsTheBackend(t *testing.T) {
	f := openFixture(t, "a_golden_stable")
	var mu sync.Mutex
	var lines []string
	var model *Model
	model = f.model(t, &ModelOptions{Log: func(level LogLevel, message string) {
		mu.Lock()
		defer mu.Unlock()
		if level < LogError || level > LogDebug || message == "" || strings.HasSuffix(message, "\n") {
			t.Errorf("level %d: %q", level, message)
		}
		if model != nil {
			if _, err := model.NewSequence(); err != nil && !errors.Is(err, ErrWrongOrder) {
				t.Error(err)
			}
		}
		lines = append(lines, message)
	}})
	f.compareGolden(t, f.run(t, model, 0, 1))
	mu.Lock()
	defer mu.Unlock()
	if !strings.Contains(strings.Join(lines, "\n"), model.Backend()) {
		t.Errorf("no line names the backend %s: %q", model.Backend(), lines)
	}
}

func TestProgressGoesFromZeroToAll(t *testing.T) {
	f := openFixture(t, "a_golden_stable")
	var seen []Progress
	model, err := Load(f.checkpoint(t), &LoadOptions{Progress: func(p Progress) error {
		seen = append(seen, p)
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	if len(seen) < 2 || seen[0].Done != 0 || seen[len(seen)-1].Done != seen[0].Total || seen[0].Total == 0 {
		t.Fatalf("got %+v", seen)
	}
	for i, p := range seen {
		if p.Total != seen[0].Total || i > 0 && p.Done < seen[i-1].Done || !strings.HasPrefix(p.Tensor, "layers.") {
			t.Errorf("call %d has %+v", i, p)
		}
	}
}

func TestProgressCancelsWithItsReason(t *testing.T) {
	f := openFixture(t, "a_golden_stable")
	checkpoint := f.checkpoint(t)
	reason := errors.New("the user has closed the window")
	for _, last := range []bool{false, true} {
		n := 0
		model, err := Load(checkpoint, &LoadOptions{Progress: func(p Progress) error {
			n++
			if !last || p.Done == p.Total {
				return reason
			}
			return nil
		}})
		if model != nil {
			t.Error("there is a model")
		}
		wantError(t, err, ErrCancelled, "ds41_model_load")
		if !errors.Is(err, reason) {
			t.Errorf("the error does not hold the reason: %v", err)
		}
		if !last && n != 1 {
			t.Errorf("%d calls after the load was cancelled", n-1)
		}
	}
}
