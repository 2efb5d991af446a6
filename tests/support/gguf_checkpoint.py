"""A golden case as a GGUF, in one file or split, in any of the spellings that published files have for the roles of
layers. FP8 weights become BF16, which holds their values; Q2_K weights stay.
"""
import dataclasses
import pathlib

import ggml_blocks
from golden_case import GGUF_NAMES, values_of
from tensor_files import ALIGNMENT, Tensor, gguf_bytes

ALIASES = {"indexer.attn_k.weight": "indexer_compressor_kv.weight",
           "indexer.k_norm.weight": "indexer_compressor_norm.weight"}  # fmt: skip

# How published files spell what has no agreed key; "none" leaves it to be derived.
ROLE_KEYS = {
    "attention_ids": ("attention.kv_source_layer_ids", "attention.index_source_layer_ids"),
    "ids": ("kv_source_layer_ids", "index_source_layer_ids"),
    "attention_layers": ("attention.kv_source_layers", "attention.index_source_layers"),
    "none": (),
}
CANDIDATE_KEYS = {
    "indexer": tuple("attention.indexer.candidate_" + word for word in ("source_layer", "top_k", "block_size")),
    "attention": tuple("attention.candidate_" + word for word in ("source_layer_id", "topk_blocks", "block_size")),
    "none": (),
}


@dataclasses.dataclass
class Gguf:
    """`metadata` maps keys to (kind, value), `tensors` names to tensors of ggml's types."""

    metadata: dict
    tensors: dict

    def save(self, path, n_shards=1, alignment=ALIGNMENT):
        """Writes PATH, or with several shards PATH's stem with their numbers, and returns the path of the first. Only
        the first shard has metadata beyond `split.*`, so the others have the default alignment."""
        path = pathlib.Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = dict(self.metadata)
        if alignment != ALIGNMENT:
            metadata["general.alignment"] = ("u32", alignment)
        if n_shards == 1:
            path.write_bytes(gguf_bytes(metadata, self.tensors, alignment))
            return path
        names = list(self.tensors)
        paths = [path.with_name(f"{path.stem}-{k + 1:05}-of-{n_shards:05}.gguf") for k in range(n_shards)]
        for k, shard in enumerate(paths):
            split = {"split.no": ("u16", k), "split.count": ("u16", n_shards),
                     "split.tensors.count": ("i32", len(names))}  # fmt: skip
            chosen = names[k * len(names) // n_shards : (k + 1) * len(names) // n_shards]
            own = {name: self.tensors[name] for name in chosen}
            data = gguf_bytes({**metadata, **split}, own, alignment) if k == 0 else gguf_bytes(split, own)
            shard.write_bytes(data)
        return paths[0]


def gguf_metadata(config, role_keys="attention_ids", candidate_keys="indexer", draft_ratios=True):
    u32 = lambda key, name: {key: ("u32", config[name])}
    real = lambda key, name: {key: ("f32", config[name])}
    n_layers = config["n_layers"]
    own = {
        "block_count": ("u32", n_layers),
        **u32("context_length", "max_seq_len"), **u32("embedding_length", "dim"),
        **u32("attention.head_count", "n_heads"), "attention.head_count_kv": ("u32", 1),
        **u32("attention.key_length", "head_dim"), **u32("attention.value_length", "head_dim"),
        **u32("rope.dimension_count", "rope_head_dim"), **u32("attention.q_lora_rank", "q_lora_rank"),
        **u32("attention.output_group_count", "o_groups"), **u32("attention.output_lora_rank", "o_lora_rank"),
        **u32("attention.sliding_window", "window_size"),
        "attention.compress_ratios": ("[]u32", config["compress_ratios"][: None if draft_ratios else n_layers]),
        **u32("attention.indexer.head_count", "index_n_heads"),
        **u32("attention.indexer.key_length", "index_head_dim"), **u32("attention.indexer.top_k", "index_topk"),
        **real("attention.layer_norm_rms_epsilon", "norm_eps"), **real("rope.freq_base", "rope_theta"),
        **real("attention.compress_rope_freq_base", "compress_rope_theta"), "rope.scaling.type": ("string", "yarn"),
        **real("rope.scaling.factor", "rope_factor"),
        **u32("rope.scaling.original_context_length", "original_seq_len"),
        **real("rope.scaling.yarn_beta_fast", "beta_fast"), **real("rope.scaling.yarn_beta_slow", "beta_slow"),
        "hash_layer_count": ("u32", 0), "hyper_connection.count": ("u32", 4), "expert_count": ("u32", 4),
        "engram.layer_ids": ("[]i32", [1]), "expert_weights_norm": ("bool", True),
    }  # fmt: skip
    for key, name in zip(ROLE_KEYS[role_keys], ("kv_source_layers", "index_source_layers")):
        own[key] = ("[]i32", config[name])
    names = ("candidate_source_layer", "candidate_topk_blocks", "candidate_block_size")
    for key, name in zip(CANDIDATE_KEYS[candidate_keys], names):
        own[key] = ("i32", config[name])
    metadata = {"general.architecture": ("string", "deepseek41"), "general.name": ("string", "golden case"),
                "general.file_type": ("u32", 10), "tokenizer.ggml.model": ("string", "gpt2")}  # fmt: skip
    metadata.update({"deepseek41." + key: value for key, value in own.items()})
    metadata["tokenizer.ggml.tokens"] = ("[]string", [f"token {i} \u00e9" for i in range(200)])
    metadata["tokenizer.ggml.scores"] = ("[]f32", [i / 8 for i in range(200)])
    metadata["tokenizer.ggml.token_type"] = ("[]i32", [1] * 200)
    return metadata


def gguf_type(case, name, types):
    """The type that a weight gets: what `types` asks for its name or group, else the widest that it needs."""
    group = GGUF_NAMES[name.split(".", 3)[3]][1]
    dtype = case.weights[name].dtype
    asked = types.get(name.split(".", 3)[3], types.get(group))
    if asked and dtype != "Q2_K":
        return asked
    return {"F32": "F32", "BF16": "F32" if group == "norms" else "BF16", "F8_E4M3": "BF16", "Q2_K": "Q2_K"}[dtype]


def gguf_tensor(case, name, kind):
    tensor = case.weights[name]
    if kind == tensor.dtype:
        return tensor
    block = ggml_blocks.TYPES[kind][1]
    if tensor.shape[-1] % block:
        raise ValueError(f"{name} has rows of {tensor.shape[-1]} values, need a multiple of {block} for {kind}")
    return Tensor(kind, tensor.shape, ggml_blocks.encode(kind, values_of(case, name)))


def foreign_gguf(config):
    """Neighbours, one of a type that no attention tensor may have."""
    dim = config["dim"]
    tensors = {"token_embd.weight": Tensor("F16", [64, dim], bytes(128 * dim)),
               "output_norm.weight": Tensor("F32", [dim], bytes(4 * dim))}  # fmt: skip
    for layer in range(config["n_layers"]):
        tensors[f"blk.{layer}.attn_norm.weight"] = Tensor("F32", [dim], b"\xff" * (4 * dim))
        tensors[f"blk.{layer}.ffn_gate_exps.weight"] = Tensor("Q3_K", [4, 64, 256], b"\xff" * (4 * 64 * 110))
        tensors[f"blk.{layer}.engram_token_map"] = Tensor("I32", [64], bytes(256))
    return tensors


def make_gguf(case, types=None, aliases=False, **metadata_options):
    """`types` maps a group or a name behind `attn.` to a type. FP8 becomes BF16, which holds its values."""
    tensors = {}
    for name in case.weights:
        if name.endswith(".scale"):
            continue
        _, layer, _, rest = name.split(".", 3)
        own = GGUF_NAMES[rest][0]
        own = ALIASES.get(own, own) if aliases else own
        tensors[f"blk.{layer}.{own}"] = gguf_tensor(case, name, gguf_type(case, name, types or {}))
    foreign = foreign_gguf(case.config)
    embedding = foreign.pop("token_embd.weight")
    return Gguf(gguf_metadata(case.config, **metadata_options),
                {"token_embd.weight": embedding, **tensors, **foreign})  # fmt: skip
