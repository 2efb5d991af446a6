"""The weights and the configuration of a golden case, read from its files, whatever the number of parts.

Names are the release's (`layers.L.attn.NAME`), which the table of GGUF's names follows in its order.
"""
import dataclasses
import json
import pathlib
import re

import ggml_blocks
from tensor_files import Tensor, read_safetensors

# Name behind `attn.` -> (name behind `blk.N.`, its group for --type).
GGUF_NAMES = {
    "wq_a.weight": ("attn_q_a.weight", "projections"),
    "q_norm.weight": ("attn_q_a_norm.weight", "norms"),
    "wq_b.weight": ("attn_q_b.weight", "projections"),
    "wkv.weight": ("attn_kv.weight", "projections"),
    "kv_norm.weight": ("attn_kv_a_norm.weight", "norms"),
    "attn_sink": ("attn_sinks.weight", "sinks"),
    "wo_a.weight": ("attn_output_a.weight", "projections"),
    "wo_b.weight": ("attn_output_b.weight", "projections"),
    "compressor.wkv.weight": ("attn_compressor_kv.weight", "compressor"),
    "compressor.wgate.weight": ("attn_compressor_gate.weight", "compressor"),
    "compressor.norm.weight": ("attn_compressor_norm.weight", "norms"),
    "indexer.wk.weight": ("indexer.attn_k.weight", "indexer"),
    "indexer.k_norm.weight": ("indexer.k_norm.weight", "norms"),
    "indexer.wq_b.weight": ("indexer.attn_q_b.weight", "indexer"),
    "indexer.weights_proj.weight": ("indexer.proj.weight", "indexer"),
}
# Groups of weights that may have a type of their own in a GGUF.
GROUPS = ("projections", "compressor", "indexer", "norms", "sinks")


@dataclasses.dataclass
class Case:
    """A golden case's configuration (ModelArgs names) and weights, by the release's names."""

    name: str
    config: dict
    weights: dict

    @property
    def is_fp8(self):
        return any(tensor.dtype == "F8_E4M3" for tensor in self.weights.values())


def read_case(paths):
    """A case from all of its parts. Q2_K tensors get the dtype Q2_K and a shape that counts values."""
    weights, metadata = {}, {}
    for path in paths:
        metadata, tensors = read_safetensors(pathlib.Path(path))
        weights.update({name: t for name, t in tensors.items() if re.match(r"layers\.\d+\.attn\.", name)})
    form = json.loads(metadata.get("weights", '{"format": "", "tensors": []}'))
    for name in form["tensors"] if form["format"] == "q2_k" else []:
        rows, n_bytes = weights[name].shape
        weights[name] = Tensor("Q2_K", [rows, n_bytes // 84 * 256], weights[name].data)
    order = list(GGUF_NAMES)

    def key(name):
        _, layer, _, rest = name.split(".", 3)
        return int(layer), order.index(rest.replace(".scale", ".weight")), rest.endswith(".scale")

    return Case(metadata["case"], json.loads(metadata["config"]), {n: weights[n] for n in sorted(weights, key=key)})


def find_case(folder, name):
    """The files of a case by its name."""
    paths = sorted(pathlib.Path(folder).glob(f"{name}.*"))
    if not paths:
        raise FileNotFoundError(f"no golden case {name} in {folder}")
    return read_case(paths)


def values_of(case, name):
    """The float32 values of a weight, whatever it is stored as."""
    tensor = case.weights[name]
    if tensor.dtype != "F8_E4M3":
        return ggml_blocks.decode(tensor.dtype, tensor.data)
    scales = case.weights[name.replace(".weight", ".scale")].data
    return ggml_blocks.expand_fp8(tensor.data, scales, *tensor.shape)
