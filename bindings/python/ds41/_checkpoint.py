"""What people publish: folders of safetensors shards, single files, GGUF; looked at without reading a tensor."""
from __future__ import annotations

import os
from typing import Any, List, NamedTuple, Optional, Tuple, Union

from . import _ds41
from ._config import Config
from ._handle import Handle, Owner
from ._model import LoadOptions, MemoryEstimate, TopkRule, memory_estimate
from ._tensor import Dtype


class CheckpointTensor(NamedTuple):
    """One tensor of the attention layers in a checkpoint."""

    layer: int
    member: str
    """Its name for Model.set_layer(), such as "wq_a"."""
    name: str
    """As in the file."""
    type: str
    """As the file calls it, such as "F8_E4M3" or "Q8_0"."""
    shape: Tuple[int, ...]
    file: int
    """Index in Checkpoint.files."""
    dtype: Dtype
    """What it becomes in a model loaded with the default options."""
    n_bytes: int
    n_model_bytes: int


class Checkpoint(Owner):
    """An open checkpoint: the release's folder, a safetensors file with its config.json, or a GGUF. Immutable, shared
    freely between threads. Model.load() needs no open checkpoint: it takes the same path."""

    def __init__(self, path: Union[str, bytes, "os.PathLike[Any]"]) -> None:
        pointer = _ds41.ds41_checkpoint_load(path)
        self._handle = Handle("checkpoint", pointer, _ds41.ds41_checkpoint_destroy)

    @property
    def format(self) -> str:
        """ "safetensors" or "gguf"."""
        name: str = _ds41.ds41_checkpoint_get_format(self._use().pointer)
        return name

    @property
    def files(self) -> List[str]:
        """Paths of the files that were opened: shards without attention tensors are not."""
        pointer = self._use().pointer
        n = _ds41.ds41_checkpoint_get_n_files(pointer)
        return [_ds41.ds41_checkpoint_get_file(pointer, index) for index in range(n)]

    @property
    def config(self) -> Config:
        """The configuration that the checkpoint comes with."""
        config = Config()
        _ds41.ds41_checkpoint_get_config(self._use().pointer, config._raw)
        return config

    @property
    def tensors(self) -> List[CheckpointTensor]:
        """The tensors that are right, in order of layers."""
        pointer = self._use().pointer
        tensors = []
        for index in range(_ds41.ds41_checkpoint_get_n_tensors(pointer)):
            raw = _ds41.ds41_checkpoint_tensor()
            _ds41.ds41_checkpoint_get_tensor(pointer, index, raw)
            tensors.append(CheckpointTensor(raw.layer, raw.member, raw.name, raw.type, tuple(raw.shape[: raw.n_dims]),
                                            raw.file, Dtype(raw.dtype), raw.n_bytes, raw.n_model_bytes))  # fmt: skip
        return tensors

    @property
    def problems(self) -> List[str]:
        """A sentence about each thing that keeps all layers from being loaded."""
        pointer = self._use().pointer
        n = _ds41.ds41_checkpoint_get_n_problems(pointer)
        return [_ds41.ds41_checkpoint_get_problem(pointer, index) for index in range(n)]

    def estimate_memory(
        self,
        n_seqs: int = 1,
        n_positions: int = 0,
        n_tokens: int = 1,
        *,
        backend: Optional[str] = None,
        topk_rule: int = TopkRule.STABLE,
        config: Optional[Config] = None,
        max_seq_len: int = 0,
        first_layer: int = 0,
        n_layers: int = 0,
        map: bool = False,
        expand_fp8: bool = False,
        plain_q2_k: bool = False,
    ) -> MemoryEstimate:
        """What a model loaded with these options (those of Model.load()), its sequences and a context will take."""
        options = LoadOptions("Checkpoint.estimate_memory", backend, topk_rule, None, config, max_seq_len, first_layer,
                              n_layers, 0, map, expand_fp8, plain_q2_k, None)  # fmt: skip
        raw = _ds41.ds41_memory()
        _ds41.ds41_checkpoint_estimate_memory(self._use().pointer, options.raw, n_seqs, n_positions, n_tokens, raw)
        return memory_estimate(raw)

    def __repr__(self) -> str:
        return "<ds41.Checkpoint, closed>" if self.closed else f"<ds41.Checkpoint of {self.format}>"
