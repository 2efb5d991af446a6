"""A file as large as all layers of DeepSeek-V4.1-Flash, of which only the header takes any disk: the data is a hole."""
import json
import struct

WIDTHS = {"F8_E4M3": 1, "F8_E8M0": 1, "BF16": 2, "F32": 4}
N_LAYERS, N_DRAFT = 40, 3
KV_SOURCES, INDEX_SOURCES = (2, 8, 14, 20), (2, 8, 14, 20, 24, 28, 32, 36)
RATIOS = [0] * 2 + [2] * 18 + [1] * 20 + [0] * N_DRAFT

CONFIG = {
    "n_layers": N_LAYERS, "dim": 5120, "n_heads": 64, "head_dim": 512, "rope_head_dim": 64, "q_lora_rank": 1280,
    "o_groups": 8, "o_lora_rank": 1024, "window_size": 128, "compress_ratios": RATIOS,
    "kv_source_layers": list(KV_SOURCES), "index_source_layers": list(INDEX_SOURCES), "index_n_heads": 32,
    "index_head_dim": 128, "index_topk": 512, "candidate_source_layer": 20, "candidate_topk_blocks": 2048,
    "candidate_block_size": 8, "norm_eps": 1e-20, "rope_theta": 10000.0, "compress_rope_theta": 160000.0,
    "rope_factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_seq_len": 65536, "max_seq_len": 1048576,
    "dtype": "fp8", "scale_fmt": "ue8m0",
}  # fmt: skip


def layer_tensors(layer):
    """{name behind `attn.`: (dtype, shape)} of a layer as released."""
    fp8 = {"wq_a": [1280, 5120], "wq_b": [32768, 1280], "wkv": [512, 5120], "wo_a": [8192, 4096], "wo_b": [5120, 8192]}
    tensors = {"q_norm.weight": ("BF16", [1280]), "kv_norm.weight": ("BF16", [512]), "attn_sink": ("F32", [64])}
    if layer in KV_SOURCES:
        tensors["compressor.wkv.weight"] = ("BF16", [512, 5120])
        if RATIOS[layer] > 1:
            tensors["compressor.wgate.weight"] = ("BF16", [512, 5120])
        tensors["compressor.norm.weight"] = ("BF16", [512])
        tensors["indexer.wk.weight"] = ("BF16", [128, 512])
        tensors["indexer.k_norm.weight"] = ("BF16", [128])
    if layer in INDEX_SOURCES:
        fp8["indexer.wq_b"] = [4096, 1280]
        tensors["indexer.weights_proj.weight"] = ("BF16", [32, 5120])
    for name, (rows, cols) in fp8.items():
        tensors[name + ".weight"] = ("F8_E4M3", [rows, cols])
        tensors[name + ".scale"] = ("F8_E8M0", [rows // 32, cols // 32])
    return tensors


def n_bytes(dtype, shape):
    n = WIDTHS[dtype]
    for size in shape:
        n *= size
    return n


def write(folder, with_drafts=True):
    """Writes config.json and model.safetensors, and returns {name: bytes} of the latter."""
    header, sizes, offset = {}, {}, 0
    for layer in range(N_LAYERS + (N_DRAFT if with_drafts else 0)):
        prefix = f"layers.{layer}.attn." if layer < N_LAYERS else f"mtp.{layer - N_LAYERS}.attn."
        for name, (dtype, shape) in layer_tensors(layer).items():
            sizes[prefix + name] = size = n_bytes(dtype, shape)
            header[prefix + name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
            offset += size
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
    return sizes
