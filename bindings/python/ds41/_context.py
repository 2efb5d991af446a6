"""Contexts: they execute steps."""
from __future__ import annotations

import contextlib
import operator
import os
import threading
import weakref
from typing import Any, Callable, Iterable, Iterator, List, NamedTuple, Optional, Tuple, Union

from . import _ds41
from ._errors import Error, InvalidArgumentError, WrongOrderError
from ._graph import Graph, Step, captured_handle, in_step
from ._handle import Exclusive, Handle, Owner, expect
from ._model import Model, need_callable
from ._sequence import ALL_LAYERS, Sequence
from ._tensor import Dtype, Tensor, as_output, as_rows, empty_like, host_tensor

Parallel = Callable[[int, Callable[[int], None]], object]
TAP_NAMES: Tuple[str, ...] = (
    "q", "latent", "index_k", "comp_rows", "index_q", "index_weights", "scores", "candidates", "kv_rows", "idx", "o",
    "ring", "state_kv", "state_gate",
)  # fmt: skip


class Span(NamedTuple):
    """New tokens of one sequence; start_pos None is where the sequence stands."""

    seq: Sequence
    n_tokens: int = 1
    start_pos: Optional[int] = None


class Tap(NamedTuple):
    """One intermediate of a layer. The values are a copy, which may be kept."""

    layer: int
    span: int
    n_tokens: int
    start_pos: int
    name: str
    tensor: Tensor


def _tap_receiver(tap: Callable[[Tap], object], errors: List[BaseException]) -> Callable[..., None]:
    def receive(
        layer: int, span: int, n_tokens: int, start_pos: int, name: str, described: Any, data: bytearray
    ) -> None:
        try:
            tensor = host_tensor(data, Dtype(described[2]), described[3])
            tap(Tap(layer, span, n_tokens, start_pos, name, tensor))
        except BaseException as error:  # comes out of the step's call
            errors.append(error)

    return receive


def _parallel_runner(parallel: Parallel, errors: List[BaseException]) -> Callable[[int, int, int], None]:
    """Makes sure of what the library demands, whatever the function does: each task once, none after the return."""

    def run(n: int, task: int, task_arg: int) -> None:
        condition = threading.Condition()
        started = bytearray(n)
        state = {"running": 0, "over": False}

        def call(index: int) -> None:
            index = operator.index(index)
            with condition:
                if state["over"]:
                    raise WrongOrderError("Context: a task is called after its parallel-for has returned")
                if not 0 <= index < n or started[index]:
                    raise InvalidArgumentError(f"Context: task {index} is called, need each of [0, {n}) once")
                started[index] = 1
                state["running"] += 1
            try:
                _ds41.run_task(task, task_arg, index)
            finally:
                with condition:
                    state["running"] -= 1
                    condition.notify_all()

        try:
            parallel(n, call)
        except BaseException as error:  # comes out of the step's call
            errors.append(error)
        with condition:
            state["over"] = True
            condition.wait_for(lambda: state["running"] == 0)
        for index in range(n):
            if not started[index]:
                _ds41.run_task(task, task_arg, index)

    return run


def _destroyer(pid: int) -> Callable[[Any], None]:
    """A forked child has a context's memory but not its threads, for which destroying it would wait."""

    def destroy(pointer: Any) -> None:
        if os.getpid() == pid:
            _ds41.ds41_ctx_destroy(pointer)

    return destroy


class Context(Owner):
    """Executes steps: workspaces, threads, and the step in flight. Used by one thread at a time: another one is refused
    (InUseError), and so are the context's own callbacks.

    n_threads: threads that a step may use, the caller's among them; 0 for as many as there are CPUs.
    pin_threads: bind each thread of the context to a CPU of its own.
    topk_end_pos: for TopkRule.TORCH_CPU, the end of the whole prompt when it comes in chunks.
    stream: address of a CUDA stream on a CUDA backend.
    attention_split: on a CUDA backend, thread blocks that share the attention of a token's heads, 1 to 8; 0 for as many
        as fill a GPU. The same bits for any.
    parallel: called as parallel(n, task) to run task(0) to task(n - 1), on any threads, instead of threads of the
        context. Tasks release the interpreter's lock.
    """

    def __init__(
        self,
        model: Model,
        *,
        n_threads: int = 0,
        pin_threads: bool = False,
        topk_end_pos: int = 0,
        stream: int = 0,
        parallel: Optional[Parallel] = None,
        attention_split: int = 0,
    ) -> None:
        expect(model, Model, "Context", "model")
        need_callable(parallel, "Context", "parallel")
        self._errors: List[BaseException] = []
        raw = _ds41.ds41_ctx_options()
        raw.n_threads = n_threads
        raw.flags = _ds41.DS41_CTX_PIN_THREADS if pin_threads else 0
        raw.topk_end_pos = topk_end_pos
        raw.stream = stream
        raw.attention_split = attention_split
        runner = None if parallel is None else _parallel_runner(parallel, self._errors)
        raw.set_parallel(runner)
        pointer, parent = model._create_child("Context", _ds41.ds41_ctx_create, raw)
        self._pid = os.getpid()
        self._handle = Handle("context", pointer, _destroyer(self._pid), parent, runner)
        self._backend = model.backend
        self._dim = model._dim
        self._step: Step = []  # sequences of the decode step in flight; graphs look here as well
        self._recorded: Optional[List[Any]] = None  # x and out of a capture's layers
        self._left_open = False  # a capture's scope has ended, but the capture may have not

    def _use(self) -> Handle:
        handle = super()._use()
        if self._pid != os.getpid():
            raise WrongOrderError("the Context was created before this process was forked off, without its threads")
        return handle

    def _run(self, call: Callable[..., None], *arguments: Any) -> None:
        """A call that may call back: the first exception of a callback comes out of it."""
        try:
            call(*arguments)
        finally:
            errors = self._errors[:]
            self._errors.clear()
        if errors:
            raise errors[0]

    def prefill(self, layer: int, seq: Sequence, x: Any, start_pos: Optional[int] = None, out: Any = None) -> Any:
        """Run one layer over new tokens of one sequence, all rows of x, and return out.

        The first call of a step begins it; calls for further layers with the same sequence and rows belong to it.

        x: bf16 [n_tokens, dim], the layer's input after its attention norm.
        start_pos: where this layer of the sequence stands, which is the default.
        out: bf16 [n_tokens, dim]; may be x itself. A new array by default.
        """
        function = "Context.prefill"
        handle = self._use()
        expect(seq, Sequence, function, "seq")
        seq_handle = seq._use()
        rows = as_rows(x, function, "x", self._dim, self._backend)
        result = empty_like(x, rows) if out is None else out
        target = as_output(result, rows, function, self._backend)
        with Exclusive(function, (handle, seq_handle)):
            if start_pos is None:
                start_pos = _ds41.ds41_seq_get_position(seq_handle.pointer, layer)
            self._end_left_open(handle)
            self._run(_ds41.ds41_layer_prefill, handle.pointer, layer, seq_handle.pointer, rows, rows.shape[0],
                      start_pos, target)  # fmt: skip
            self._step.clear()  # a decode step is over
            self._left_open = False
        return result

    def decode_prep(self, spans: Iterable[Union[Sequence, Span, Tuple[Any, ...]]]) -> None:
        """Begin a step of several sequences: the host half, once for all layers. Row i of the step's tensors is token i
        of the spans' tokens, one span after the other.

        spans: Sequences for one token each, or Spans or tuples (seq, n_tokens, start_pos).
        """
        function = "Context.decode_prep"
        handle = self._use()
        wanted = []
        for entry in spans:
            span = Span(entry) if isinstance(entry, Sequence) else Span(*entry)
            expect(span.seq, Sequence, function, "spans: seq")
            wanted.append((span.seq._use(), span.n_tokens, span.start_pos))
        seqs = [seq_handle for seq_handle, _, _ in wanted]
        with Exclusive(function, (handle, *seqs)):
            raw = [
                (seq.pointer, _ds41.ds41_seq_get_position(seq.pointer, ALL_LAYERS) if pos is None else pos, n_tokens)
                for seq, n_tokens, pos in wanted
            ]
            self._end_left_open(handle)
            _ds41.ds41_decode_prep(handle.pointer, raw)
            self._step[:] = [weakref.ref(seq) for seq in seqs]
            self._left_open = False

    def decode_body(self, layer: int, x: Any, out: Any = None) -> Any:
        """Run one layer of the step last prepared, and return out. Within capture() the layer is recorded instead.

        x: bf16 [n_rows, dim]; n_rows is the sum of the spans' tokens.
        out: bf16 [n_rows, dim]; may be x itself. A new array by default.
        """
        function = "Context.decode_body"
        handle = self._use()
        rows = as_rows(x, function, "x", self._dim, self._backend)
        result = empty_like(x, rows) if out is None else out
        target = as_output(result, rows, function, self._backend)
        with Exclusive(function, (handle, *in_step(self._step))):
            self._run(_ds41.ds41_decode_body, handle.pointer, layer, rows, target)
            if self._recorded is not None:
                self._recorded += (rows, target)
        return result

    def decode_capturable(self, layer: int) -> bool:
        """Whether decode_body() of a layer may be captured into a graph as the context stands."""
        handle = self._use()
        with Exclusive("Context.decode_capturable", (handle,)):
            capturable: bool = _ds41.ds41_decode_capturable(handle.pointer, layer)
        return capturable

    @contextlib.contextmanager
    def capture(self, *, external: bool = False) -> Iterator[Graph]:
        """Capture layers of decode steps into a Graph, where the backend has graphs (UnsupportedError elsewhere):

            ctx.decode_prep(seqs)  # any step of as many rows as the graph shall have
            with ctx.capture() as graph:
                for layer in layers:
                    ctx.decode_body(layer, x, out)  # recorded, not run
            graph.launch()  # this step, and after further ctx.decode_prep() any other of at most as many rows

        The graph can be launched when the `with` has ended; one that ends with an exception leaves no graph. x and out
        are the addresses that every launch reads and writes: the graph keeps their memory alive. The context is the
        thread's until the end (InUseError on others), and nothing but decode_body() is legal on it; nor may this thread
        allocate, copy or reserve memory of the device.

        external: the owner of the context's stream captures it, within this `with`, into a graph of its own together
            with what else it enqueues, and launches that one itself, right after launch(), which then only checks and
            advances the sequences.
        """
        function = "Context.capture"
        handle = self._use()
        rows: List[Any] = []
        with Exclusive(function, (handle, *in_step(self._step))):
            self._end_left_open(handle)
            _ds41.ds41_graph_begin(handle.pointer, _ds41.DS41_GRAPH_EXTERNAL if external else 0)
            self._left_open = False
            handle.taken_by = threading.get_ident()
            self._recorded = rows
        graph = Graph._begin(handle, self._step)
        captured: Optional[Handle] = None
        is_wanted = False
        try:
            yield graph
            is_wanted = True
        finally:
            # Whatever happens here, the context is no thread's any more, and what stays open is ended by its next call.
            handle.taken_by = 0
            self._recorded = None
            self._left_open = True
            try:
                with Exclusive(function, (handle,)):
                    captured = captured_handle(_ds41.ds41_graph_end(handle.pointer), tuple(rows))
                    self._left_open = False
            except Error:
                if is_wanted:  # otherwise the first exception is the one to tell
                    raise
            finally:
                if not is_wanted:
                    graph.close()
                graph._end(captured)

    def _end_left_open(self, handle: Handle) -> None:
        """Of an external capture whose stream was still captured at the end of its scope nothing is kept."""
        if self._left_open:
            try:
                _ds41.ds41_graph_destroy(_ds41.ds41_graph_end(handle.pointer))
            except Error:  # nothing is open, or still has to be, and then what comes next is refused
                pass

    def set_tap(self, tap: Optional[Callable[[Tap], object]], names: Iterable[str] = ()) -> None:
        """Have intermediates of further layers given to a function; replaces the previous one, None removes it.

        names: of TAP_NAMES; none for all. An exception of the function comes out of the step's call, whose layer has
        run. The function must not use the context or the step's sequences (InUseError).
        """
        handle = self._use()
        need_callable(tap, "Context.set_tap", "tap")
        if isinstance(names, str):
            raise TypeError(f"Context.set_tap: names is {names!r}, need a sequence of strings")
        receiver = None if tap is None else _tap_receiver(tap, self._errors)
        with Exclusive("Context.set_tap", (handle,)):
            _ds41.ds41_ctx_set_tap(handle.pointer, tuple(names), receiver)
            handle.keep = (*handle.keep[:2], receiver)  # behind parent and parallel-for

    def synchronize(self) -> None:
        """Wait until everything that was enqueued has finished."""
        handle = self._use()
        with Exclusive("Context.synchronize", (handle,)):
            _ds41.ds41_ctx_synchronize(handle.pointer)

    @property
    def n_bytes(self) -> int:
        """Bytes of workspace that the context holds now."""
        handle = self._use()
        with Exclusive("Context.n_bytes", (handle,)):
            n: int = _ds41.ds41_ctx_get_bytes(handle.pointer)
        return n

    def __repr__(self) -> str:
        return "<ds41.Context, closed>" if self.closed else f"<ds41.Context on backend {self._backend}>"
