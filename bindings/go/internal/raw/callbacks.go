package raw

/*
#include <ds41/ds41.h>
*/
import "C"

import (
	"runtime/cgo"
	"sync"
	"unsafe"
)

// Callback is a Go function that C may call until Delete. Exactly one of the members is set.
//
// The function runs in a goroutine of its own while the thread that called it waits. A panic, or runtime.Goexit, would
// otherwise unwind the stack through frames of C++, which leaves locks held and memory behind. Rethrow hands the panic
// on to whoever made the native call.
type Callback struct {
	Log      func(level int32, message string)
	Progress func(nDone, nTotal uint64, tensor string) bool // false cancels
	Tap      func(tap *Tap)

	handle cgo.Handle
	mu     sync.Mutex
	panics []interface{}
}

// Tap is one intermediate. Data lies in C memory and is lent for the call.
type Tap struct {
	Layer, Span, NTokens int32
	StartPos             int64
	Name                 string
	Form                 Form
	Data                 unsafe.Pointer
}

// Handle is what C gets for `user`; it keeps the callback alive until Delete.
func (c *Callback) Handle() uint {
	if c.handle == 0 {
		c.handle = cgo.NewHandle(c)
	}
	return uint(c.handle)
}

// Delete ends the handle. C must not call any more.
func (c *Callback) Delete() {
	if c != nil && c.handle != 0 {
		c.handle.Delete()
		c.handle = 0
	}
}

// Rethrow panics with the first value that the function has panicked with since the last call.
func (c *Callback) Rethrow() {
	if c == nil {
		return
	}
	c.mu.Lock()
	panics := c.panics
	c.panics = nil
	c.mu.Unlock()
	if len(panics) > 0 {
		panic(panics[0])
	}
}

// run tells whether the function has returned, and not panicked or left by runtime.Goexit.
func (c *Callback) run(function func()) bool {
	returned := false
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if value := recover(); value != nil {
				c.mu.Lock()
				c.panics = append(c.panics, value)
				c.mu.Unlock()
			}
		}()
		function()
		returned = true
	}()
	<-done
	return returned
}

func callbackOf(user C.uintptr_t) *Callback {
	return cgo.Handle(user).Value().(*Callback)
}

//export ds41GoLog
func ds41GoLog(level C.int32_t, message *C.char, user C.uintptr_t) {
	callback, text := callbackOf(user), C.GoString(message)
	callback.run(func() { callback.Log(int32(level), text) })
}

//export ds41GoProgress
func ds41GoProgress(nDone, nTotal C.uint64_t, tensor *C.char, user C.uintptr_t) C.int32_t {
	callback, name, goOn := callbackOf(user), C.GoString(tensor), false
	callback.run(func() { goOn = callback.Progress(uint64(nDone), uint64(nTotal), name) })
	if goOn {
		return 0
	}
	return 1
}

//export ds41GoTap
func ds41GoTap(tap unsafe.Pointer, user C.uintptr_t) {
	callback, from := callbackOf(user), (*C.ds41_tap)(tap)
	to := &Tap{
		Layer:    int32(from.layer),
		Span:     int32(from.span),
		NTokens:  int32(from.n_tokens),
		StartPos: int64(from.start_pos),
		Name:     C.GoString(from.name),
		Form:     *(*Form)(unsafe.Pointer(&from.tensor.shape)),
		Data:     from.tensor.data,
	}
	callback.run(func() { callback.Tap(to) })
}
