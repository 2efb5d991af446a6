#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets, below tests/fuzz/seeds: small files with the headers of real checkpoints; and
beside them the words that libFuzzer puts together anew, in dictionaries.

    make_seeds.py            write them
    make_seeds.py --check    exit with 1 when a file there differs from what would be written, is missing or is not ours

Names, keys and layouts are the release's and those of published GGUF files; sizes are small, and data is zeros. One
file of each format is as its own package writes it.
"""

import base64
import json
import pathlib
import struct
import sys
import zlib

HERE = pathlib.Path(__file__).resolve().parent

# --- config.json -----------------------------------------------------------------------------------------------------

RATIOS = [0, 0] + [2] * 18 + [1] * 20 + [0] * 3  # 43 entries for 40 layers: three draft layers follow
KV_SOURCES = [2, 8, 14, 20]
INDEX_SOURCES = [2, 8, 14, 20, 24, 28, 32, 36]

RELEASE = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "quantization_config": {
        "quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [32, 32], "expert_dtype": "fp4"},
    "text_config": {
        "model_type": "deepseek_v41_text", "vocab_size": 129280, "hidden_size": 5120, "num_hidden_layers": 40,
        "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64,
        "q_lora_rank": 1280, "o_lora_rank": 1024, "o_groups": 8, "sliding_window": 128, "compress_ratios": RATIOS,
        "kv_source_layer_ids": KV_SOURCES, "index_source_layer_ids": INDEX_SOURCES, "index_n_heads": 32,
        "index_head_dim": 128, "index_topk": 512, "candidate_source_layer_id": 20, "candidate_topk_blocks": 2048,
        "candidate_block_size": 8, "rope_theta": 10000, "compress_rope_theta": 160000,
        "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                         "original_max_position_embeddings": 65536},
        "max_position_embeddings": 1048576, "rms_norm_eps": 1e-20, "attention_bias": False,
        "tie_word_embeddings": False, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
        "engram_layer_ids": [1, 14], "num_nextn_predict_layers": 3, "dspark_block_size": 5,
        "dspark_target_layer_ids": [37, 38, 39], "moe_intermediate_size": 2304, "n_routed_experts": 384,
        "scoring_func": "sqrtsoftplus", "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "hidden_act": "silu",
        "engram_num_embeddings": [384006168, 384016682]},
    "vision_config": {"hidden_size": 1024, "patch_size": 14},
}

FLAT = {
    "dim": 64, "n_layers": 4, "n_heads": 4, "head_dim": 32, "rope_head_dim": 8, "q_lora_rank": 32, "o_lora_rank": 16,
    "o_groups": 2, "window_size": 4, "compress_ratios": [0, 2, 1, 1], "kv_source_layers": [1, 2],
    "index_source_layers": [1, 2, 3], "index_n_heads": 2, "index_head_dim": 32, "index_topk": 4,
    "candidate_source_layer": 2, "candidate_topk_blocks": 2, "candidate_block_size": 2, "norm_eps": 1e-20,
    "rope_theta": 10000.0, "compress_rope_theta": 160000.0, "rope_factor": 16, "beta_fast": 32, "beta_slow": 1,
    "original_seq_len": 65536, "max_seq_len": 4096,
}

WINDOW_ONLY = dict(FLAT, n_layers=1, compress_ratios=[0], kv_source_layers=[], index_source_layers=[],
                   candidate_source_layer=-1)


def text(value, **style):
    return json.dumps(value, **style).encode()


# --- safetensors -----------------------------------------------------------------------------------------------------

DTYPE_BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "U8": 1}


def projection(name, rows, columns):
    return [(name + ".weight", "F8_E4M3", [rows, columns]), (name + ".scale", "F8_E8M0", [rows // 32, columns // 32])]


def attention(layer, source, index_source, gate):
    """A layer's tensors in the release's order of dtypes and with its ranks, 32 values to a block."""
    prefix = f"layers.{layer}.attn."
    tensors = []
    for name in ("wq_a", "wq_b", "wkv", "wo_a", "wo_b"):
        tensors += projection(prefix + name, 32, 32)
    tensors += [(prefix + "q_norm.weight", "BF16", [32]), (prefix + "kv_norm.weight", "BF16", [32]),
                (prefix + "attn_sink", "F32", [2])]
    if source:
        tensors += [(prefix + "compressor.wkv.weight", "BF16", [32, 32]),
                    (prefix + "compressor.norm.weight", "BF16", [32]),
                    (prefix + "indexer.wk.weight", "BF16", [32, 32]),
                    (prefix + "indexer.k_norm.weight", "BF16", [32])]
    if gate:
        tensors.append((prefix + "compressor.wgate.weight", "BF16", [32, 32]))
    if index_source:
        tensors += projection(prefix + "indexer.wq_b", 32, 32)
        tensors.append((prefix + "indexer.weights_proj.weight", "BF16", [1, 32]))
    return tensors


def safetensors(tensors, metadata=None):
    header, offset = {}, 0
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, dtype, shape in tensors:
        n_bytes = DTYPE_BYTES[dtype]
        for size in shape:
            n_bytes *= size
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + n_bytes]}
        offset += n_bytes
    encoded = text(header, separators=(",", ":"))
    encoded += b" " * (-len(encoded) % 8)
    return struct.pack("<Q", len(encoded)) + encoded + bytes(offset)


# --- index -----------------------------------------------------------------------------------------------------------

def index():
    """The attention tensors of some layers over 48 shards."""
    names = []
    for layer in (0, 2, 20, 24):
        names += [name for name, _, _ in attention(layer, layer in (2, 20), layer >= 2, layer == 2)]
    names.append("mtp.0.attn.wq_a.weight")
    return {"metadata": {"total_size": 123456789012},
            "weight_map": {name: f"model-{1 + i % 48:05d}-of-00048.safetensors" for i, name in enumerate(names)}}


# --- GGUF ------------------------------------------------------------------------------------------------------------

VALUE_TYPES = {"u8": (0, "<B"), "i8": (1, "<b"), "u16": (2, "<H"), "i16": (3, "<h"), "u32": (4, "<I"), "i32": (5, "<i"),
               "f32": (6, "<f"), "bool": (7, "<?"), "u64": (10, "<Q"), "i64": (11, "<q"), "f64": (12, "<d")}
TENSOR_TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q8_0": (8, 32, 34),
                "Q2_K": (10, 256, 84), "Q4_K": (12, 256, 144), "BF16": (30, 1, 2),
                "MXFP4": (39, 32, 17), "unknown": (99, 1, 1)}


def gguf_string(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf_value(kind, value):
    """The value's type and its bytes; a list has the kind of its entries in brackets."""
    if kind.startswith("["):
        entries = [gguf_value(kind[1:-1], entry) for entry in value]
        inner = gguf_value(kind[1:-1], 0)[0] if not entries and kind[1] != "[" else entries[0][0]
        return 9, struct.pack("<IQ", inner, len(value)) + b"".join(data for _, data in entries)
    if kind == "str":
        return 8, gguf_string(str(value))
    number, layout = VALUE_TYPES[kind]
    return number, struct.pack(layout, value)


def gguf(metadata, tensors, version=3, alignment=32):
    table, data = b"", b""
    for name, kind, dims in tensors:
        number, values, n_bytes = TENSOR_TYPES[kind]
        for size in dims:
            n_bytes *= size
        data += bytes(-len(data) % alignment)
        table += gguf_string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        table += struct.pack("<IQ", number, len(data))
        data += bytes(n_bytes // values)
    entries = b""
    for key, kind, value in metadata:
        number, encoded = gguf_value(kind, value)
        entries += gguf_string(key) + struct.pack("<I", number) + encoded
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata)) + entries + table
    return header + bytes(-len(header) % alignment) + data


def deepseek41(with_sources):
    """The metadata of a published file; the lists of sources have no agreed keys, and some files have none."""
    keys = [("block_count", "u32", 40), ("context_length", "u32", 1048576), ("embedding_length", "u32", 5120),
            ("attention.head_count", "u32", 64), ("attention.head_count_kv", "u32", 1),
            ("attention.key_length", "u32", 512), ("attention.value_length", "u32", 512),
            ("rope.dimension_count", "u32", 64), ("attention.q_lora_rank", "u32", 1280),
            ("attention.output_group_count", "u32", 8), ("attention.output_lora_rank", "u32", 1024),
            ("attention.sliding_window", "u32", 128), ("attention.compress_ratios", "[u32]", RATIOS),
            ("attention.indexer.head_count", "u32", 32), ("attention.indexer.key_length", "u32", 128),
            ("attention.indexer.top_k", "u32", 512), ("attention.layer_norm_rms_epsilon", "f32", 1e-20),
            ("rope.freq_base", "f32", 10000.0), ("attention.compress_rope_freq_base", "f32", 160000.0),
            ("rope.scaling.type", "str", "yarn"), ("rope.scaling.factor", "f32", 16.0),
            ("rope.scaling.original_context_length", "u32", 65536), ("rope.scaling.yarn_beta_fast", "f32", 32.0),
            ("rope.scaling.yarn_beta_slow", "f32", 1.0), ("hash_layer_count", "u32", 0)]
    if with_sources:
        keys += [("attention.kv_source_layer_ids", "[i32]", KV_SOURCES),
                 ("attention.index_source_layer_ids", "[u64]", INDEX_SOURCES),
                 ("attention.indexer.candidate_source_layer", "i64", 20),
                 ("attention.indexer.candidate_top_k", "u16", 2048),
                 ("attention.indexer.candidate_block_size", "u8", 8)]
    return [("general.architecture", "str", "deepseek41"), ("general.quantization_version", "u32", 2)] + \
        [("deepseek41." + key, kind, value) for key, kind, value in keys]


TOKENIZER = [("tokenizer.ggml.model", "str", "gpt2"), ("tokenizer.ggml.tokens", "[str]", ["<s>", "a", "\u0120the", ""]),
             ("tokenizer.ggml.scores", "[f32]", [0.0, -1.5]), ("tokenizer.ggml.token_type", "[i32]", [3, 1]),
             ("tokenizer.ggml.add_bos_token", "bool", True), ("tokenizer.ggml.merges", "[str]", [])]
SPLIT = [("split.no", "u16", 1), ("split.count", "u16", 7), ("split.tensors.count", "i32", 1046)]
BLOCK = [("blk.2.attn_q_a.weight", "Q2_K", [256, 2]), ("blk.2.attn_q_a_norm.weight", "F32", [32]),
         ("blk.2.attn_kv.weight", "Q8_0", [64, 2]), ("blk.2.attn_output_a.weight", "Q4_K", [256, 1]),
         ("blk.2.attn_sinks.weight", "F32", [2]), ("blk.2.attn_compressor_kv.weight", "BF16", [8, 2]),
         ("blk.2.indexer.proj.weight", "F16", [8, 2]), ("blk.2.ffn_gate_exps.weight", "MXFP4", [32, 2, 2])]
KINDS = [("kinds.u8", "u8", 255), ("kinds.i8", "i8", -1), ("kinds.u16", "u16", 65535), ("kinds.i16", "i16", -1),
         ("kinds.u32", "u32", 2**32 - 1), ("kinds.i32", "i32", -1), ("kinds.f32", "f32", 0.5),
         ("kinds.bool", "bool", False),
         ("kinds.str", "str", "text"), ("kinds.u64", "u64", 2**64 - 1), ("kinds.i64", "i64", -(2**63)),
         ("kinds.f64", "f64", 0.25), ("kinds.lists", "[[i16]]", [[1, 2], [3]]), ("kinds.empty", "[u8]", []),
         ("kinds.bools", "[bool]", [True, False]), ("kinds.deep", "[[[str]]]", [[["x"]], [["y", "z"]]])]


# A whole model of two layers: one with its window alone, one that is a source of everything.
SIZES = {"block_count": 2, "embedding_length": 32, "attention.head_count": 2, "attention.key_length": 32,
         "attention.value_length": 32, "rope.dimension_count": 8, "attention.q_lora_rank": 32,
         "attention.output_group_count": 2, "attention.output_lora_rank": 16, "attention.sliding_window": 4,
         "attention.compress_ratios": [0, 2], "attention.indexer.head_count": 1, "attention.indexer.key_length": 32,
         "attention.indexer.top_k": 4}
WINDOW_LAYER = [("attn_q_a.weight", "Q4_0", [32, 32]), ("attn_q_a_norm.weight", "F32", [32]),
                ("attn_q_b.weight", "Q4_0", [32, 64]), ("attn_kv.weight", "Q4_0", [32, 32]),
                ("attn_kv_a_norm.weight", "F32", [32]), ("attn_output_a.weight", "Q4_0", [32, 32]),
                ("attn_output_b.weight", "Q4_0", [32, 32]), ("attn_sinks.weight", "F32", [2])]
SOURCE_LAYER = [("attn_compressor_kv.weight", "Q4_0", [32, 32]), ("attn_compressor_gate.weight", "Q4_0", [32, 32]),
                ("attn_compressor_norm.weight", "F32", [32]), ("indexer.attn_k.weight", "Q4_0", [32, 32]),
                ("indexer.k_norm.weight", "F32", [32]), ("indexer.attn_q_b.weight", "Q4_0", [32, 32]),
                ("indexer.proj.weight", "Q4_0", [32, 1])]


def tiny():
    metadata = [(key, kind, SIZES.get(key.removeprefix("deepseek41."), value))
                for key, kind, value in deepseek41(False)]
    tensors = [("blk.0." + name, kind, dims) for name, kind, dims in WINDOW_LAYER]
    tensors += [("blk.1." + name, kind, dims) for name, kind, dims in WINDOW_LAYER + SOURCE_LAYER]
    return gguf(metadata, tensors)


# --- what the formats' own packages write: safetensors 0.8 (save_file) and gguf 0.19 (GGUFWriter), deflated ------------

WRITTEN_BY_SAFETENSORS = (
    "eNqNkcGKwjAQhvVNZM5DaTQbSi+CB0EQfAAtYbSpBm2rTUCk9O4je9wYPUQqy/6HgRnm+xiY+3Dg04KUpbKUkyUpIW2hqJuSLKRQnQFhV1eF"
    "3ruu3UCuyw2kI8E76BDMjk7UPInc3s7KrcwFd4Q50LNbZwheWheFUda4SYxJ5sAT3VRjojgiaytfpNHV8cM0GQemcV+VIBN91/UiKboqvT/Y"
    "P2zI+z4mkPvjdAgumAhAhjF+OYUnb3QborPVahmwk6/cD8u6buTz+sZjOvh/fgHit3xV")
WRITTEN_BY_GGUF = (
    "eNrtUs1OAyEQZqvVajx4sBpjEz14Jpp4NMZT+wQ9ExZGlsDCFqgan8ZHFTY0IbumvoCTTJif74P5YbVaLw8QQkmTnObzIp8CDDiqMXWskQFY"
    "2DqYFTgO0HkA9fR4OYrgWlumCLNbEw5jZhL1eoxi1gT4DESDEaFJQHSO0M0YCG0NnEsjCuhd1NsxlIYAJkhrcAOU/1mCsx3gNwcbUlMPRyn7"
    "ulje77uX2bZz4D1xNPr+JOKm+YGdJPtsMEdD235+0xz3LdV6kZ1gFRj5BQ4L0caZc05q60kfPo75av47sHf7EmZFCbuVPvuXKpv0Khu1Vvgh"
    "dWOIl0Z5/AFSNKEadIAGv6GgqffMmeQtoIJbFbH5mLshdA859fCN/qWXHz6qhDI=")


def inflated(encoded):
    return zlib.decompress(base64.b64decode(encoded))


SEEDS = {
    "config_json": {
        "release.json": text(RELEASE, indent=2), "flat.json": text(FLAT), "window_only.json": text(WINDOW_ONLY),
        "compact.json": text({"text_config": RELEASE["text_config"]}, separators=(",", ":"))},
    "index": {
        "release.json": text(index(), indent=2), "empty.json": text({"weight_map": {}}),
        "single.json": text({"weight_map": {"a\u00fc\n": "model.safetensors"}, "metadata": {}})},
    "safetensors": {
        "source": safetensors(attention(2, True, True, True), {"format": "pt"}),
        "window": safetensors(attention(0, False, False, False)),
        "empty": safetensors([]),
        "of_the_package": inflated(WRITTEN_BY_SAFETENSORS),
        "metadata": safetensors([], {"format": "pt", "config": json.dumps(FLAT), "": "\u00fc"}),
        "shapes": safetensors([("scalar", "U8", []), ("none", "F32", [0, 5]), ("five", "U8", [1, 2, 1, 1, 1])])},
    "gguf": {
        "first_shard": gguf(deepseek41(True) + TOKENIZER + SPLIT, BLOCK),
        "no_sources": gguf(deepseek41(False), BLOCK[:3], version=2),
        "later_shard": gguf(SPLIT, BLOCK[1:2]), "empty": gguf([], []), "kinds": gguf(KINDS, []),
        "tiny": tiny(), "of_the_package": inflated(WRITTEN_BY_GGUF),
        "aligned_64": gguf([("general.alignment", "u32", 64)], BLOCK[:3] + [("x", "unknown", [3, 1, 1, 1])],
                           alignment=64)},
}



# --- dictionaries ----------------------------------------------------------------------------------------------------

def keys_of(value):
    """Every key and every text of a JSON document."""
    if isinstance(value, dict):
        return set(value) | set().union(*map(keys_of, value.values())) if value else set()
    if isinstance(value, list):
        return set().union(*map(keys_of, value)) if value else set()
    return {value} if isinstance(value, str) else set()


def json_words(*documents):
    words = set().union(*map(keys_of, documents))
    numbers = ["-1", "0", "32", "1e400", "1.5", "9223372036854775807", "9223372036854775808", "18446744073709551616"]
    literals = ["null", "true", "[]", "{}", "{", "}", "[", "]", ",", ":", "\\u0000", "\\ud800"]
    return [text(word) for word in sorted(words)] + [word.encode() for word in numbers + literals]


def gguf_words():
    keys = [gguf_string(key) for key, _, _ in deepseek41(True) + SPLIT + [("general.alignment", "", 0)]]
    numbers = [struct.pack("<I", number) for number in range(13)]
    numbers += [struct.pack("<Q", number) for number in (0, 1, 2**31, 2**32 - 1, 2**61, 2**63 - 1, 2**63, 2**64 - 1)]
    return keys + numbers + [struct.pack("<I", number) for number, _, _ in TENSOR_TYPES.values()]


SAFETENSORS_HEADER = {"__metadata__": {"format": "pt"}, "a.weight": {"dtype": "U8", "shape": [], "data_offsets": []},
                      "a.scale": list(DTYPE_BYTES)}

DICTIONARIES = {
    "config_json": json_words(RELEASE, FLAT), "index": json_words(index()), "gguf": gguf_words(),
    "safetensors": json_words(SAFETENSORS_HEADER)}


def dictionary(words):
    escaped = ("".join(f"\\x{byte:02x}" if byte < 32 or byte > 126 or byte in b'"\\' else chr(byte) for byte in word)
               for word in words)
    return "".join(f'"{word}"\n' for word in escaped).encode()


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    folders = {HERE / "seeds" / target: seeds for target, seeds in SEEDS.items()}
    folders[HERE / "dictionaries"] = {target: dictionary(words) for target, words in DICTIONARIES.items()}
    wrong = []
    for folder, files in folders.items():
        if not check:
            folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            path = folder / name
            if not check:
                path.write_bytes(content)
            elif not path.is_file() or path.read_bytes() != content:
                wrong.append(f"{path}: missing, or not what make_seeds.py writes")
        wrong += [f"{path}: not one of make_seeds.py's" for path in folder.iterdir() if path.name not in files]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
