"""A case of one layer whose matrices take more than one chunk of the loader (1 MB), which no golden case's do: FP8
codes and scales drawn from a seed. Only sameness can be checked with it.
"""
import random

from golden_case import Case
from tensor_files import Tensor

CONFIG = {"vocab_size": 64, "dim": 512, "n_layers": 1, "n_heads": 10, "head_dim": 256, "rope_head_dim": 64,
          "q_lora_rank": 512, "o_lora_rank": 256, "o_groups": 2, "window_size": 8, "compress_ratios": [0],
          "kv_source_layers": [], "index_source_layers": [], "candidate_source_layer": -1, "candidate_topk_blocks": 0,
          "candidate_block_size": 0, "index_n_heads": 2, "index_head_dim": 64, "index_topk": 4, "rope_theta": 10000.0,
          "compress_rope_theta": 40000.0, "rope_factor": 2.0, "original_seq_len": 32, "beta_fast": 32, "beta_slow": 1,
          "norm_eps": 1e-20, "max_seq_len": 64}  # fmt: skip
NAN_CODES = bytes([0x7F, 0xFF])


def large_case():
    draw = random.Random(41)
    # bytes.translate: NaN codes become zeros of either sign.
    table = bytes.maketrans(NAN_CODES, b"\x00\x80")
    weights = {}
    q_rank, heads, hidden = CONFIG["q_lora_rank"], CONFIG["n_heads"] * CONFIG["head_dim"], CONFIG["dim"]
    groups, o_rank = CONFIG["o_groups"], CONFIG["o_groups"] * CONFIG["o_lora_rank"]
    for name, rows, cols in (("wq_a", q_rank, hidden), ("wq_b", heads, q_rank), ("wkv", CONFIG["head_dim"], hidden),
                             ("wo_a", o_rank, heads // groups), ("wo_b", hidden, o_rank)):  # fmt: skip
        scales = bytes(draw.randrange(112, 117) for _ in range(rows // 32 * (cols // 32)))
        codes = draw.getrandbits(8 * rows * cols).to_bytes(rows * cols, "little").translate(table)
        weights[f"layers.0.attn.{name}.weight"] = Tensor("F8_E4M3", [rows, cols], codes)
        weights[f"layers.0.attn.{name}.scale"] = Tensor("F8_E8M0", [rows // 32, cols // 32], scales)
    for name, size in (("q_norm", q_rank), ("kv_norm", CONFIG["head_dim"])):
        weights[f"layers.0.attn.{name}.weight"] = Tensor("BF16", [size], b"\x80\x3f" * size)
    weights["layers.0.attn.attn_sink"] = Tensor("F32", [CONFIG["n_heads"]], bytes(4 * CONFIG["n_heads"]))
    return Case("large", CONFIG, weights)
