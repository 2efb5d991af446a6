"""Memory on the model's device."""
from __future__ import annotations

from typing import Any, Optional, Sequence as Seq, Union

from . import _ds41
from ._errors import InvalidArgumentError, InvalidShapeError
from ._handle import Handle, Owner, expect
from ._model import Model
from ._tensor import Dtype, MAX_DIMS, Tensor, as_bytes, device_tensor, dtype_of


class Buffer(Owner):
    """Memory on the model's device, aligned to 64 bytes, for callers without arrays of their own. Its contents are
    undefined at first. Tensors of it keep the memory alive, also when the buffer is closed."""

    def __init__(self, model: Model, n_bytes: int) -> None:
        expect(model, Model, "Buffer", "model")
        parent = model._use()
        self._device = model._device
        pointer = _ds41.ds41_buffer_create(parent.pointer, n_bytes)
        self._handle = Handle("buffer", pointer, _ds41.ds41_buffer_destroy, parent)

    @property
    def address(self) -> int:
        """Address on the device; valid as long as the buffer is open."""
        address: int = _ds41.ds41_buffer_get_data(self._use().pointer)
        return address

    @property
    def n_bytes(self) -> int:
        n: int = _ds41.ds41_buffer_get_bytes(self._use().pointer)
        return n

    def tensor(self, shape: Seq[int], dtype: Union[Dtype, str] = Dtype.BF16, offset: int = 0) -> Tensor:
        """A tensor in the buffer's memory, from a byte on."""
        handle = self._use()
        wanted = tuple(shape)
        if not 1 <= len(wanted) <= MAX_DIMS or any(size < 1 for size in wanted):
            raise InvalidShapeError(f"Buffer.tensor: shape is {list(wanted)}, need 1 to {MAX_DIMS} dimensions of 1 or "
                                    "more")  # fmt: skip
        if offset < 0:
            raise InvalidArgumentError(f"Buffer.tensor: offset is {offset}, need 0 or more")
        made = device_tensor(self.address + offset, dtype_of(dtype), wanted, handle, self._device)
        if offset + made.n_bytes > self.n_bytes:
            raise InvalidArgumentError(
                f"Buffer.tensor: bytes {offset} to {offset + made.n_bytes} are asked for, need some within the "
                f"{self.n_bytes} bytes of the buffer"
            )
        return made

    def upload(self, source: Any, offset: int = 0) -> None:
        """Copy an array from the host to a byte of the buffer."""
        handle = self._use()
        _ds41.ds41_buffer_upload(handle.pointer, offset, as_bytes(source, "Buffer.upload", "source", False))

    def download(self, target: Any = None, offset: int = 0, n_bytes: Optional[int] = None) -> Any:
        """Copy from a byte of the buffer into an array on the host, or into a new bytearray of n_bytes (to the buffer's
        end by default); returns it."""
        handle = self._use()
        if target is None:
            n = self.n_bytes - offset if n_bytes is None else n_bytes
            if not 0 <= offset <= self.n_bytes or not 0 <= n <= self.n_bytes - offset:
                raise InvalidArgumentError(f"Buffer.download: {n} bytes from byte {offset} on are asked for, need some "
                                           f"within the {self.n_bytes} bytes of the buffer")  # fmt: skip
            target = bytearray(n)
        elif n_bytes is not None:
            raise InvalidArgumentError("Buffer.download: n_bytes is given, need none beside a target")
        _ds41.ds41_buffer_download(handle.pointer, offset, as_bytes(target, "Buffer.download", "target", True))
        return target

    def __repr__(self) -> str:
        return "<ds41.Buffer, closed>" if self.closed else f"<ds41.Buffer of {self.n_bytes} bytes>"
