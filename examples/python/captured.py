"""captured: decode tokens of two sequences through all layers of a checkpoint; where the backend has graphs, each step
is one launch.

The layers work in place on the same rows, to keep this short: a real model captures on a stream of its own, with the
norms and the MoE in between (`ctx.capture(external=True)`). Prints what examples/c/captured.c prints.
Usage: captured.py PATH [BACKEND]
"""
from __future__ import annotations

import argparse
import array
import sys
from typing import Optional

import ds41

N_SEQS, N_TOKENS = 2, 8


def main(path: str, backend: Optional[str]) -> None:
    model = ds41.Model.load(path, backend=backend)
    config = model.config
    ctx, seqs = ds41.Context(model), [ds41.Sequence(model) for _ in range(N_SEQS)]

    n_values = N_SEQS * config.dim
    rows = array.array("H", ((i & 1) << 15 | (0x3E00 + i * 37 % 256) for i in range(n_values)))  # bf16, on the host
    buffer = ds41.Buffer(model, 2 * n_values)
    x = buffer.tensor([N_SEQS, config.dim])
    layers = range(config.n_layers)
    capturable = all(ctx.decode_capturable(layer) for layer in layers)
    graph: Optional[ds41.Graph] = None
    for _ in range(N_TOKENS):
        buffer.upload(rows)
        ctx.decode_prep(seqs)
        if capturable and graph is None:  # once; the capture runs nothing
            with ctx.capture() as graph:
                for layer in layers:
                    ctx.decode_body(layer, x, out=x)
        if graph is not None:
            graph.launch()
        else:
            for layer in layers:
                ctx.decode_body(layer, x, out=x)
        ctx.synchronize()
        buffer.download(rows)  # the next tokens
    print(f"backend {model.backend}, {'captured' if graph else 'layer by layer'}: {N_TOKENS} tokens of {N_SEQS} "
          f"sequences, last value {rows[-1]:04x}")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage="captured.py PATH [BACKEND]")
    parser.add_argument("path")
    parser.add_argument("backend", nargs="?")
    arguments = parser.parse_args()
    try:
        main(arguments.path, arguments.backend)
    except ds41.Error as error:
        sys.exit(f"captured: {error}")
