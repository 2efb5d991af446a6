package ds41

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"
)

func TestGoroutinesWithContextsOfTheirOwnGiveTheSameBits(t *testing.T) {
	f := openFixture(t, "a_golden_stable")
	model := f.model(t, nil)
	want := f.run(t, model, 0, 1)
	var group sync.WaitGroup
	for g := 0; g < 4; g++ {
		ctx, seq := newRun(t, model, 1+g%2)
		chunk := g
		group.Add(1)
		go func() {
			defer group.Done()
			for i := 0; i < 5; i++ {
				got, err := f.runOn(t, ctx, seq, chunk)
				if err != nil {
					t.Error(err)
					return
				}
				for i := range got {
					if got[i] != want[i] {
						t.Errorf("chunks of %d: value %d is %#04x, want %#04x", chunk, i, got[i], want[i])
						return
					}
				}
			}
		}()
	}
	group.Wait()
}

// Goroutines that share a context wait for each other, and a step that another one has ended is refused.
func TestStepsOnASharedContextDoNotMix(t *testing.T) {
	f := openFixture(t, "a_golden_stable")
	model := f.model(t, nil)
	ctx, _ := newRun(t, model, 1)
	dim := f.dim()
	const nGoroutines, nSteps = 4, 20
	want := make([][]BF16, nGoroutines)
	x := make([][]BF16, nGoroutines)
	seqs := make([]*Sequence, nGoroutines)
	for g := range x {
		x[g] = make([]BF16, dim)
		for i := range x[g] {
			x[g][i] = ToBF16(float32(g*i%13) - 6)
		}
		_, seqs[g] = newRun(t, model, 1)
		want[g] = nans(dim)
		if err := ctx.Prefill(0, seqs[g], tensorOf(t, x[g], 1, dim), 0, tensorOf(t, want[g], 1, dim)); err != nil {
			t.Fatal(err)
		}
	}
	var group sync.WaitGroup
	for g := 0; g < nGoroutines; g++ {
		g := g
		group.Add(1)
		go func() {
			defer group.Done()
			for i := 0; i < nSteps; {
				if err := seqs[g].Reset(); err != nil {
					t.Error(err)
					return
				}
				step, err := ctx.DecodePrep(Span{seqs[g], 0, 1})
				if err != nil {
					t.Error(err)
					return
				}
				out := nans(dim)
				err = step.Body(0, tensorOf(t, x[g], 1, dim), tensorOf(t, out, 1, dim))
				if errors.Is(err, ErrWrongOrder) {
					continue // another goroutine has begun a step
				}
				if err != nil {
					t.Error(err)
					return
				}
				for j := range out {
					if out[j] != want[g][j] {
						t.Errorf("goroutine %d: value %d is %#04x, want %#04x", g, j, out[j], want[g][j])
						return
					}
				}
				i++
			}
		}()
	}
	group.Wait()
}

func TestStepThatIsOverIsRefused(t *testing.T) {
	s := newScene(t)
	_, other := newRun(t, s.model, 1)
	row := func() *Tensor { return tensorOf(t, make([]BF16, s.dim()), 1, s.dim()) }
	prep := func() *Step {
		t.Helper()
		step, err := s.ctx.DecodePrep(Span{s.seq, 0, 1})
		if err != nil {
			t.Fatal(err)
		}
		return step
	}
	first := prep()
	second := prep()
	wantError(t, first.Body(0, row(), row()), ErrWrongOrder, "Step.Body", "over")
	if _, err := s.ctx.DecodePrep(Span{other, 5, 1}); !errors.Is(err, ErrInvalidPosition) {
		t.Fatalf("got %v", err)
	}
	if err := second.Body(0, row(), row()); err != nil {
		t.Errorf("a step that failed to begin has ended the one before: %v", err)
	}
	third := prep2(t, s, other)
	if err := s.ctx.Prefill(0, other, row(), 0, row()); err != nil {
		t.Fatal(err)
	}
	wantError(t, third.Body(0, row(), row()), ErrWrongOrder, "over")
	fourth := prep2(t, s, s.seq)
	if err := s.seq.Reset(); err != nil {
		t.Fatal(err)
	}
	wantError(t, fourth.Body(1, row(), row()), ErrWrongOrder)
}

func prep2(t testing.TB, s *scene, seq *Sequence) *Step {
	t.Helper()
	position, err := seq.Position(AllLayers)
	if err != nil {
		t.Fatal(err)
	}
	step, err := s.ctx.DecodePrep(Span{seq, position, 1})
	if err != nil {
		t.Fatal(err)
	}
	return step
}

// Contexts that take the same sequences in another order must not wait for each other: whatever the order of the spans,
// a step that waits for the older sequence does not hold the younger one.
func TestSequencesAreTakenInOneOrder(t *testing.T) {
	f := openFixture(t, "a_golden_stable")
	model := f.model(t, nil)
	ctx, older := newRun(t, model, 1)
	_, younger := newRun(t, model, 1)
	if err := older.lock("", ""); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := ctx.DecodePrep(Span{younger, 0, 1}, Span{older, 0, 1})
		done <- err
	}()
	for ctx.turn.TryLock() { // until the step has begun to wait
		ctx.turn.Unlock()
		runtime.Gosched()
	}
	time.Sleep(20 * time.Millisecond)
	if !younger.turn.TryLock() {
		t.Error("the younger sequence is held while the older one is waited for")
	} else {
		younger.turn.Unlock()
	}
	older.unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// What the library promises of a decode step in C: nothing is allocated, in Go neither.
func TestBodyAllocatesNothing(t *testing.T) {
	s := newScene(t)
	x := tensorOf(t, make([]BF16, s.dim()), 1, s.dim())
	step, err := s.ctx.DecodePrep(Span{s.seq, 0, 1})
	if err != nil {
		t.Fatal(err)
	}
	layer := -1
	if n := testing.AllocsPerRun(s.nLayers()-1, func() { // it runs once more than it is told
		layer++
		if err := step.Body(layer, x, x); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%g allocations a layer", n)
	}
}

// Close while others compute: each call either works or tells that the object is closed.
func TestCloseWhileOthersCompute(t *testing.T) {
	for round := 0; round < 10; round++ {
		o := newObjects(t)
		var group sync.WaitGroup
		for g := 0; g < 3; g++ {
			group.Add(1)
			go func() {
				defer group.Done()
				for {
					err := o.seq.Reset()
					if err == nil {
						err = o.ctx.Prefill(0, o.seq, o.x, 0, o.x)
					}
					if errors.Is(err, ErrClosed) {
						return
					}
					// Another goroutine may have come between Reset and Prefill.
					if err != nil && !errors.Is(err, ErrInvalidPosition) {
						t.Error(err)
						return
					}
				}
			}()
		}
		objects := o.all()
		group.Add(len(objects))
		for i := range objects {
			go func(i int) {
				defer group.Done()
				if err := objects[(i+round)%len(objects)].Close(); err != nil {
					t.Error(err)
				}
			}(i)
		}
		group.Wait()
	}
}

func TestBufferIsUsedByOneGoroutineAtATime(t *testing.T) {
	o := newObjects(t)
	var group sync.WaitGroup
	for g := 0; g < 4; g++ {
		value := byte(g + 1)
		group.Add(1)
		go func() {
			defer group.Done()
			block := make([]byte, o.buffer.Len())
			for i := range block {
				block[i] = value
			}
			for i := 0; i < 50; i++ {
				if err := o.buffer.Upload(0, block); err != nil {
					t.Error(err)
				}
				got := make([]byte, len(block))
				if err := o.buffer.Download(0, got); err != nil {
					t.Error(err)
				}
				for j := range got {
					if got[j] != got[0] {
						t.Errorf("uploads have mixed: %d at 0, %d at %d", got[0], got[j], j)
						return
					}
				}
			}
		}()
	}
	group.Wait()
	wantError(t, o.buffer.Upload(uint64(o.buffer.Len()), []byte{1}), ErrInvalidArgument, "ds41_buffer_upload",
		fmt.Sprint(o.buffer.Len()))
	wantError(t, o.buffer.Download(0, make([]byte, o.buffer.Len()+1)), ErrInvalidArgument, "ds41_buffer_download")
}
