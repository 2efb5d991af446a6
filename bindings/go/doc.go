// Package ds41 runs the attention layers of DeepSeek-V4.1 with libds41, which it finds by pkg-config. It is for
// platforms of 64 bits.
//
// What the library computes, and what shapes, positions and layers mean, is written in its header, ds41.h. Names here
// are those of the header: ds41_layer_prefill is [Context.Prefill], ds41_decode_prep and ds41_decode_body are
// [Context.DecodePrep] and [Step.Body]. On a GPU a step's layers may be captured into a [Graph] and launched as one:
// [Step.Capture], [Step.Launch].
//
// # Errors
//
// A failed call returns an *[Error] with the status and a sentence that names the argument, what came and what is
// accepted. There is a sentinel for each status:
//
//	if errors.Is(err, ds41.ErrInvalidShape) { ... }
//
// # Lifetimes
//
// Objects may be closed in any order: a child keeps what it needs of its parent. Close may be called again, and while
// another goroutine is in a call: the object is freed when that call is over. A call on a closed object returns an
// error that is [ErrClosed]. Objects that are dropped without Close are freed some time after the garbage collector
// finds them, which knows nothing of the memory that they hold outside Go: close what is large. A graph keeps the
// memory of the buffers that its layers work on, also when they are closed.
//
// # Memory
//
// A [Tensor] is a view of a slice, also of one cut out of a struct or an array, or of memory outside Go: [Buffer],
// [Memory], [File]. It keeps its owner alive. Slices are read and written in place; C keeps no pointer to them after a
// call. Weights are copied, unless they lie outside Go and [Model.BorrowLayer] lends them.
//
// # Goroutines
//
// A [Model] may be used by any number of goroutines at once, and so may a [File], a [Checkpoint], a [Memory] and a
// [Tensor]. Calls on one [Context], [Sequence] or [Buffer] from several goroutines run one after the other; to compute
// at once, each goroutine takes a context and sequences of its own. A [Step] is refused once another one has begun on
// its context, so that goroutines that share a context cannot mix their steps up. What the tensors hold is not guarded:
// as with any slice, who writes does so alone. The race detector does not see what C reads and writes.
//
// Callbacks (log, progress, tap) run in a goroutine of their own while the call that they belong to waits. A panic in
// one continues in the goroutine of that call once C has returned. A callback may use other objects; those that the
// waiting call is about refuse with [ErrWrongOrder], where they would otherwise wait for themselves.
//
// The function that a capture runs stays on its goroutine, which is bound to its thread meanwhile; it, too, cannot use
// the context and the sequences of its step but through its [Capture].
//
// A host's own parallel-for (ds41_ctx_options.parallel) is not offered: its work would cross between C and Go for each
// part of a step. The library's threads are told with [ContextOptions].Threads.
package ds41
