package ds41

import (
	"strings"
	"unsafe"

	"github.com/libds41/libds41/bindings/go/internal/raw"
)

// Tap is one intermediate of a layer.
type Tap struct {
	Layer    int
	Span     int // Index of the span in the step.
	Tokens   int // Of the span.
	StartPos int64
	Name     string  // One of those that the header lists, such as "idx".
	Tensor   *Tensor // A copy.
}

// tapState is what the callback of a context reads. It does not lead to the context, which the table of callbacks would
// keep alive.
type tapState struct {
	callback *raw.Callback
	turns    []*turn // Held by the call that delivers.
}

// SetTap delivers intermediates of further layers to a function, all or those that are named; it replaces the previous
// one. nil removes it. The function cannot use the context and the sequences of the step.
func (c *Context) SetTap(tap func(*Tap), names ...string) error {
	const call = "Context.SetTap"
	if err := c.base().lock(call, "the receiver"); err != nil {
		return err
	}
	defer c.unlock()
	if len(names) > raw.DS41_GO_MAX_TAP_NAMES {
		return errorf(StatusInvalidArgument, "%s: got %d names, need at most %d", call, len(names),
			raw.DS41_GO_MAX_TAP_NAMES)
	}
	for _, name := range names {
		if err := checkString(call, "names", name); err != nil {
			return err
		}
	}
	state := c.tap
	var next *raw.Callback
	var user uint
	if tap != nil {
		next = &raw.Callback{Tap: func(from *raw.Tap) {
			inCallback(state.turns, func() { tap(tapOf(from)) })
		}}
		user = next.Handle()
	}
	if err := errorOf(raw.Ctx_set_tap(c.native, strings.Join(names, "\x00"), int32(len(names)), user)); err != nil {
		next.Delete()
		return err
	}
	state.callback.Delete()
	state.callback = next
	return nil
}

func tapOf(from *raw.Tap) *Tap {
	tensor := &Tensor{form: from.Form}
	var nBytes uint64
	if raw.Tensor_bytes(&from.Form, &nBytes) == nil && nBytes > 0 {
		tensor.data = append([]byte(nil), unsafe.Slice((*byte)(from.Data), int(nBytes))...)
	}
	return &Tap{
		Layer:    int(from.Layer),
		Span:     int(from.Span),
		Tokens:   int(from.NTokens),
		StartPos: from.StartPos,
		Name:     from.Name,
		Tensor:   tensor,
	}
}
