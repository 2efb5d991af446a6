"""Captured decode steps."""
from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Callable, List, Optional, Tuple

from . import _ds41
from ._errors import WrongOrderError
from ._handle import Exclusive, Handle, Owner

Step = List["weakref.ref[Handle]"]


def in_step(step: Step) -> List[Handle]:
    """Handles of a step's sequences that are still there: a step does not keep a closed one alive."""
    handles = (reference() for reference in tuple(step))
    return [handle for handle in handles if handle is not None]


def captured_handle(pointer: Any, rows: Tuple[Any, ...]) -> Handle:
    """A captured graph, which keeps the memory at the addresses that are baked into it."""
    pid = os.getpid()

    def destroy(pointer: Any) -> None:
        if os.getpid() == pid:  # a forked child has no device to wait for
            _ds41.ds41_graph_destroy(pointer)

    return Handle("graph", pointer, destroy, *rows)


def _leave_to(ctx: "weakref.ref[Handle]") -> Callable[[Handle], None]:
    """A graph may be let go at any moment, by the garbage collector on any thread, but is destroyed between the calls
    on its context: at once on the thread that captured it, elsewhere by the context's next call."""
    thread = threading.get_ident()

    def leave(captured: Handle) -> None:
        handle = ctx()
        if handle is not None:
            handle.orphans.append(captured)
            if threading.get_ident() == thread and handle.lock.acquire(blocking=False):
                handle.release()

    return leave


class Graph(Owner):
    """Layers of a decode step, captured by Context.capture(), which run as one launch. Used by its context's thread. It
    keeps the memory of its x and out alive, but not its context, without which it cannot be launched."""

    _ctx: "weakref.ref[Handle]"
    _step: Step
    _is_open: bool  # the capture goes on
    _pid: int

    def __init__(self) -> None:
        raise TypeError("Graph: graphs are made by Context.capture()")

    @classmethod
    def _begin(cls, ctx: Handle, step: Step) -> "Graph":
        graph = cls.__new__(cls)
        graph._ctx = weakref.ref(ctx)
        graph._step = step
        graph._is_open = True
        graph._pid = os.getpid()
        return graph

    def _end(self, captured: Optional[Handle]) -> None:
        """The capture is over, with a graph or without; of a graph that was closed in the meantime nothing is kept."""
        if captured is not None:
            handle = Handle("graph", captured, _leave_to(self._ctx))
            if self._is_open:
                self._handle = handle
        self._is_open = False

    def close(self) -> None:
        """Let go of the graph, and of the memory that it keeps, as soon as no call on its context is under way."""
        self._is_open = False
        super().close()

    @property
    def closed(self) -> bool:
        """Whether close() has been called, or the capture has failed."""
        return super().closed and not self._is_open

    def _use(self) -> Handle:
        if self._is_open:
            raise WrongOrderError("the Graph is being captured, need the end of the `with` of Context.capture()")
        if self._pid != os.getpid():
            raise WrongOrderError("the Graph was captured before this process was forked off, without its device")
        return super()._use()

    def launch(self) -> None:
        """Run the graph's layers on the step last prepared on its context (Context.decode_prep), which may have fewer
        rows than the graph: the rows of out behind them become zeros.

        An error that calls the graph stale asks for another capture. On failure no sequence advances.
        """
        handle = self._use()
        ctx = self._ctx()
        if ctx is None:
            _ds41.ds41_graph_launch(handle.pointer.pointer)  # tells that the context was destroyed
            return
        with Exclusive("Graph.launch", (ctx, *in_step(self._step))):
            _ds41.ds41_graph_launch(handle.pointer.pointer)

    def __repr__(self) -> str:
        return f"<ds41.Graph, {'closed' if self.closed else 'being captured' if self._is_open else 'captured'}>"
