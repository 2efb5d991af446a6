"""quickstart: load attention layers from a safetensors file, run a prompt of 12 tokens, then decode 4 more.

A layer's output is the next layer's input here, and the last layer's is the next token, to keep this short: a real
model has the norms, the residual and the MoE in between. Prints what examples/c/quickstart.c prints. Needs numpy; the
rows are bf16 as uint16, since their bits are made here: ml_dtypes.bfloat16 does as well.
Usage: quickstart.py [FILE.safetensors]
"""
from __future__ import annotations

import sys

import ds41
import numpy as np

N_PROMPT, N_DECODE = 12, 4


def main(path: str) -> None:
    with ds41.File(path) as file:
        config = ds41.Config.parse(file.metadata("config") or "")
        model = ds41.Model(config)
        for layer in range(config.n_compress_ratios):
            model.set_layer(layer, file.layer_weights(layer))  # copies; knows which tensors the layer must have
    ctx, seq = ds41.Context(model), ds41.Sequence(model)
    print(f"{config.n_compress_ratios} layers, backend {model.backend}")

    i = np.arange(N_PROMPT * config.dim)
    rows = ((i & 1) << 15 | (0x3E00 + i * 37 % 256)).astype(np.uint16).reshape(N_PROMPT, config.dim)  # bf16 bits
    pos = 0
    while pos < N_PROMPT + N_DECODE:
        n = len(rows)
        if pos > 0:  # decode: the host's part once per step, for one or many sequences
            ctx.decode_prep([seq])
        for layer in range(config.n_compress_ratios):  # in place
            if pos > 0:
                ctx.decode_body(layer, rows, out=rows)
            else:
                ctx.prefill(layer, seq, rows, out=rows)
        ctx.synchronize()
        rows = rows[-1:]  # the next token
        values = (rows[0, :4].astype(np.uint32) << 16).view(np.float32)
        print(f"{n:2} tokens from position {pos:2}: cache of {seq.n_bytes} bytes, last row "
              f"{' '.join(f'{value:g}' for value in values)} ...")  # fmt: skip
        pos += n


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "tests/fixtures/a_golden_stable.safetensors")
    except ds41.Error as error:
        sys.exit(f"quickstart failed: {error}")
