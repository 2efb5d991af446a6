"""Models: configuration, backend and the weights of some or all layers."""
from __future__ import annotations

import enum
import os
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

from . import _ds41
from ._config import Config
from ._errors import InvalidArgumentError
from ._file import RELEASE_NAMES
from ._handle import Handle, Owner, Turn, expect
from ._tensor import CPU, CUDA, DEVICE_BACKENDS, as_tensor

Log = Callable[["LogLevel", str], object]
Progress = Callable[[int, int, str], object]


class LogLevel(enum.IntEnum):
    ERROR = _ds41.DS41_LOG_ERROR
    WARNING = _ds41.DS41_LOG_WARNING
    INFO = _ds41.DS41_LOG_INFO
    DEBUG = _ds41.DS41_LOG_DEBUG


class TopkRule(enum.IntEnum):
    """Rule for equal scores at the cut of a selection."""

    STABLE = _ds41.DS41_TOPK_STABLE
    TORCH_CPU = _ds41.DS41_TOPK_TORCH_CPU


class MemoryEstimate(NamedTuple):
    """What a deployment will take, in bytes."""

    weights: int
    window: int
    compressed: int
    index_keys: int
    group_state: int
    workspace: int

    @property
    def total(self) -> int:
        return sum(self)


def memory_estimate(raw: Any) -> MemoryEstimate:
    return MemoryEstimate(*(getattr(raw, name) for name in MemoryEstimate._fields))


def need_callable(value: Any, function: str, argument: str) -> None:
    if value is not None and not callable(value):
        raise TypeError(f"{function}: {argument} is {value!r:.200}, need a function or None")


def _receiver(log: Log) -> Callable[[int, str], None]:
    def receive(level: int, message: str) -> None:
        log(LogLevel(level), message)

    return receive


class ModelOptions:
    """The C struct of model options with what it borrows."""

    def __init__(self, backend: Optional[str], topk_rule: int, log: Optional[Log], function: str) -> None:
        need_callable(log, function, "log")
        self.raw = _ds41.ds41_model_options()
        self.backend = backend
        self.raw.backend = backend
        self.raw.topk_rule = topk_rule
        self.log = None if log is None else _receiver(log)
        self.raw.set_log(self.log)


class LoadOptions:
    """The C struct of load options with what it borrows. `error` is what the progress function raised."""

    def __init__(
        self,
        function: str,
        backend: Optional[str],
        topk_rule: int,
        log: Optional[Log],
        config: Optional[Config],
        max_seq_len: int,
        first_layer: int,
        n_layers: int,
        n_threads: int,
        map: bool,
        expand_fp8: bool,
        plain_q2_k: bool,
        progress: Optional[Progress],
    ) -> None:
        need_callable(progress, function, "progress")
        if config is not None:
            expect(config, Config, function, "config")
        self.error: Optional[BaseException] = None
        self.model = ModelOptions(backend, topk_rule, log, function)
        self.config = None if config is None else config.copy()
        self.raw = _ds41.ds41_load_options()
        self.raw.model = self.model.raw
        if self.config is not None:
            self.raw.config = self.config._raw
        self.raw.max_seq_len = max_seq_len
        self.raw.first_layer = first_layer
        self.raw.n_layers = n_layers
        self.raw.n_threads = n_threads
        self.raw.flags = (
            (_ds41.DS41_LOAD_MAP if map else 0)
            | (_ds41.DS41_LOAD_EXPAND_FP8 if expand_fp8 else 0)
            | (_ds41.DS41_LOAD_PLAIN_Q2_K if plain_q2_k else 0)
        )
        self.progress = None if progress is None else self._guard(progress)
        self.raw.set_progress(self.progress)

    def _guard(self, progress: Progress) -> Callable[[int, int, str], bool]:
        def guarded(n_done: int, n_total: int, tensor: str) -> bool:
            try:
                return bool(progress(n_done, n_total, tensor))
            except BaseException as error:  # comes out of the load instead, KeyboardInterrupt too
                self.error = error
                return True

        return guarded


class Model(Owner):
    """Configuration, backend and weights. Set up by one thread; immutable from the moment the first context or sequence
    is created on it, and from then on shared freely between threads.

    backend: name, or None for the best that runs here (`ds41.backends()` lists them).
    log: called as log(level, message) with what the model has to say. It must not call this package.
    """

    def __init__(
        self,
        config: Config,
        *,
        backend: Optional[str] = None,
        topk_rule: int = TopkRule.STABLE,
        log: Optional[Log] = None,
    ) -> None:
        expect(config, Config, "Model", "config")
        options = ModelOptions(backend, topk_rule, log, "Model")
        self._adopt(_ds41.ds41_model_create(config._raw, options.raw), options)

    def _adopt(self, pointer: Any, options: ModelOptions) -> None:
        # The log, and borrowed weights by layer, outlive contexts and sequences: their handles keep this one.
        borrowed: Dict[int, List[Any]] = {}
        self._handle = Handle("model", pointer, _ds41.ds41_model_destroy, options.log, borrowed)
        self._backend: str = _ds41.ds41_model_get_backend(pointer)
        self._device = (CUDA if self._backend in DEVICE_BACKENDS else CPU, 0)
        self._dim = self.config.dim

    @classmethod
    def load(
        cls,
        path: Union[str, bytes, "os.PathLike[Any]"],
        *,
        backend: Optional[str] = None,
        topk_rule: int = TopkRule.STABLE,
        log: Optional[Log] = None,
        config: Optional[Config] = None,
        max_seq_len: int = 0,
        first_layer: int = 0,
        n_layers: int = 0,
        n_threads: int = 0,
        map: bool = False,
        expand_fp8: bool = False,
        plain_q2_k: bool = False,
        progress: Optional[Progress] = None,
    ) -> "Model":
        """A model with the weights of a checkpoint: the release's folder, a safetensors file, or a GGUF.

        config, max_seq_len: instead of the checkpoint's own.
        first_layer, n_layers: a range of layers; 0 layers are all that there are.
        n_threads: that read and expand; 0 for one per core, at most 8.
        map: leave weights that keep their form in the mapping of the file.
        expand_fp8, plain_q2_k: multiply such weights with the bf16 activations as they are.
        progress: called as progress(n_done, n_total, tensor), bytes; a true result cancels the load (CancelledError),
            an exception cancels it and comes out of this call.
        """
        options = LoadOptions("Model.load", backend, topk_rule, log, config, max_seq_len, first_layer, n_layers,
                              n_threads, map, expand_fp8, plain_q2_k, progress)  # fmt: skip
        try:
            pointer = _ds41.ds41_model_load(path, options.raw)
        except Exception:
            if options.error is not None:
                raise options.error from None
            raise
        model = cls.__new__(cls)
        model._adopt(pointer, options.model)
        return model

    @property
    def backend(self) -> str:
        """Name of the backend that the model runs on."""
        self._use()
        return self._backend

    @property
    def config(self) -> Config:
        """A copy of the model's configuration."""
        config = Config()
        _ds41.ds41_model_get_config(self._use().pointer, config._raw)
        return config

    def set_layer(self, layer: int, weights: Mapping[str, Any], *, borrow: bool = False) -> None:
        """Hand over the weights of one layer: arrays by the names of the header (wq_a, q_norm, ...), exactly those of
        the layer's role. Setting a layer again replaces its weights.

        FP8 weights are Tensor(codes, "fp8_e4m3", scales=...), Q2_K ones Tensor(blocks, "q2_k"); tensors of a File are
        both already.

        borrow: compute with the caller's memory, which the model keeps alive and nobody may change. Norms and sinks are
            copied all the same.
        """
        handle = self._use()
        raw = _ds41.ds41_layer_weights()
        raw.ownership = _ds41.DS41_OWNERSHIP_BORROW if borrow else _ds41.DS41_OWNERSHIP_COPY
        tensors = []
        for name, value in weights.items():
            if name not in RELEASE_NAMES:
                raise InvalidArgumentError(f"Model.set_layer: no weight is called {name!r}, need one of "
                                           f"{', '.join(RELEASE_NAMES)}")  # fmt: skip
            if value is not None:
                # On the host, whatever the backend.
                tensor = as_tensor(value, "Model.set_layer", name)
                tensors.append(tensor)
                setattr(raw, name, tensor)
        with Turn("Model.set_layer", handle):
            _ds41.ds41_model_set_layer(handle.pointer, layer, raw)
            _, borrowed = handle.keep
            borrowed[int(layer)] = tensors if borrow else []

    def estimate_memory(self, n_seqs: int = 1, n_positions: int = 0, n_tokens: int = 1) -> MemoryEstimate:
        """What sequences of n_positions tokens and a context for steps of n_tokens will take."""
        raw = _ds41.ds41_memory()
        _ds41.ds41_model_estimate_memory(self._use().pointer, n_seqs, n_positions, n_tokens, raw)
        return memory_estimate(raw)

    def _create_child(self, function: str, create: Callable[..., Any], *arguments: Any) -> Tuple[Any, Handle]:
        """Contexts and sequences make the model immutable: never while a layer is being set."""
        handle = self._use()
        with Turn(function, handle):
            return create(handle.pointer, *arguments), handle

    def __repr__(self) -> str:
        return "<ds41.Model, closed>" if self.closed else f"<ds41.Model on backend {self._backend}>"
