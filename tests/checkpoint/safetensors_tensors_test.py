#!/usr/bin/env python3
"""Tensors that a safetensors checkpoint lacks, has too many of, or has in another form than the header of the library
says: each is reported by name, all at once. What belongs to other parts of the model disturbs nothing.
"""
import json
import os
import pathlib
import shutil
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from probe import CheckpointTest, main, make_checkpoints
from tensor_files import Tensor, safetensors_bytes


class TensorTest(CheckpointTest):
    def setUp(self):
        super().setUp()
        self.release = make_checkpoints.make_release(self.case())

    def save(self, new_index=True):
        if new_index:
            self.release.index = make_checkpoints.make_index(self.release)
        return self.release.save(self.folder / "release")

    def fp8(self):
        self.release = make_checkpoints.make_release(self.case("e_fp8_weights"))
        return self.release

    def remove(self, name):
        return self.release.find(name).pop(name)

    def put(self, name, tensor):
        """Beside the first weights, or where a tensor of that name is."""
        next((shard for shard in self.release.shards if name in shard), self.release.shards[0])[name] = tensor

    def test_as_it_is(self):
        answer = self.check_loads(self.save())
        self.assertEqual(answer["checkpoint"]["format"], "safetensors")
        self.assertEqual(len(answer["outputs"]), 6)
        self.assertEqual(len(answer["checkpoint"]["tensors"]), len(self.case().weights))
        self.assertEqual(len(answer["checkpoint"]["files"]), 2)  # not the shard of foreign tensors

    def test_what_is_listed(self):
        self.fp8()
        listed = {t["name"]: t for t in self.check_loads(self.save())["checkpoint"]["tensors"]}
        for name, tensor in self.case("e_fp8_weights").weights.items():
            if name.endswith(".scale"):
                self.assertNotIn(name, listed)
                continue
            with self.subTest(name=name):
                entry = listed.pop(name)
                _, layer, _, rest = name.split(".", 3)
                self.assertEqual(entry["layer"], int(layer))
                self.assertEqual(entry["member"], rest.removesuffix(".weight").replace(".", "_"))
                self.assertEqual(entry["shape"], tensor.shape)
                self.assertEqual(entry["type"], tensor.dtype)
                scale = self.case("e_fp8_weights").weights.get(name.removesuffix(".weight") + ".scale")
                self.assertEqual(entry["n_bytes"], len(tensor.data) + (len(scale.data) if scale else 0))
                wide = len(tensor.shape) == 1  # vectors run in f32, matrices stay as they are
                self.assertEqual(entry["dtype"], "FP8_E4M3" if scale else "F32" if wide else tensor.dtype)
                widened = wide and tensor.dtype == "BF16"
                self.assertEqual(entry["n_model_bytes"], entry["n_bytes"] * (2 if widened else 1))
        self.assertFalse(listed)

    def test_layers_that_there_are_not(self):
        for name in ("layers.6.attn.wq_a.weight", "mtp.0.attn.wq_a.weight", "layers.2147483648.attn.wq_a.weight",
                     "layers.18446744073709551616.attn.wq_a.weight"):  # fmt: skip
            with self.subTest(name=name):
                self.release = make_checkpoints.make_release(self.case())
                self.put(name, Tensor("BF16", [16, 64], bytes(2048)))
                answer = self.probe(self.save())
                if len(name) < 27:
                    self.check_problem(self.save(), "INVALID_FILE", name, "6 layers")
                elif answer["status"] != "DS41_STATUS_OK":  # a number that no layer can have is nobody's
                    self.assertEqual(answer["status"], "DS41_STATUS_INVALID_FILE")

    def test_numbers_of_layers_that_are_none(self):
        name = "layers.0.attn.wq_a.weight"
        for number in ("00", "+0", " 0", "0x0", "", "0.0"):
            with self.subTest(number=number):
                self.release = make_checkpoints.make_release(self.case())
                self.put(f"layers.{number}.attn.wq_a.weight", self.remove(name))
                self.check_refused(self.save(), "MISSING_TENSOR|INVALID_FILE", name + "|" + number)

    def test_a_missing_tensor(self):
        for name in ("layers.0.attn.wq_a.weight", "layers.3.attn.attn_sink", "layers.2.attn.compressor.wgate.weight",
                     "layers.5.attn.indexer.wq_b.weight"):  # fmt: skip
            with self.subTest(name=name):
                self.release = make_checkpoints.make_release(self.case())
                self.remove(name)
                self.check_problem(self.save(), "MISSING_TENSOR", name)

    def test_several_at_once_are_all_named(self):
        names = ["layers.0.attn.wq_a.weight", "layers.2.attn.indexer.wk.weight", "layers.5.attn.wo_b.weight"]
        for name in names:
            self.remove(name)
        self.put("layers.1.attn.wkv.weight", Tensor("BF16", [64, 32], bytes(4096)))
        self.put("layers.4.attn.kv_norm.weight", Tensor("I64", [32], bytes(256)))
        answer = self.check_problem(self.save(), "MISSING_TENSOR", *names, "layers.1.attn.wkv.weight",
                                    "layers.4.attn.kv_norm.weight")  # fmt: skip
        self.assertEqual(len(answer["checkpoint"]["problems"]), 5)

    def test_very_many_at_once(self):
        for name in self.case().weights:
            self.remove(name)
        self.put("layers.0.attn.wq_a.weight", self.case().weights["layers.0.attn.wq_a.weight"])
        answer = self.check_problem(self.save(), "MISSING_TENSOR", "layers.0.attn.wq_b.weight",
                                    "layers.0.attn.wo_b.weight", "layer 1", "layer 5")  # fmt: skip
        # The seven others of layer 0 by name; of a layer that is not there at all, one line.
        self.assertEqual(len(answer["checkpoint"]["problems"]), 7 + 5)

    def test_only_the_chosen_layers_have_to_be_whole(self):
        self.remove("layers.4.attn.wq_a.weight")
        folder = self.save()
        answer = self.probe(folder, "--first", 0, "--count", 4)
        self.assertEqual(answer["status"], "DS41_STATUS_OK", answer["message"])
        self.assertEqual(list(answer["outputs"]), ["0", "1", "2", "3"])
        self.check_problem(folder, "MISSING_TENSOR", "layers.4.attn.wq_a.weight", options=["--first", 4, "--count", 1])

    def test_tensors_without_use(self):
        for name, shape in (("layers.0.attn.compressor.wkv.weight", [32, 64]),
                            ("layers.4.attn.compressor.wgate.weight", [32, 64]),
                            ("layers.3.attn.indexer.wq_b.weight", [64, 16]),
                            ("layers.5.attn.indexer.wk.weight", [32, 32]),
                            ("layers.1.attn.wq_c.weight", [4, 4]),
                            ("layers.1.attn.wq_a.bias", [16])):  # fmt: skip
            with self.subTest(name=name):
                self.release = make_checkpoints.make_release(self.case())
                self.put(name, Tensor("BF16", shape, bytes(2 * shape[0] * (shape[1] if len(shape) > 1 else 1))))
                self.check_problem(self.save(), "MISSING_TENSOR|INVALID_FILE", name)

    def test_wrong_shapes(self):
        for name, shape, need in (("layers.0.attn.wq_a.weight", [64, 16], "16, 64"),
                                  ("layers.0.attn.wq_a.weight", [1024], "16, 64"),
                                  ("layers.0.attn.wq_a.weight", [1, 16, 64], "16, 64"),
                                  ("layers.0.attn.wq_a.weight", [16, 63], "16, 64"),
                                  ("layers.2.attn.q_norm.weight", [17], "16"),
                                  ("layers.2.attn.q_norm.weight", [1, 16], "16"),
                                  ("layers.5.attn.wo_b.weight", [0, 32], "64, 32"),
                                  ("layers.5.attn.wo_b.weight", [], "64, 32")):  # fmt: skip
            with self.subTest(name=name, shape=shape):
                n_bytes = 2
                for size in shape:
                    n_bytes *= size
                self.release = make_checkpoints.make_release(self.case())
                self.put(name, Tensor("BF16", shape, bytes(n_bytes)))
                self.check_problem(self.save(), "INVALID_SHAPE", name, need, ", ".join(map(str, shape)))

    def test_wrong_dtypes(self):
        widths = {"I8": 1, "U8": 1, "I32": 4, "F64": 8, "F8_E5M2": 1, "F8_E8M0": 1}
        for name, dtype in (("layers.0.attn.wq_a.weight", "I8"), ("layers.0.attn.wq_a.weight", "F64"),
                            ("layers.0.attn.wq_a.weight", "F8_E5M2"), ("layers.0.attn.wq_a.weight", "F8_E8M0"),
                            ("layers.1.attn.attn_sink", "I32"), ("layers.1.attn.kv_norm.weight", "U8")):  # fmt: skip
            with self.subTest(name=name, dtype=dtype):
                self.release = make_checkpoints.make_release(self.case())
                shape = self.release.find(name)[name].shape
                count = shape[0] * (shape[1] if len(shape) > 1 else 1)
                self.put(name, Tensor(dtype, shape, bytes(count * widths[dtype])))
                self.check_problem(self.save(), "INVALID_DTYPE", name, dtype, "BF16")

    def test_f16_and_f32_are_taken(self):
        folder = self.save()
        weights = self.case().weights
        for dtype in ("F16", "F32"):
            name = "layers.0.attn.wq_a.weight"
            encoded = make_checkpoints.ggml_blocks.encode(dtype, make_checkpoints.values_of(self.case(), name))
            self.put(name, Tensor(dtype, weights[name].shape, encoded))
            with self.subTest(dtype=dtype):
                answer = self.check_loads(self.release.save(self.folder / dtype))
                other = self.check_loads(folder)
                if dtype == "F32":  # F16 loses the smallest values
                    self.assertEqual(answer["outputs"], other["outputs"])

    def test_scales(self):
        name = "layers.1.attn.wo_a"
        rows, cols = self.fp8().find(name + ".scale")[name + ".scale"].shape
        good = self.release.find(name + ".scale")[name + ".scale"].data
        for what, scale, statuses, words in (
            ("missing", None, "MISSING_TENSOR", [name + ".scale"]),
            ("a row short", Tensor("F8_E8M0", [rows - 1, cols], good[cols:]), "INVALID_SHAPE", [f"{rows}, {cols}"]),
            ("transposed", Tensor("F8_E8M0", [cols, rows], good), "INVALID_SHAPE", [f"{rows}, {cols}"]),
            ("flat", Tensor("F8_E8M0", [rows * cols], good), "INVALID_SHAPE", [f"{rows}, {cols}"]),
            ("one for all", Tensor("F8_E8M0", [1, 1], good[:1]), "INVALID_SHAPE", [f"{rows}, {cols}"]),
            ("F32", Tensor("F32", [rows, cols], bytes(4 * len(good))), "INVALID_DTYPE", ["F32", "F8_E8M0"]),
            ("BF16", Tensor("BF16", [rows, cols], bytes(2 * len(good))), "INVALID_DTYPE", ["BF16", "F8_E8M0"]),
        ):
            with self.subTest(what=what):
                self.fp8()
                self.remove(name + ".scale")
                if scale:
                    self.put(name + ".scale", scale)
                self.check_problem(self.save(), statuses, name, *words)

    def test_scale_bytes_that_are_no_number(self):
        name = "layers.1.attn.wo_a.scale"
        scale = self.fp8().find(name)[name]
        self.put(name, Tensor("F8_E8M0", scale.shape, scale.data[:-1] + b"\xff"))
        folder = self.save()
        for options in ([], ["--map"], ["--expand-fp8"], ["--expand-fp8", "--threads", 3]):
            with self.subTest(options=options):
                self.check_refused(folder, "INVALID_FILE", "wo_a.scale", "255", options=options)

    def test_a_scale_without_use(self):
        self.put("layers.0.attn.wq_a.scale", Tensor("F8_E8M0", [1, 2], b"\x7f\x7f"))
        self.check_problem(self.save(), "MISSING_TENSOR|INVALID_FILE|INVALID_DTYPE", "layers.0.attn.wq_a.scale")

    def test_fp8_where_there_is_none(self):
        self.fp8()
        self.put("layers.0.attn.q_norm.weight", Tensor("F8_E4M3", [64], bytes(64)))
        self.put("layers.0.attn.q_norm.scale", Tensor("F8_E8M0", [2, 1], b"\x7f\x7f"))
        self.check_problem(self.save(), "INVALID_DTYPE", "layers.0.attn.q_norm.weight", "F8_E4M3")

    def test_a_sink_that_is_no_number(self):
        self.put("layers.3.attn.attn_sink", Tensor("F32", [4], struct.pack("<4f", 0, 1, float("nan"), 2)))
        self.check_refused(self.save(), "INVALID_FILE", "attn_sink", "3")

    def test_scales_in_another_shard_than_their_codes(self):
        plain = self.fp8().save(self.folder / "plain")
        scattered = make_checkpoints.make_release(self.case("e_fp8_weights"), 5, scatter=True)
        name = "layers.0.attn.wq_b"
        self.assertIsNot(scattered.find(name + ".weight"), scattered.find(name + ".scale"))
        scattered.save(self.folder / "scattered")
        for options in ([], ["--map"], ["--expand-fp8"], ["--expand-fp8", "--map", "--threads", 4]):
            with self.subTest(options=options):
                self.check_same([plain, self.folder / "scattered"], *options)

    def test_tensors_that_are_not_aligned(self):
        """The format allows it, and a mapped weight has to be copied then."""
        for name in ("a_golden_stable", "e_fp8_weights"):
            self.release = make_checkpoints.make_release(self.case(name))
            folder = self.save()
            expected = self.check_loads(folder)["outputs"]
            for shift in (1, 2, 3):
                with self.subTest(name=name, shift=shift):
                    for k, shard in enumerate(self.release.shards):
                        shifted = {"shift": Tensor("U8", [shift], bytes(shift)), **shard}
                        (folder / self.release.shard_name(k)).write_bytes(safetensors_bytes(shifted))
                    copied, mapped = self.check_loads(folder), self.check_loads(folder, "--map")
                    self.assertEqual(copied["outputs"], expected)
                    self.assertEqual(mapped["outputs"], expected)
                    if name == "a_golden_stable" and shift % 2:  # no BF16 weight can stay where it is
                        self.assertEqual(mapped["memory"], copied["memory"])

    def test_foreign_shards_are_not_needed(self):
        folder = self.save()
        expected = self.check_loads(folder)["outputs"]
        last = folder / self.release.shard_name(2)
        content = last.read_bytes()
        for what, replace in (("cut", lambda: last.write_bytes(content[:100])), ("absent", lambda: None),
                              ("garbage", lambda: last.write_bytes(b"\xff" * 5000)),
                              ("a folder", last.mkdir)):  # fmt: skip
            with self.subTest(what=what):
                last.unlink(missing_ok=True)
                replace()
                self.assertEqual(self.check_loads(folder)["outputs"], expected)

    def test_shards_of_layers_that_are_not_chosen_are_not_needed(self):
        folder = self.save()
        expected = self.check_loads(folder)["outputs"]
        self.assertIn("layers.5.attn.wo_b.weight", self.release.shards[1])
        (folder / self.release.shard_name(1)).unlink()
        answer = self.probe(folder, "--count", 1)
        self.assertEqual(answer["status"], "DS41_STATUS_OK", answer["message"])
        self.assertEqual(answer["outputs"], {"0": expected["0"]})
        self.check_problem(folder, "IO_ERROR", self.release.shard_name(1))

    def test_the_same_name_in_a_shard_that_the_index_does_not_mean(self):
        name = "layers.0.attn.wq_a.weight"
        expected = self.check_loads(self.save())["outputs"]
        self.release.shards[2][name] = Tensor("BF16", [16, 64], bytes(2048))
        self.assertEqual(self.release.index["weight_map"][name], self.release.shard_name(0))
        self.assertEqual(self.check_loads(self.save(new_index=False))["outputs"], expected)

    def test_links_as_in_a_cache_of_downloads(self):
        folder = self.save()
        blobs = self.folder / "blobs"
        blobs.mkdir()
        expected = self.check_loads(folder)["outputs"]
        for i, path in enumerate(sorted(folder.iterdir())):
            shutil.move(path, blobs / str(i))
            os.symlink(f"../blobs/{i}", path)
        self.assertEqual(self.check_loads(folder)["outputs"], expected)

    def test_draft_layers(self):
        case = self.case("g_draft_layer")
        self.release = make_checkpoints.make_release(case)
        self.assertIn("mtp.0.attn.wq_a.weight", self.release.find("mtp.0.attn.wq_a.weight"))
        whole = self.check_loads(self.save())
        self.assertEqual(list(whole["outputs"]), ["0", "1", "2", "3", "4"])
        self.remove("mtp.0.attn.wkv.weight")
        self.check_problem(self.save(), "MISSING_TENSOR", "mtp.0.attn.wkv.weight")
        for name in [name for shard in self.release.shards for name in shard if name.startswith("mtp.0.attn.")]:
            self.remove(name)
        backbone = self.check_loads(self.save())
        self.assertEqual(backbone["outputs"], {k: v for k, v in whole["outputs"].items() if k != "4"})
        # Nothing that a load of everything would miss, but one of these layers does.
        self.check_refused(self.save(), "MISSING_TENSOR", "layer 4", "mtp.0.attn", options=["--first", 4, "--count", 1])

    def test_more_ratios_than_layers(self):
        """43 for 40 in the release, whose draft layers may be left out of a file."""
        folder = self.save()
        expected = self.check_loads(folder)["outputs"]
        config = json.loads((folder / "config.json").read_text())
        config["text_config"]["compress_ratios"] += [0, 0, 0]
        (folder / "config.json").write_text(json.dumps(config))
        answer = self.check_loads(folder)
        self.assertEqual(len(answer["config"]["compress_ratios"]), 9)
        self.assertEqual(answer["outputs"], expected)


if __name__ == "__main__":
    main()
