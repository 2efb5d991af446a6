"""DeepSeek-V4.1's attention layers: configuration, weights, prefill and decode, on arrays of any library.

    file = ds41.File("tests/fixtures/a_golden_stable.safetensors")
    config = ds41.Config.parse(file.metadata("config"))
    model = ds41.Model(config)

Errors are ds41.Error, one class a status. Objects close in any order, twice, and when they are let go. What the C
header says about shapes, order and threads holds here too.
"""
from __future__ import annotations

from typing import List

from . import _ds41
from ._buffer import Buffer
from ._checkpoint import Checkpoint, CheckpointTensor
from ._config import Config, LayerRole
from ._context import TAP_NAMES, Context, Span, Tap
from ._errors import (
    CancelledError,
    ClosedError,
    DeviceError,
    Error,
    InternalError,
    InUseError,
    InvalidArgumentError,
    InvalidConfigError,
    InvalidDtypeError,
    InvalidFileError,
    InvalidLayerError,
    InvalidPositionError,
    InvalidShapeError,
    InvalidStructError,
    IoError,
    MissingTensorError,
    MissingWeightsError,
    NoBackendError,
    OutOfMemoryError,
    Status,
    UnsupportedError,
    WrongOrderError,
)
from ._file import File
from ._graph import Graph
from ._model import LogLevel, MemoryEstimate, Model, TopkRule
from ._sequence import ALL_LAYERS, Sequence
from ._tensor import Dtype, Tensor

__version__: str = "{}.{}.{}".format(_ds41.DS41_VERSION_MAJOR, _ds41.DS41_VERSION_MINOR, _ds41.DS41_VERSION_PATCH)


def version() -> str:
    """Version of the library that is running; __version__ is the one that this package was built with."""
    running: str = _ds41.ds41_version()
    return running


def backends() -> List[str]:
    """Names of this build's backends, best first, whether or not they can run here."""
    names: List[str] = []
    while True:
        name = _ds41.ds41_backend_get_name(len(names))
        if name is None:
            return names
        names.append(name)


__all__ = [
    "ALL_LAYERS",
    "Buffer",
    "CancelledError",
    "Checkpoint",
    "CheckpointTensor",
    "ClosedError",
    "Config",
    "Context",
    "DeviceError",
    "Dtype",
    "Error",
    "File",
    "Graph",
    "InUseError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidConfigError",
    "InvalidDtypeError",
    "InvalidFileError",
    "InvalidLayerError",
    "InvalidPositionError",
    "InvalidShapeError",
    "InvalidStructError",
    "IoError",
    "LayerRole",
    "LogLevel",
    "MemoryEstimate",
    "MissingTensorError",
    "MissingWeightsError",
    "Model",
    "NoBackendError",
    "OutOfMemoryError",
    "Sequence",
    "Span",
    "Status",
    "TAP_NAMES",
    "Tap",
    "Tensor",
    "TopkRule",
    "UnsupportedError",
    "WrongOrderError",
    "backends",
    "version",
]
