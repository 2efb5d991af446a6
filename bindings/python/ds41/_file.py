"""A safetensors file as a mapping from names to tensors."""
from __future__ import annotations

import os
from typing import Any, Dict, Iterator, Mapping, Optional, Union

from . import _ds41
from ._errors import MissingTensorError
from ._handle import Handle, Owner
from ._tensor import Tensor, lent_tensor

# Weights of a layer -> their names in the release, behind layers.L.attn.
RELEASE_NAMES: Dict[str, str] = {
    "wq_a": "wq_a.weight",
    "q_norm": "q_norm.weight",
    "wq_b": "wq_b.weight",
    "wkv": "wkv.weight",
    "kv_norm": "kv_norm.weight",
    "attn_sink": "attn_sink",
    "wo_a": "wo_a.weight",
    "wo_b": "wo_b.weight",
    "compressor_wkv": "compressor.wkv.weight",
    "compressor_wgate": "compressor.wgate.weight",
    "compressor_norm": "compressor.norm.weight",
    "indexer_wk": "indexer.wk.weight",
    "indexer_k_norm": "indexer.k_norm.weight",
    "indexer_wq_b": "indexer.wq_b.weight",
    "indexer_weights_proj": "indexer.weights_proj.weight",
}


class File(Owner, Mapping[str, Tensor]):
    """A safetensors file, mapped into memory: `file[name]` is a read-only tensor in the mapping, which stays as long as
    any of them. The file must not be changed or truncated meanwhile.

    A tensor may lie at any byte: Model.set_layer() copies it, numpy takes it as it is; only borrowing needs alignment.
    """

    def __init__(self, path: Union[str, bytes, "os.PathLike[Any]"]) -> None:
        self._handle = Handle("file", _ds41.ds41_file_load(path), _ds41.ds41_file_destroy)

    def __getitem__(self, name: str) -> Tensor:
        handle = self._use()
        return lent_tensor(_ds41.ds41_file_get_tensor(handle.pointer, name), handle)

    def __len__(self) -> int:
        n: int = _ds41.ds41_file_get_n_tensors(self._use().pointer)
        return n

    def __iter__(self) -> Iterator[str]:
        handle = self._use()
        for index in range(len(self)):
            yield _ds41.ds41_file_get_tensor_name(handle.pointer, index)

    def __repr__(self) -> str:
        return "<ds41.File, closed>" if self.closed else f"<ds41.File of {len(self)} tensors>"

    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def metadata(self, key: str) -> Optional[str]:
        """Value of a key of the file's metadata; None when there is none."""
        value: Optional[str] = _ds41.ds41_file_get_metadata(self._use().pointer, key)
        return value

    def layer_weights(self, layer: int) -> Dict[str, Tensor]:
        """The weights that the file has of a layer under the release's names (layers.L.attn.NAME), for
        Model.set_layer(), which knows which ones the layer must have."""
        weights = {}
        for member, name in RELEASE_NAMES.items():
            try:
                weights[member] = self[f"layers.{layer}.attn.{name}"]
            except MissingTensorError:
                continue
        return weights
