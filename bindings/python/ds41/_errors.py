"""Statuses of the library as exceptions: one class a status, all of them ds41.Error."""
from __future__ import annotations

import enum
from typing import Dict, Type, Union

from . import _ds41


class Status(enum.IntEnum):
    """Result of a call of the C library; numbers never change their meaning."""

    OK = _ds41.DS41_STATUS_OK
    INVALID_ARGUMENT = _ds41.DS41_STATUS_INVALID_ARGUMENT
    INVALID_STRUCT = _ds41.DS41_STATUS_INVALID_STRUCT
    INVALID_DTYPE = _ds41.DS41_STATUS_INVALID_DTYPE
    INVALID_SHAPE = _ds41.DS41_STATUS_INVALID_SHAPE
    INVALID_LAYER = _ds41.DS41_STATUS_INVALID_LAYER
    INVALID_POSITION = _ds41.DS41_STATUS_INVALID_POSITION
    INVALID_CONFIG = _ds41.DS41_STATUS_INVALID_CONFIG
    WRONG_ORDER = _ds41.DS41_STATUS_WRONG_ORDER
    MISSING_WEIGHTS = _ds41.DS41_STATUS_MISSING_WEIGHTS
    UNSUPPORTED = _ds41.DS41_STATUS_UNSUPPORTED
    NO_BACKEND = _ds41.DS41_STATUS_NO_BACKEND
    OUT_OF_MEMORY = _ds41.DS41_STATUS_OUT_OF_MEMORY
    DEVICE_ERROR = _ds41.DS41_STATUS_DEVICE_ERROR
    IO_ERROR = _ds41.DS41_STATUS_IO_ERROR
    INVALID_FILE = _ds41.DS41_STATUS_INVALID_FILE
    MISSING_TENSOR = _ds41.DS41_STATUS_MISSING_TENSOR
    CANCELLED = _ds41.DS41_STATUS_CANCELLED
    INTERNAL = _ds41.DS41_STATUS_INTERNAL


class Error(Exception):
    """What the library or this package refuses. `message` tells which argument, what came, and what is accepted."""

    status: Union[Status, int] = Status.INTERNAL
    message: str

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message  # KeyError would quote it


class InvalidArgumentError(Error, ValueError):
    """An object is missing where one is needed, or a value is out of its range."""

    status = Status.INVALID_ARGUMENT


class ClosedError(InvalidArgumentError):
    """The object has been closed."""


class InvalidStructError(Error):
    """A struct of another version; this package initialises its structs, so it never sees this."""

    status = Status.INVALID_STRUCT


class InvalidDtypeError(Error, TypeError):
    """A tensor has a dtype that this place does not accept."""

    status = Status.INVALID_DTYPE


class InvalidShapeError(Error, ValueError):
    """A tensor's shape disagrees with the configuration or the step."""

    status = Status.INVALID_SHAPE


class InvalidLayerError(Error, ValueError):
    """No such layer in the configuration."""

    status = Status.INVALID_LAYER


class InvalidPositionError(Error, ValueError):
    """A span leaves a gap, repeats tokens, or ends beyond max_seq_len."""

    status = Status.INVALID_POSITION


class InvalidConfigError(Error, ValueError):
    """The configuration contradicts itself or leaves its bounds."""

    status = Status.INVALID_CONFIG


class WrongOrderError(Error, RuntimeError):
    """Right call, wrong moment: a layer out of order, a source that has not run."""

    status = Status.WRONG_ORDER


class InUseError(WrongOrderError):
    """Another thread, or a callback's own caller, is using the object at this moment."""


class MissingWeightsError(Error, RuntimeError):
    """The layer's weights have not been set."""

    status = Status.MISSING_WEIGHTS


class UnsupportedError(Error, RuntimeError):
    """Known, but not available in this build, backend or version."""

    status = Status.UNSUPPORTED


class NoBackendError(Error, RuntimeError):
    """No backend of that name, or it cannot run here."""

    status = Status.NO_BACKEND


class OutOfMemoryError(Error, MemoryError):
    """Memory ran out; what the call says about its state holds."""

    status = Status.OUT_OF_MEMORY


class DeviceError(Error, RuntimeError):
    """The GPU, its driver or one of its libraries failed."""

    status = Status.DEVICE_ERROR


class IoError(Error, OSError):
    """The operating system refused: not found, not readable, ..."""

    status = Status.IO_ERROR


class InvalidFileError(Error, ValueError):
    """The bytes are not what the format demands."""

    status = Status.INVALID_FILE


class MissingTensorError(Error, KeyError):
    """The file holds no tensor or metadata entry of that name."""

    status = Status.MISSING_TENSOR


class CancelledError(Error):
    """A progress callback asked to stop."""

    status = Status.CANCELLED


class InternalError(Error, RuntimeError):
    """A mistake of the library."""

    status = Status.INTERNAL


ERROR_OF_STATUS: Dict[int, Type[Error]] = {
    int(cls.status): cls
    for cls in (
        InvalidArgumentError, InvalidStructError, InvalidDtypeError, InvalidShapeError, InvalidLayerError,
        InvalidPositionError, InvalidConfigError, WrongOrderError, MissingWeightsError, UnsupportedError,
        NoBackendError, OutOfMemoryError, DeviceError, IoError, InvalidFileError, MissingTensorError, CancelledError,
        InternalError,
    )
}  # fmt: skip


def error_of(status: int, message: str) -> Error:
    """The exception for a status; of a library that knows more statuses than this package, a plain Error."""
    cls = ERROR_OF_STATUS.get(status)
    if cls is not None:
        return cls(message)
    error = Error(message)
    error.status = status
    return error


_ds41.set_error_factory(error_of)
