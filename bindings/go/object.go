package ds41

import (
	"math"
	"strings"
	"sync"
	"sync/atomic"
)

// object is what everything with a native handle is built on: it sees to it that the handle is freed once, after the
// last call that uses it, and not used after Close. `free` must not lead back to the object, whose finalizer would
// never run.
type object struct {
	kind string
	id   uint64
	free func()
	turn *turn

	mu     sync.Mutex // Guards users and closed.
	users  int
	closed bool
}

// turn is held during calls of those objects that one goroutine may use at a time. A callback of such a call cannot
// use them, it would wait for itself.
type turn struct {
	sync.Mutex
	inCallback int32
}

var lastID uint64

func (o *object) init(kind string, free func()) {
	o.kind, o.free, o.turn, o.id = kind, free, new(turn), atomic.AddUint64(&lastID, 1)
}

// use keeps the native object until release; call and argument are for the error's sentence.
func (o *object) use(call, argument string) error {
	if o == nil {
		return errorf(StatusInvalidArgument, "%s: %s is nil", call, argument)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.free == nil {
		return errorf(StatusInvalidArgument, "%s: %s was not made by a function of this package", call, argument)
	}
	if o.closed {
		return &Error{StatusInvalidArgument, call + ": " + argument + " is a " + o.kind + " that is closed", ErrClosed}
	}
	o.users++
	return nil
}

func (o *object) release() {
	o.mu.Lock()
	o.users--
	last := o.closed && o.users == 0
	o.mu.Unlock()
	if last {
		o.free()
	}
}

// close frees the native object, now or when the last call that uses it is over.
func (o *object) close() {
	if o == nil {
		return
	}
	o.mu.Lock()
	last := !o.closed && o.free != nil && o.users == 0
	o.closed = true
	o.mu.Unlock()
	if last {
		o.free()
	}
}

// lock is use, and waits until no other goroutine is in a call of the object.
func (o *object) lock(call, argument string) error {
	if err := o.use(call, argument); err != nil {
		return err
	}
	if atomic.LoadInt32(&o.turn.inCallback) != 0 {
		o.release()
		return errorf(StatusWrongOrder, "%s: %s is a %s in a call that waits for a callback, which cannot use it", call,
			argument, o.kind)
	}
	o.turn.Lock()
	return nil
}

func (o *object) unlock() {
	o.turn.Unlock()
	o.release()
}

// inCallback runs a callback of a call that holds these turns.
func inCallback(turns []*turn, callback func()) {
	for _, turn := range turns {
		atomic.AddInt32(&turn.inCallback, 1)
	}
	defer func() {
		for _, turn := range turns {
			atomic.AddInt32(&turn.inCallback, -1)
		}
	}()
	callback()
}

// toInt32 leaves what is out of the range of C's int32_t at its end: the call refuses it.
func toInt32(value int) int32 {
	if value > math.MaxInt32 {
		return math.MaxInt32
	}
	if value < math.MinInt32 {
		return math.MinInt32
	}
	return int32(value)
}

// checkString refuses what C would take as a shorter string.
func checkString(call, argument, value string) error {
	if i := strings.IndexByte(value, 0); i >= 0 {
		return errorf(StatusInvalidArgument, "%s: %s has a NUL at byte %d, need a string without", call, argument, i)
	}
	return nil
}

// keep is a further use of an object that is in use.
func (o *object) keep() {
	o.mu.Lock()
	o.users++
	o.mu.Unlock()
}
