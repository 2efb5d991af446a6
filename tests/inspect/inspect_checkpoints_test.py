#!/usr/bin/env python3
"""What ds41-inspect tells about checkpoints that are whole, and about those where something is missing or wrong."""
import json
import os
import pathlib
import re
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from inspect_case import InspectTest, main, make_checkpoints
from tensor_files import Tensor

NAME = "layers.1.attn.wo_b.weight"


def weights_of(tensors):
    """{name: bytes, with those of its scales} of a layer's tensors as the tool counts them."""
    sizes = {}
    for name, tensor in tensors.items():
        if re.match(r"(layers|mtp)\.\d+\.attn\.", name):
            key = name.replace(".scale", ".weight")
            sizes[key] = sizes.get(key, 0) + len(tensor.data)
    return sizes


class CheckpointsTest(InspectTest):
    def check_tensors(self, document, sizes):
        self.assertEqual({t["name"]: t["n_bytes"] for t in document["tensors"]}, sizes)

    def layers_of(self, path, *options):
        document, text = self.answer(0, path, *options)
        return {layer["layer"]: layer for layer in document["layers"]}, text

    # ---- Whole ones -------------------------------------------------------------------------------------------------

    def test_the_release(self):
        release = self.release()
        path = release.save(self.folder / "release")
        document, text = self.answer(0, path)
        every = {name: tensor for shard in release.shards for name, tensor in shard.items()}
        self.check_tensors(document, weights_of(every))
        self.assertEqual(document["format"], "safetensors")
        # The last shard holds nothing of these layers, so it was not opened.
        self.assertEqual([file["path"] for file in document["files"]],
                         [str(path / release.shard_name(k)) for k in range(len(release.shards) - 1)])  # fmt: skip
        for file in document["files"]:
            self.assertEqual(file["n_bytes"], os.stat(file["path"]).st_size)
        for tensor in document["tensors"]:
            shard = release.shards[tensor["file"]]
            self.assertEqual((shard[tensor["name"]].dtype, shard[tensor["name"]].shape), (tensor["type"], tensor["shape"]))
        self.assertIn("F8_E4M3", text)
        self.assertNotIn("->", text)

    def test_the_configuration(self):
        case = self.case("g_draft_layer")
        document, text = self.answer(0, make_checkpoints.make_flat(case).save(self.folder / "flat"))
        config = document["config"]
        for key, value in case.config.items():
            if key in config:
                self.assertEqual(config[key], value, key)
        self.assertEqual(config["norm_eps"], 1e-20)
        n_draft = len(case.config["compress_ratios"]) - case.config["n_layers"]
        self.assertIn(f"{case.config['n_layers']} layers and {n_draft} draft layer", text)
        self.assertIn(f"dim {case.config['dim']}, ", text)
        for layer in document["layers"]:
            index = layer["layer"]
            self.assertEqual(layer["ratio"], case.config["compress_ratios"][index])
            self.assertEqual(layer["is_kv_source"], index in case.config["kv_source_layers"])
            self.assertEqual(layer["is_index_source"], index in case.config["index_source_layers"])
            self.assertEqual(layer["is_candidate_source"], index == case.config["candidate_source_layer"])
            self.assertEqual(layer["is_draft"], index >= case.config["n_layers"])

    def test_every_form_of_a_case(self):
        case = self.case("g_draft_layer")
        paths = [make_checkpoints.make_release(case).save(self.folder / "release"),
                 make_checkpoints.make_flat(case).save(self.folder / "flat"),
                 make_checkpoints.make_gguf(case).save(self.folder / "one.gguf")]  # fmt: skip
        documents = [self.answer(0, path)[0] for path in paths]
        for document in documents[1:]:
            self.assertEqual(document["config"], documents[0]["config"])
            self.assertEqual([(t["layer"], t["member"], t["shape"], t["dtype"]) for t in document["tensors"]],
                             [(t["layer"], t["member"], t["shape"], t["dtype"]) for t in documents[0]["tensors"]])  # fmt: skip
            self.assertEqual(document["memory"], documents[0]["memory"])

    def test_a_split_gguf_by_any_shard(self):
        gguf = make_checkpoints.make_gguf(self.case())
        first = gguf.save(self.folder / "model.gguf", 3)
        document, _ = self.answer(0, first.with_name("model-00003-of-00003.gguf"))
        self.assertEqual(document["format"], "gguf")
        self.assertEqual(len(document["files"]), 3)
        self.check_tensors(document, {name: len(gguf.tensors[name].data) for name in gguf.tensors
                                      if name in {t["name"] for t in document["tensors"]}})  # fmt: skip
        self.assertEqual(len(document["tensors"]), len([n for n in self.case().weights if not n.endswith(".scale")]))

    def test_types_that_are_expanded(self):
        case = self.case("f_q2k_weights")
        plain = make_checkpoints.make_gguf(case).save(self.folder / "q2k.gguf")
        document, text = self.answer(0, plain)
        by_member = {t["member"]: t for t in document["tensors"] if t["layer"] == 1}
        self.assertEqual((by_member["wq_b"]["type"], by_member["wq_b"]["dtype"]), ("Q2_K", "Q2_K"))
        self.assertEqual(by_member["wq_b"]["n_bytes"], by_member["wq_b"]["n_model_bytes"])
        self.assertNotIn("->", text)

        types = {"compressor": "F16", "indexer": "Q8_0"}
        document, text = self.answer(0, make_checkpoints.make_gguf(case, types).save(self.folder / "mixed.gguf"))
        by_member = {t["member"]: t for t in document["tensors"] if t["layer"] == 1}
        wgate, wk = by_member["compressor_wgate"], by_member["indexer_wk"]
        self.assertEqual((wgate["type"], wgate["dtype"], wgate["n_model_bytes"]), ("F16", "F32", wgate["n_bytes"] * 2))
        self.assertEqual((wk["type"], wk["dtype"], wk["n_model_bytes"]), ("Q8_0", "BF16", wk["n_bytes"] * 64 // 34))
        self.assertIn("Q8_0 -> BF16, compressor_wkv compressor_wgate F16 -> F32", text)

    def test_fp8_expanded_on_request(self):
        path = self.release().save(self.folder / "release")
        kept, _ = self.answer(0, path)
        expanded, text = self.answer(0, path, "--expand-fp8")
        self.assertRegex(text, r"window only +F8_E4M3 -> BF16")
        for before, after in zip(kept["tensors"], expanded["tensors"]):
            rows_cols = before["shape"]
            if before["type"] == "F8_E4M3":
                self.assertEqual((before["dtype"], after["dtype"]), ("FP8_E4M3", "BF16"))
                self.assertEqual(after["n_model_bytes"], rows_cols[0] * rows_cols[1] * 2)
                self.assertEqual(before["n_model_bytes"], before["n_bytes"])
            else:
                self.assertEqual(before, after)
        # The library's own sum, beside that of the tool.
        self.assertEqual(expanded["memory"]["weights"], expanded["n_model_bytes"])
        self.assertEqual(kept["memory"]["weights"], kept["n_model_bytes"])

    # ---- Layers -----------------------------------------------------------------------------------------------------

    def test_a_range_of_layers(self):
        path = self.release().save(self.folder / "release")
        every, _ = self.answer(0, path)
        some, _ = self.answer(0, path, "--layers", "1-3")
        one, text = self.answer(0, path, "--layers=2")
        self.assertEqual([layer["layer"] for layer in some["layers"]], [1, 2, 3])
        self.assertEqual(some["tensors"], [t for t in every["tensors"] if 1 <= t["layer"] <= 3])
        self.assertEqual(one["memory"]["weights"], every["layers"][2]["n_model_bytes"])
        self.assertIn("1 layer  ", text)

    def test_draft_layers_that_are_not_there(self):
        release = self.release("g_draft_layer")
        n_layers = release.config["text_config"]["num_hidden_layers"]
        for shard in release.shards:
            for name in [name for name in shard if name.startswith("mtp.")]:
                del shard[name]
        release.index = make_checkpoints.make_index(release)
        path = release.save(self.folder / "release")
        document, text = self.answer(0, path)
        self.assertEqual([layer["n_tensors"] for layer in document["layers"][n_layers:]], [0])
        self.assertRegex(text, rf"{n_layers} +0  draft, window only +none")
        self.assertIn(f"{n_layers} layers  ", text)
        self.check_problem(1, path, f"draft layer {n_layers}", "mtp.0.attn.wq_a.weight", options=["--layers", n_layers])

    # ---- Wrong ones -------------------------------------------------------------------------------------------------

    def without(self, *names):
        release = self.release()
        for name in names:
            del release.find(name)[name]
        release.index = make_checkpoints.make_index(release)
        return release.save(self.folder / "release")

    def test_missing_tensors_are_all_listed(self):
        path = self.without(NAME, NAME.replace(".weight", ".scale"), "layers.3.attn.attn_sink")
        document = self.check_problem(1, path, NAME, "missing")
        self.assertIn("layers.3.attn.attn_sink", " ".join(document["problems"]))
        self.assertEqual(len(document["problems"]), 2)
        self.assertIsNone(document["memory"])
        _, text = self.answer(1, path)
        self.assertRegex(text, r"\n1 +2  makes rows, selects +F8_E4M3, wo_b unusable ")
        self.assertIn("Memory: not told", text)

    def test_problems_of_other_layers_do_not_count(self):
        path = self.without(NAME, NAME.replace(".weight", ".scale"), "layers.3.attn.attn_sink")
        document, text = self.answer(0, path, "--layers", "0")
        self.assertEqual((document["problems"], len(document["other_problems"])), ([], 2))
        self.assertIn("Problems of other layers: 2\n", text)
        document = self.check_problem(1, path, NAME, options=["--layers", "0-1"])
        self.assertEqual(len(document["problems"]), 1)
        self.assertEqual(len(document["other_problems"]), 1)
        self.assertIn("layers.3.attn.attn_sink", document["other_problems"][0])

    def test_a_layer_without_any_tensor(self):
        release = self.release()
        for shard in release.shards:
            for name in [name for name in shard if name.startswith("layers.2.attn.")]:
                del shard[name]
        release.index = make_checkpoints.make_index(release)
        path = release.save(self.folder / "release")
        self.check_problem(1, path, "layer 2 is missing")
        _, text = self.answer(1, path)
        self.assertRegex(text, r"\n2 +2  rows and selection of 1 +none +0 B +0 B\n")

    def test_a_wrong_shape_and_a_wrong_type(self):
        release = self.release()
        name = "layers.2.attn.wq_a.weight"
        release.find(name)[name].shape = list(reversed(release.find(name)[name].shape))
        norm = "layers.0.attn.q_norm.weight"
        release.find(norm)[norm].dtype = "I16"
        path = release.save(self.folder / "release")
        self.check_problem(1, path, name, "need [")
        self.check_problem(1, path, norm, "I16")

    def test_a_shard_that_is_not_there(self):
        release = self.release()
        path = release.save(self.folder / "release")
        (path / release.shard_name(0)).unlink()
        document = self.check_problem(1, path, release.shard_name(0))
        self.assertEqual(len(document["files"]), 1)

    def test_no_configuration(self):
        path = self.release().save(self.folder / "release")
        (path / "config.json").unlink()
        document = self.check_problem(1, path, "config.json")
        self.assertEqual((document["config"], document["layers"], document["tensors"]), (None, [], []))
        (path / "config.json").write_text('{"text_config": {"hidden_size": 64}}')
        self.check_problem(1, path, "config.json", "num_hidden_layers")
        (path / "config.json").write_text("[")
        self.check_problem(1, path, "config.json")

    def test_a_gguf_that_contradicts_itself(self):
        gguf = make_checkpoints.make_gguf(self.case())
        gguf.metadata["deepseek41.attention.kv_source_layer_ids"] = ("[]i32", [3])
        document, _ = self.answer(1, gguf.save(self.folder / "model.gguf"))
        self.assertTrue(document["problems"])

    def test_many_problems_are_cut_in_the_text_only(self):
        flat = make_checkpoints.make_flat(self.case())
        for i in range(250):
            flat.tensors[f"layers.0.attn.extra_{i:03}"] = Tensor("I8", [1], b"\0")
        document, text = self.answer(1, flat.save(self.folder / "flat"))
        self.assertEqual(len(document["problems"]), 250)
        self.assertEqual(text.count("extra_"), 100)
        self.assertIn("and 150 more, which --json lists", text)

    def test_hostile_names(self):
        names = ["layers.0.attn.\x1b[31mred\x1b]0;title\x07", 'layers.0.attn."quoted"\\', "layers.0.attn.line\nbreak\r\t",
                 "layers.0.attn.\u009b31m", "layers.0.attn.\u202egnp", "layers.0.attn.\ud83d\ude00", "layers.0.attn.\u2028",
                 "layers.0.attn.<script>&amp;", "layers.0.attn." + "x" * 5000]  # fmt: skip
        flat = make_checkpoints.make_flat(self.case())
        for name in names:
            flat.tensors[name.encode("utf-16", "surrogatepass").decode("utf-16")] = Tensor("I8", [1], b"\0")
        document, text = self.answer(1, flat.save(self.folder / "flat"))
        self.assertEqual(len(document["problems"]), len(names))
        self.assertIn('"quoted', text)
        self.assertIn("?gnp", text)  # the library shows such marks as question marks

    def test_hostile_names_in_a_gguf(self):
        gguf = make_checkpoints.make_gguf(self.case())
        path = gguf.save(self.folder / "model.gguf")
        content = path.read_bytes()
        old = b"blk.0.attn_q_a.weight"
        for new in (b"blk.0.attn_q_\x1b.weight", b"blk.0.attn_q_\xff.weight", b"blk.0.attn_q_\0.weight", b"blk.0.attn_q\xc2\x9b.weight"):
            with self.subTest(name=new):
                self.assertEqual(len(old), len(new))
                path.write_bytes(content.replace(old, new))
                result = self.run_tool("--json", path)
                self.check_harmless(result.stdout)
                self.check_harmless(result.stderr)
                # Refused as a file, or read with the tensor missing; never a crash.
                self.assertIn(result.returncode, (1, 2))
                if result.returncode == 1:
                    self.assertTrue(json.loads(result.stdout)["problems"])

    def test_hostile_paths(self):
        for name in (b"a\x1b[2J\nb", b"\xff\xfe", "\u202eabc \u00e9".encode(), b"-", b"with \"quotes\" and \\"):
            with self.subTest(name=name):
                path = os.fsencode(self.folder) + b"/" + name
                make_checkpoints.make_flat(self.case()).save(os.fsdecode(path))
                document, text = self.answer(0, path)
                if name.isascii():
                    self.assertEqual(document["path"].encode(), path)
                self.assertEqual(text.splitlines()[1][:11], "safetensors")

    # ---- What is no checkpoint --------------------------------------------------------------------------------------

    def test_paths_that_cannot_be_opened(self):
        empty = self.folder / "empty"
        empty.mkdir()
        text = self.folder / "text.txt"
        text.write_text("hello, this is no checkpoint")
        cut = self.folder / "cut.safetensors"
        cut.write_bytes(struct.pack("<Q", 1000) + b"{")
        cut_gguf = self.folder / "cut.gguf"
        cut_gguf.write_bytes(b"GGUF\3\0\0\0")
        for path in (self.folder / "nothing", empty, text, cut, cut_gguf):
            with self.subTest(path=path.name):
                self.check_refused(path, word=path.name)
                self.check_refused("--json", path, word=path.name)
        self.check_refused("", word="path")
        self.check_refused(self.folder / "no\x1b[2Jthing", word="thing")


main()
