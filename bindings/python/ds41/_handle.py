"""Native objects and who may use them when.

A Handle owns one native object and destroys it when its last reference goes: that of the Python object that people see,
which close() drops, those of children and views, and those of calls that are under way on other threads. So closing in
any order, closing twice and closing during a call are all safe.
"""
from __future__ import annotations

import threading
from typing import Any, Callable, Iterable, List, Optional, Tuple, TypeVar

from ._errors import ClosedError, InUseError

_Self = TypeVar("_Self", bound="Owner")


class Handle:
    """One native object. `keep` holds what has to outlive it: its parent's handle, callbacks, borrowed memory.
    `orphans` are handles that were let go and are destroyed between the calls on this one."""

    __slots__ = ("pointer", "kind", "lock", "taken_by", "keep", "orphans", "_destroy", "__weakref__")

    def __init__(self, kind: str, pointer: Any, destroy: Callable[[Any], None], *keep: Any) -> None:
        self.pointer = pointer
        self.kind = kind
        self.lock = threading.Lock()
        self.taken_by = 0  # a thread: for Turn, and between the calls of a capture
        self.keep: Tuple[Any, ...] = keep
        self.orphans: List["Handle"] = []
        self._destroy = destroy

    def __del__(self) -> None:
        self.destroy()

    def destroy(self) -> None:
        # The lock: a weak reference may have brought the handle back for a step of another thread.
        with self.lock:
            pointer, self.pointer = self.pointer, None
            if pointer is not None:
                self._destroy(pointer)

    def release(self) -> None:
        """Unlock; before that, what was let go during the call is destroyed."""
        try:
            while self.orphans:
                self.orphans.pop().destroy()
        finally:
            self.lock.release()


class Turn:
    """A handle that calls of several threads have one after the other."""

    __slots__ = ("_function", "_handle")

    def __init__(self, function: str, handle: Handle) -> None:
        self._function = function
        self._handle = handle

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._handle.taken_by == me:
            raise InUseError(f"{self._function}: the {self._handle.kind} is in use by the call that called back")
        self._handle.lock.acquire()
        self._handle.taken_by = me

    def __exit__(self, *_: object) -> None:
        self._handle.taken_by = 0
        self._handle.lock.release()


class Exclusive:
    """Handles that a call has for itself. Refuses at once if one is taken, instead of waiting for the other call."""

    __slots__ = ("_function", "_handles", "_taken")

    def __init__(self, function: str, handles: Iterable[Handle]) -> None:
        self._function = function
        self._handles = dict.fromkeys(handles)  # a sequence given twice is the library's to refuse
        self._taken: List[Handle] = []

    def __enter__(self) -> None:
        for handle in self._handles:
            if handle.taken_by and handle.taken_by != threading.get_ident():
                self.__exit__()
                raise InUseError(f"{self._function}: another thread captures a graph on the {handle.kind}")
            if not handle.lock.acquire(blocking=False):
                self.__exit__()
                raise InUseError(
                    f"{self._function}: the {handle.kind} is in use by another call; it is used by one thread at a "
                    "time, and not from its own callbacks"
                )
            self._taken.append(handle)

    def __exit__(self, *_: object) -> None:
        for handle in self._taken:
            handle.release()
        self._taken.clear()


class Owner:
    """A Python object around a Handle: a context manager with an idempotent close()."""

    _handle: Optional[Handle] = None

    def close(self) -> None:
        """Let go of the native object. It is destroyed as soon as no child, view or running call needs it."""
        self._handle = None

    @property
    def closed(self) -> bool:
        """Whether close() has been called."""
        return self._handle is None

    def _use(self) -> Handle:
        handle = self._handle
        if handle is None:
            raise ClosedError(f"the {type(self).__name__} is closed")
        return handle

    def __enter__(self: _Self) -> _Self:
        self._use()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def expect(value: Any, cls: type, function: str, argument: str) -> None:
    """Refuse a value of another class than the one that is needed."""
    if not isinstance(value, cls):
        raise TypeError(f"{function}: {argument} is {value!r:.200}, need a ds41.{cls.__name__}")
