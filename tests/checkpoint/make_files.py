#!/usr/bin/env python3
"""Writes the checkpoints that the compiled and the golden tests read: make_files.py FIXTURES FOLDER STAMP.

STAMP is touched at the end, for the build system. Names are CASE.FORM.
"""
import json
import pathlib
import shutil
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import make_checkpoints
from large_case import large_case
from tensor_files import Tensor, gguf_bytes, read_safetensors, safetensors_bytes

HOLE_BYTES = 64 << 20  # Of a tensor that nobody may touch. It takes no disk.


def write_hole(path, content, n_bytes):
    """A file whose last tensor, of zeros, is a hole of the file system."""
    assert not any(content[-n_bytes:][:4096])
    with open(path, "wb") as file:
        file.write(content[:-n_bytes])
        file.truncate(len(content))


def expanded_only(fixtures, folder):
    """The golden case of FP8 weights that are expanded, alone: for checkpoints that hold them as BF16."""
    metadata, tensors = read_safetensors(fixtures / "e_fp8_weights.safetensors")
    metadata["modes"] = json.dumps({"expanded.": "expanded"})
    (folder / "e_expanded.safetensors").write_bytes(safetensors_bytes(tensors, metadata))


def main():
    fixtures, folder, stamp = map(pathlib.Path, sys.argv[1:])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    case = lambda name: make_checkpoints.find_case(fixtures, name)
    a, c, d = case("a_golden_stable"), case("c_production_heads"), case("d_ratio_4_3")
    e, f, g, h = case("e_fp8_weights"), case("f_q2k_weights"), case("g_draft_layer"), case("h_long")
    release, flat, gguf = make_checkpoints.make_release, make_checkpoints.make_flat, make_checkpoints.make_gguf

    for name, one in (("a", a), ("c", c), ("d", d), ("e", e), ("g", g), ("h", h)):
        release(one).save(folder / f"{name}.release")
    release(a, 5, scatter=True).save(folder / "a.scattered")
    release(e, 5, scatter=True).save(folder / "e.scattered")
    for name, one in (("a", a), ("c", c), ("d", d), ("e", e), ("g", g), ("h", h)):
        flat(one).save(folder / f"{name}.flat")

    spoilt = release(a)  # to see that the golden tests would notice: two rows change places
    name = "layers.1.attn.wkv.weight"
    weight = spoilt.find(name)[name]
    swapped = weight.data[128:256] + weight.data[:128] + weight.data[256:]
    spoilt.find(name)[name] = Tensor(weight.dtype, weight.shape, swapped)
    spoilt.save(folder / "a.spoilt")

    gguf(a).save(folder / "a.gguf")
    gguf(a, {group: "F32" for group in make_checkpoints.GROUPS}, aliases=True, role_keys="ids",
         candidate_keys="attention").save(folder / "a_f32.gguf", 3, 64)  # fmt: skip
    gguf(c, role_keys="attention_layers").save(folder / "c.gguf", 2)
    gguf(d, role_keys="none", candidate_keys="none").save(folder / "d.gguf")
    gguf(e).save(folder / "e.gguf")
    gguf(f, role_keys="none", candidate_keys="attention").save(folder / "f.gguf")
    gguf(f).save(folder / "f.gguf", 3)
    gguf(g).save(folder / "g.gguf")
    gguf(h, {"norms": "BF16"}).save(folder / "h.gguf")
    gguf(f, {"indexer": "Q8_0", "compressor": "Q8_0"}).save(folder / "mixed.gguf")
    release(large_case()).save(folder / "large.release")
    expanded_only(fixtures, folder)

    hole = Tensor("I8", [HOLE_BYTES], bytes(HOLE_BYTES))
    one = flat(e)
    one.save(folder / "hole")
    name = "layers.0.ffn.experts.0.w2.weight"
    path = folder / "hole" / "model.safetensors"
    write_hole(path, safetensors_bytes({**one.tensors, name: hole}), HOLE_BYTES)
    one = gguf(f)
    write_hole(folder / "hole.gguf", gguf_bytes(one.metadata, {**one.tensors, "blk.0.ffn_up_exps.weight": hole}),
               HOLE_BYTES)  # fmt: skip
    stamp.touch()


if __name__ == "__main__":
    main()
