"""A golden case in the forms that safetensors checkpoints have: the release's folder of shards with its index, and one
file with a flat config.json.

Weights take the release's dtypes where that loses nothing: norms become BF16, and so do compressors of ratio > 1 whose
values are bf16-exact; the others stay F32, as some of the golden cases have them. Beside them lie tensors that are not
the attention layers', and must never be read.
"""
import dataclasses
import json
import pathlib

import ggml_blocks
from tensor_files import Tensor, by_alignment, safetensors_bytes

# ModelArgs name -> key of config.json's text_config.
RELEASE_KEYS = {
    "vocab_size": "vocab_size", "dim": "hidden_size", "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads", "head_dim": "head_dim", "rope_head_dim": "qk_rope_head_dim",
    "q_lora_rank": "q_lora_rank", "o_lora_rank": "o_lora_rank", "o_groups": "o_groups",
    "window_size": "sliding_window", "compress_ratios": "compress_ratios",
    "kv_source_layers": "kv_source_layer_ids", "index_source_layers": "index_source_layer_ids",
    "index_n_heads": "index_n_heads", "index_head_dim": "index_head_dim", "index_topk": "index_topk",
    "candidate_source_layer": "candidate_source_layer_id", "candidate_topk_blocks": "candidate_topk_blocks",
    "candidate_block_size": "candidate_block_size", "rope_theta": "rope_theta",
    "compress_rope_theta": "compress_rope_theta", "max_seq_len": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
}  # fmt: skip
ROPE_SCALING_KEYS = {"rope_factor": "factor", "beta_fast": "beta_fast", "beta_slow": "beta_slow",
                     "original_seq_len": "original_max_position_embeddings"}  # fmt: skip


def release_name(name, n_layers):
    """Draft layers, which the cases count on from the backbone's, are `mtp.M` in the release."""
    _, layer, rest = name.split(".", 2)
    return name if int(layer) < n_layers else f"mtp.{int(layer) - n_layers}.{rest}"


def release_tensor(name, tensor):
    if tensor.dtype == "Q2_K":
        raise ValueError(f"{name} is Q2_K, which safetensors has no dtype for: write a GGUF")
    narrow = tensor.dtype == "F32" and not name.endswith("attn_sink") and ggml_blocks.is_bf16_exact(tensor.data)
    if not narrow:
        return tensor
    return Tensor("BF16", tensor.shape, ggml_blocks.bf16_bytes(ggml_blocks.words("f", tensor.data)))


def release_tensors(case):
    return {release_name(name, case.config["n_layers"]): release_tensor(name, tensor)
            for name, tensor in case.weights.items()}  # fmt: skip


def foreign_tensors(config):
    """Neighbours of the attention tensors in the release's files, dtypes that no attention tensor has among them."""
    dim, experts = config["dim"], range(4)
    noise = bytes(range(255, -1, -1))  # NaN patterns among them
    fill = lambda n: (noise * (n // 256 + 1))[:n]
    tensors = {"embed.weight": Tensor("BF16", [128, dim], fill(256 * dim)),
               "head.weight": Tensor("F32", [128, dim], fill(512 * dim)),
               "norm.weight": Tensor("BF16", [dim], fill(2 * dim)),
               "hc_head_fn": Tensor("F32", [4, dim], fill(16 * dim))}  # fmt: skip
    for layer in range(len(config["compress_ratios"])):
        prefix = release_name(f"layers.{layer}.", config["n_layers"])
        tensors[prefix + "attn_norm.weight"] = Tensor("BF16", [dim], fill(2 * dim))
        tensors[prefix + "ffn_norm.weight"] = Tensor("BF16", [dim], fill(2 * dim))
        tensors[prefix + "engram.token_map"] = Tensor("I64", [16], fill(128))
        for expert in experts:
            tensors[f"{prefix}ffn.experts.{expert}.w1.weight"] = Tensor("I8", [64, dim // 2], fill(32 * dim))
            tensors[f"{prefix}ffn.experts.{expert}.w1.scale"] = Tensor("F8_E8M0", [64, dim // 32], fill(2 * dim))
    return tensors


def release_config(config, fp8):
    """config.json as released: the text model's keys nested, others around them."""
    candidates = config.get("candidate_source_layer", -1) >= 0
    text = {"model_type": "deepseek_v41_text"}
    for name, key in RELEASE_KEYS.items():
        if name in config and (candidates or not name.startswith("candidate_")):
            text[key] = config[name]
    text["rope_scaling"] = {"rope_type": "yarn", **{key: config[name] for name, key in ROPE_SCALING_KEYS.items()}}
    text.update(num_key_value_heads=1, attention_bias=False, tie_word_embeddings=False, hidden_act="silu", hc_mult=4,
                hc_sinkhorn_iters=20, hc_eps=1e-6, engram_layer_ids=[1], moe_intermediate_size=64, n_routed_experts=4,
                num_nextn_predict_layers=len(config["compress_ratios"]) - config["n_layers"])  # fmt: skip
    document = {"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "text_config": text,
                "vision_config": {"hidden_size": 8, "num_hidden_layers": 2}}  # fmt: skip
    if fp8:
        document["quantization_config"] = {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [32, 32],
                                           "expert_dtype": "fp4"}  # fmt: skip
    return document


@dataclasses.dataclass
class Release:
    """The release's folder. `index` is what model.safetensors.index.json will say; shards are {name: Tensor}."""

    config: dict
    shards: list
    index: dict

    def shard_name(self, k):
        return f"model-{k + 1:05}-of-{len(self.shards):05}.safetensors"

    def find(self, name):
        """The shard that holds a tensor."""
        return next(shard for shard in self.shards if name in shard)

    def save(self, folder):
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=2))
        (folder / "model.safetensors.index.json").write_text(json.dumps(self.index, indent=2))
        for k, shard in enumerate(self.shards):
            (folder / self.shard_name(k)).write_bytes(safetensors_bytes(by_alignment(shard)))
        return folder


def make_release(case, n_shards=3, scatter=False):
    """The last shard holds foreign tensors only. Weights go to the others one after the other by size, or, scattered,
    in turns, which parts codes from their scales."""
    if n_shards < 2:
        raise ValueError(f"{n_shards} shards, need 2 or more: the last one holds foreign tensors only")
    shards = [{} for _ in range(n_shards)]
    weights = release_tensors(case)
    total, seen = sum(len(t.data) for t in weights.values()), 0
    for i, (name, tensor) in enumerate(weights.items()):
        shards[i % (n_shards - 1) if scatter else seen * (n_shards - 1) // total][name] = tensor
        seen += len(tensor.data)
    for i, (name, tensor) in enumerate(foreign_tensors(case.config).items()):
        shards[-1 if i % 2 else i // 2 % n_shards][name] = tensor
    release = Release(release_config(case.config, case.is_fp8), shards, {})
    release.index = make_index(release)
    return release


def make_index(release):
    return {"metadata": {"total_size": sum(len(t.data) for shard in release.shards for t in shard.values())},
            "weight_map": {name: release.shard_name(k) for k, shard in enumerate(release.shards)
                           for name in sorted(shard)}}  # fmt: skip


@dataclasses.dataclass
class Flat:
    """One safetensors file with a config.json of the reference's names beside it."""

    config: dict
    tensors: dict

    def save(self, path):
        """`path` is the folder."""
        path = pathlib.Path(path)
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(self.config))
        (path / "model.safetensors").write_bytes(safetensors_bytes(by_alignment(self.tensors), {"format": "pt"}))
        return path / "model.safetensors"


def make_flat(case):
    config = {**case.config, **({"dtype": "fp8", "scale_fmt": "ue8m0"} if case.is_fp8 else {"dtype": "bf16"})}
    return Flat(config, {**release_tensors(case), **foreign_tensors(case.config)})
