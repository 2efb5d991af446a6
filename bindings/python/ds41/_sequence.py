"""The state of one sequence in every layer."""
from __future__ import annotations

from . import _ds41
from ._handle import Exclusive, Handle, Owner, expect
from ._model import Model

ALL_LAYERS: int = _ds41.DS41_ALL_LAYERS


class Sequence(Owner):
    """State of one sequence: window, incomplete groups, compressed rows, index keys. Grows with its tokens. Used by one
    thread at a time: another one is refused (InUseError), and so is a tap of the call that uses it."""

    def __init__(self, model: Model) -> None:
        expect(model, Model, "Sequence", "model")
        pointer, parent = model._create_child("Sequence", _ds41.ds41_seq_create)
        self._handle = Handle("sequence", pointer, _ds41.ds41_seq_destroy, parent)

    def position(self, layer: int = ALL_LAYERS) -> int:
        """Tokens that a layer has seen, which is where its next step starts; of all layers the furthest."""
        handle = self._use()
        with Exclusive("Sequence.position", (handle,)):
            position: int = _ds41.ds41_seq_get_position(handle.pointer, layer)
        return position

    def reset(self) -> None:
        """Forget all tokens; memory is kept for reuse. A step that uses the sequence is over."""
        handle = self._use()
        with Exclusive("Sequence.reset", (handle,)):
            _ds41.ds41_seq_reset(handle.pointer)

    def reserve(self, n_positions: int) -> None:
        """Allocate for the first n_positions tokens, so that steps up to there allocate no cache memory."""
        handle = self._use()
        with Exclusive("Sequence.reserve", (handle,)):
            _ds41.ds41_seq_reserve(handle.pointer, n_positions)

    @property
    def n_bytes(self) -> int:
        """Bytes of cache memory that the sequence holds now."""
        handle = self._use()
        with Exclusive("Sequence.n_bytes", (handle,)):
            n: int = _ds41.ds41_seq_get_bytes(handle.pointer)
        return n

    def __repr__(self) -> str:
        return "<ds41.Sequence, closed>" if self.closed else "<ds41.Sequence>"
