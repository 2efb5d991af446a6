#!/usr/bin/env python3
"""Writes the weights of a golden case as a checkpoint: the release's folder of shards, one safetensors file with a flat
config.json, or a GGUF. Standard library only; also the module that tests import all of it from, to change what was made
before they save it.
"""
import argparse
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
# pylint: disable=unused-import
import ggml_blocks
from gguf_checkpoint import CANDIDATE_KEYS, ROLE_KEYS, Gguf, make_gguf
from golden_case import GGUF_NAMES, GROUPS, find_case, read_case, values_of
from safetensors_checkpoint import make_flat, make_index, make_release
from tensor_files import ALIGNMENT, Tensor


def parse_types(entries):
    types = {}
    for entry in entries:
        where, _, kind = entry.partition("=")
        if where not in GROUPS and where not in GGUF_NAMES:
            raise ValueError(f"--type {entry}: need {', '.join(GROUPS)}, or a name such as wq_a.weight, before the =")
        if kind not in ("F32", "F16", "BF16", "Q8_0", "Q4_K", "MXFP4"):
            raise ValueError(f"--type {entry}: need F32, F16, BF16, Q8_0, Q4_K or MXFP4 behind the =")
        types[where] = kind
    return types


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="+", type=pathlib.Path, help="the files of one golden case, all parts")
    parser.add_argument("--form", required=True, choices=("release", "flat", "gguf"))
    parser.add_argument("--out", required=True, type=pathlib.Path, help="a folder, or for gguf a file")
    parser.add_argument("--shards", type=int, default=None, metavar="N", help="files (release: 3, gguf: 1)")
    parser.add_argument("--scatter", action="store_true", help="release: neighbours go to different shards")
    parser.add_argument("--type", action="append", default=[], metavar="WHICH=TYPE",
                        help=f"gguf: type of {', '.join(GROUPS)}, or of a name such as wq_a.weight")  # fmt: skip
    parser.add_argument("--role-keys", choices=ROLE_KEYS, default="attention_ids", help="gguf: spelling of the sources")
    parser.add_argument("--candidate-keys", choices=CANDIDATE_KEYS, default="indexer",
                        help="gguf: spelling of the candidate settings")  # fmt: skip
    parser.add_argument("--no-draft-ratios", action="store_true", help="gguf: compress_ratios of the backbone only")
    parser.add_argument("--aliases", action="store_true", help="gguf: the other names of the index keys' tensors")
    parser.add_argument("--alignment", type=int, choices=(32, 64), default=ALIGNMENT, help="gguf: of the data")
    arguments = parser.parse_args()
    try:
        case = read_case(arguments.case)
        if arguments.form == "release":
            make_release(case, arguments.shards or 3, arguments.scatter).save(arguments.out)
        elif arguments.form == "flat":
            make_flat(case).save(arguments.out)
        else:
            gguf = make_gguf(case, parse_types(arguments.type), arguments.aliases, role_keys=arguments.role_keys,
                             candidate_keys=arguments.candidate_keys,
                             draft_ratios=not arguments.no_draft_ratios)  # fmt: skip
            gguf.save(arguments.out, arguments.shards or 1, arguments.alignment)
    except (OSError, KeyError, ValueError) as error:
        sys.exit(f"make_checkpoints: {error}")


if __name__ == "__main__":
    main()
