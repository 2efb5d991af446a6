#!/usr/bin/env python3
"""Block types become bf16 at load: a file of such blocks and a file of the bf16 values that they stand for give the
same model, bit for bit. Both come from make_checkpoints.py, whose decoders packages_test.py holds against ggml's own.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from probe import CheckpointTest, main, make_checkpoints
import ggml_blocks
from large_case import large_case
from tensor_files import Tensor


def expanded(gguf, kinds, wide=()):
    """The same GGUF with tensors of those types as BF16, or F32 where a name ends with one of `wide`."""
    tensors = {}
    for name, tensor in gguf.tensors.items():
        if tensor.dtype in kinds and ".attn" in name or tensor.dtype in kinds and ".indexer" in name:
            target = "F32" if name.endswith(tuple(wide)) else "BF16"
            values = ggml_blocks.decode(tensor.dtype, tensor.data)
            tensor = Tensor(target, tensor.shape, ggml_blocks.encode(target, values))
        tensors[name] = tensor
    return make_checkpoints.Gguf(gguf.metadata, tensors)


# What stays wide: sums of f32 products feed a softmax there, as the release has it.
F32_COMPRESSOR = ("attn_compressor_kv.weight", "attn_compressor_gate.weight")
F32_VECTORS = ("norm.weight", "sinks.weight")


class ExpansionTest(CheckpointTest):
    def compare(self, case, types, kinds, wide=(), options=()):
        gguf = make_checkpoints.make_gguf(case, types)
        path = gguf.save(self.folder / "blocks.gguf")
        plain = expanded(gguf, kinds, wide).save(self.folder / "plain.gguf")
        self.assertNotEqual(path.read_bytes(), plain.read_bytes())
        return self.check_same([path, plain], *options)

    def widths(self, case):
        """Of ratio 1 the compressor is a projection like others; those of ratio > 1 are f32."""
        return tuple(f"blk.{layer}.{name}" for layer in case.config["kv_source_layers"]
                     if case.config["compress_ratios"][layer] > 1 for name in F32_COMPRESSOR)  # fmt: skip

    def test_projections(self):
        case = self.case("e_fp8_weights")  # rows of 64, 96 and 128 values
        for kind in ("Q8_0", "MXFP4", "F16"):
            for options in ([], ["--map", "--threads", 3]):
                with self.subTest(kind=kind, options=options):
                    self.compare(case, {"projections": kind, "indexer.wq_b.weight": kind}, [kind], options=options)

    def test_compressors(self):
        case = self.case("e_fp8_weights")
        for kind in ("Q8_0", "MXFP4", "F16"):
            with self.subTest(kind=kind):
                self.compare(case, {"compressor": kind}, [kind], self.widths(case))

    def test_indexers_and_vectors(self):
        case = self.case("e_fp8_weights")
        self.compare(case, {"indexer": "F16"}, ["F16"])
        self.compare(case, {"indexer": "Q8_0"}, ["Q8_0"])
        self.compare(case, {"norms": "F16", "sinks": "F16"}, ["F16"], F32_VECTORS)
        self.compare(case, {"norms": "BF16", "sinks": "BF16"}, ["BF16"], F32_VECTORS)

    def test_blocks_of_256(self):
        """Only one case has rows that long; its own Q2_K weights are decoded first."""
        case = self.case("f_q2k_weights")
        for name, tensor in case.weights.items():
            if tensor.dtype == "Q2_K":
                values = ggml_blocks.decode("Q2_K", tensor.data)
                case.weights[name] = Tensor("BF16", tensor.shape, ggml_blocks.encode("BF16", values))
        self.compare(case, {"projections": "Q4_K"}, ["Q4_K"])
        self.compare(case, {"compressor": "Q4_K"}, ["Q4_K"], self.widths(case))

    def test_a_compressor_of_q2_k(self):
        case = self.case("f_q2k_weights")
        layer = case.config["kv_source_layers"][0]
        source = case.weights[f"layers.{layer}.attn.wkv.weight"]
        name = f"layers.{layer}.attn.compressor.wkv.weight"
        self.assertEqual(case.weights[name].shape, source.shape)
        case.weights[name] = source
        gguf = make_checkpoints.make_gguf(case)
        path = gguf.save(self.folder / "q2_k.gguf")
        key = f"blk.{layer}.attn_compressor_kv.weight"
        values = ggml_blocks.encode("F32", ggml_blocks.decode("Q2_K", source.data))
        gguf.tensors[key] = Tensor("F32", source.shape, values)
        self.check_same([path, gguf.save(self.folder / "f32.gguf")])

    def test_fp8_expands_without_loss(self):
        case = self.case("e_fp8_weights")
        release = make_checkpoints.make_release(case).save(self.folder / "release")
        gguf = make_checkpoints.make_gguf(case).save(self.folder / "bf16.gguf")
        for options in (["--expand-fp8"], ["--expand-fp8", "--map", "--threads", 2]):
            self.check_same([release, gguf], *options)
        self.assertNotEqual(self.check_loads(release)["outputs"], self.check_loads(gguf)["outputs"])

    def test_matrices_of_many_chunks(self):
        case = large_case()
        release = make_checkpoints.make_release(case).save(self.folder / "release")
        flat = make_checkpoints.make_flat(case).save(self.folder / "flat")
        expected = self.check_same([release, flat])["outputs"]
        self.assertEqual(self.check_same([release, flat], "--threads", 5)["outputs"], expected)
        self.assertEqual(self.check_same([release, flat], "--map")["outputs"], expected)
        gguf = make_checkpoints.make_gguf(case)
        plain = gguf.save(self.folder / "bf16.gguf")
        for options in ([], ["--threads", 5], ["--map"]):
            self.check_same([release, plain], "--expand-fp8", *options)
        # Q8_0 blocks of the same weights, and what they stand for.
        name = "blk.0.attn_q_b.weight"
        values = ggml_blocks.decode("BF16", gguf.tensors[name].data)
        rows, cols = gguf.tensors[name].shape
        gguf.tensors[name] = Tensor("Q8_0", [rows, cols], ggml_blocks.encode("Q8_0", values))
        blocks = gguf.save(self.folder / "q8_0.gguf")
        expanded_blocks = expanded(gguf, ["Q8_0"]).save(self.folder / "expanded.gguf")
        for options in ([], ["--threads", 5]):
            self.check_same([blocks, expanded_blocks], *options)

    def test_what_an_option_does_not_concern(self):
        case = self.case()
        path = make_checkpoints.make_gguf(case).save(self.folder / "bf16.gguf")
        expected = self.check_loads(path)["outputs"]
        for options in (["--expand-fp8"], ["--plain-q2k"], ["--expand-fp8", "--plain-q2k", "--map"]):
            self.assertEqual(self.check_loads(path, *options)["outputs"], expected)

    def test_q2_k_with_plain_activations(self):
        case = self.case("f_q2k_weights")
        path = make_checkpoints.make_gguf(case).save(self.folder / "q2_k.gguf")
        plain = self.check_loads(path, "--plain-q2k")["outputs"]
        self.assertNotEqual(self.check_loads(path)["outputs"], plain)
        # Weights stand for their exact values then, as F32 ones do.
        gguf = make_checkpoints.make_gguf(case)
        for name, tensor in gguf.tensors.items():
            if tensor.dtype == "Q2_K" and ".attn" in name:
                values = ggml_blocks.encode("F32", ggml_blocks.decode("Q2_K", tensor.data))
                gguf.tensors[name] = Tensor("F32", tensor.shape, values)
        self.assertEqual(self.check_loads(gguf.save(self.folder / "f32.gguf"))["outputs"], plain)

    def test_the_log_counts_what_was_rounded(self):
        case = self.case("e_fp8_weights")
        exact = make_checkpoints.make_gguf(case).save(self.folder / "exact.gguf")
        self.assertFalse([line for _, line in self.check_loads(exact)["log"] if "round" in line])
        gguf = make_checkpoints.make_gguf(case, {"wq_a.weight": "Q8_0"})
        answer = self.check_loads(gguf.save(self.folder / "lossy.gguf"))
        values = ggml_blocks.decode("Q8_0", gguf.tensors["blk.0.attn_q_a.weight"].data)
        n_lost = sum(a != b for a, b in zip(values, ggml_blocks.from_bf16(ggml_blocks.bf16_bytes(values))))
        self.assertGreater(n_lost, 0)
        lines = [line for _, line in answer["log"] if "blk.0.attn_q_a.weight" in line]
        self.assertTrue(lines, answer["log"])
        self.assertIn(str(n_lost), "".join(lines))


if __name__ == "__main__":
    main()
