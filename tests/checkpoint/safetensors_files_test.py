#!/usr/bin/env python3
"""Folders and files around the tensors: an index, a config.json or a shard that is missing, wrong, cut, or points
elsewhere; and the forms in which a checkpoint may be named.
"""
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from probe import CheckpointTest, main, make_checkpoints

NAME = "layers.0.attn.wq_a.weight"


class FileTest(CheckpointTest):
    def setUp(self):
        super().setUp()
        self.release = make_checkpoints.make_release(self.case())
        self.home = self.release.save(self.folder / "release")
        self.index = self.home / "model.safetensors.index.json"
        self.config = self.home / "config.json"
        self.first = self.home / self.release.shard_name(0)

    def write_index(self, change):
        index = json.loads(json.dumps(self.release.index))
        change(index)
        self.index.write_text(json.dumps(index))

    def write_config(self, change, home=None):
        path = (home or self.home) / "config.json"
        config = json.loads(path.read_text())
        change(config)
        path.write_text(json.dumps(config))

    # ---- The index --------------------------------------------------------------------------------------------------

    def test_a_shard_that_is_not_there(self):
        self.first.unlink()
        self.check_refused(self.home, "IO_ERROR", self.first.name)

    def test_an_index_that_names_another_shard(self):
        self.write_index(lambda index: index["weight_map"].update({NAME: "model-00009-of-00003.safetensors"}))
        self.check_refused(self.home, "IO_ERROR|INVALID_FILE", "model-00009-of-00003.safetensors")

    def test_a_tensor_in_another_shard_than_the_index_says(self):
        self.write_index(lambda index: index["weight_map"].update({NAME: self.release.shard_name(1)}))
        self.check_problem(self.home, "MISSING_TENSOR|INVALID_FILE", NAME, self.release.shard_name(1))

    def test_shards_outside_the_folder(self):
        outside = self.folder / "outside.safetensors"
        outside.write_bytes(self.first.read_bytes())
        nested = self.home / "sub"
        nested.mkdir()
        for name in ("../outside.safetensors", "sub/../../outside.safetensors", str(outside), "..", "", ".", "/", "sub",
                     "./../outside.safetensors", "outside.safetensors\0", "..\\outside.safetensors"):  # fmt: skip
            with self.subTest(name=name):
                self.write_index(lambda index, name=name: index["weight_map"].update({NAME: name}))
                self.check_refused(self.home, "INVALID_FILE|IO_ERROR", NAME + "|" + self.index.name + "|sub|outside")

    def test_a_path_that_would_be_found_is_refused_for_what_it_is(self):
        outside = self.folder / "outside.safetensors"
        outside.write_bytes(self.first.read_bytes())
        for name in ("../outside.safetensors", str(outside)):
            with self.subTest(name=name):
                self.write_index(lambda index, name=name: index["weight_map"].update({NAME: name}))
                self.check_refused(self.home, "INVALID_FILE", name)

    def test_an_index_that_is_none(self):
        good = self.index.read_text()
        entries = ("[]", "{}", "null", "1", '{"a": 1}', *(f'{{"{NAME}": {value}}}' for value in ("1", "null", '["x"]')))
        maps = [f'{{"weight_map": {entry}}}' for entry in entries]
        for text in ("", "{", "[]", "null", "{}", *maps, good[:-1], good + "x", "\ufeff" + good[:50],
                     '{"weight_map": ' + "[" * 100000, good.replace('"weight_map"', '"weight_maps"')):  # fmt: skip
            with self.subTest(text=text[:60]):
                self.index.write_text(text)
                self.check_refused(self.home, "INVALID_FILE|MISSING_TENSOR", self.index.name + "|layers.0.attn")

    def test_a_tensor_that_the_index_lists_twice(self):
        text = self.index.read_text()
        entry = f'"{NAME}": "{self.release.shard_name(1)}",'
        self.index.write_text(text.replace('"weight_map": {', '"weight_map": {' + entry))
        self.check_refused(self.home, "INVALID_FILE", NAME, "twice|duplicate|repeat|more than once")

    def test_wrong_totals_do_not_matter(self):
        """total_size is not about these layers, and conversions are known to get it wrong."""
        self.write_index(lambda index: index["metadata"].update(total_size=1))
        self.check_loads(self.home)
        self.write_index(lambda index: index.pop("metadata"))
        self.check_loads(self.home)

    def test_no_index(self):
        self.index.unlink()
        self.check_refused(self.home, "IO_ERROR|INVALID_FILE", "model.safetensors")

    # ---- The configuration ------------------------------------------------------------------------------------------

    def test_no_config(self):
        elsewhere = self.folder / "config.json"
        self.config.rename(elsewhere)
        self.check_refused(self.home, "IO_ERROR", "config.json")
        given = self.probe(self.home, "--config", elsewhere)
        self.assertEqual(given["status"], "DS41_STATUS_OK", given["message"])

    def test_a_config_that_is_none(self):
        for text in ("", "{", "[1]", "{}", '{"text_config": 5}', '{"text_config": {}}', "\xff\xfe"):
            with self.subTest(text=text):
                self.config.write_text(text, encoding="latin-1")
                self.check_refused(self.home, "INVALID_FILE", "config.json|text_config|key")

    def test_a_config_that_contradicts_itself(self):
        self.write_config(lambda config: config["text_config"].update(num_attention_heads=0))
        self.check_refused(self.home, "INVALID_CONFIG", "n_heads|num_attention_heads", "0")

    def test_a_config_of_another_model(self):
        self.write_config(lambda config: config["text_config"].update(hidden_size=96))
        self.check_problem(self.home, "INVALID_SHAPE", NAME, "16, 96", "16, 64")

    def test_a_given_config_goes_before_that_of_the_checkpoint(self):
        given = self.folder / "given.json"
        given.write_text(json.dumps({**self.case().config, "index_topk": 2, "max_seq_len": 50}))
        answer = self.check_loads(self.home)
        other = self.probe(self.home, "--config", given)
        self.assertEqual((other["config"]["index_topk"], other["config"]["max_seq_len"]), (2, 50))
        self.assertNotEqual(other["outputs"], answer["outputs"])
        given.write_text(json.dumps({**self.case().config, "dim": 96}))
        self.check_refused(self.home, "INVALID_SHAPE", NAME, "16, 96", options=["--config", given])

    def test_a_given_length(self):
        self.assertEqual(self.check_loads(self.home, "--max-seq-len", 4000)["config"]["max_seq_len"], 4000)
        for length in (-1, 1 << 62):
            self.check_refused(self.home, "INVALID_CONFIG|INVALID_ARGUMENT", "max_seq_len", str(length),
                               options=["--max-seq-len", length])  # fmt: skip

    def test_blocks_of_another_size(self):
        home = make_checkpoints.make_release(self.case("e_fp8_weights")).save(self.folder / "fp8")
        good = (home / "config.json").read_text()
        for change, word in (({"weight_block_size": [128, 128]}, "128"), ({"weight_block_size": [32, 64]}, "64"),
                             ({"weight_block_size": [32]}, "weight_block_size"), ({"scale_fmt": "float"}, "float"),
                             ({"weight_block_size": "32"}, "weight_block_size"), ({"quant_method": "awq"}, "awq"),
                             ({"weight_block_size": [32, -32]}, "-32")):  # fmt: skip
            with self.subTest(change=change):
                (home / "config.json").write_text(good)
                self.write_config(lambda config, change=change: config["quantization_config"].update(change), home)
                self.check_refused(home, "INVALID_CONFIG|INVALID_FILE|UNSUPPORTED|INVALID_SHAPE", word)

    # ---- Shards -----------------------------------------------------------------------------------------------------

    def test_a_shard_that_was_cut(self):
        content = self.first.read_bytes()
        for size in (0, 4, 8, 9, 500, len(content) // 2, len(content) - 1):
            with self.subTest(size=size):
                self.first.write_bytes(content[:size])
                self.check_refused(self.home, "INVALID_FILE", self.first.name)

    def test_a_shard_of_another_kind(self):
        for content in (b"GGUF" + bytes(100), b"\x80\x02}q", b"\xff" * 64, b'{"a": 1}'):
            with self.subTest(content=content[:8]):
                self.first.write_bytes(content)
                self.check_refused(self.home, "INVALID_FILE", self.first.name)

    # ---- Names of checkpoints ---------------------------------------------------------------------------------------

    def test_one_file(self):
        """The flat form by its file and by its folder; a trailing slash; a path with spaces."""
        path = make_checkpoints.make_flat(self.case()).save(self.folder / "a folder, with \u00e9")
        answer = self.check_same([path, path.parent, f"{path.parent}/", self.home])
        self.assertEqual(len(answer["outputs"]), 6)

    def test_one_file_without_a_config(self):
        path = make_checkpoints.make_flat(self.case()).save(self.folder / "flat")
        given = (path.parent / "config.json").rename(self.folder / "given.json")
        self.check_refused(path, "IO_ERROR", "config.json")
        self.assertEqual(self.probe(path, "--config", given)["status"], "DS41_STATUS_OK")

    def test_paths_that_are_no_checkpoint(self):
        empty = self.folder / "empty"
        empty.mkdir()
        text = self.folder / "text.txt"
        text.write_text("a text of some length, but no checkpoint")
        for path, statuses in ((self.folder / "nowhere", "IO_ERROR"), ("", "IO_ERROR|INVALID_ARGUMENT"),
                               (empty, "IO_ERROR|INVALID_FILE"), (text, "INVALID_FILE"), (self.config, "INVALID_FILE"),
                               ("/dev/null", "IO_ERROR|INVALID_FILE"),
                               ("/dev/zero", "IO_ERROR|INVALID_FILE")):  # fmt: skip
            with self.subTest(path=str(path)):
                self.check_refused(path, statuses)

    def test_a_pipe_is_refused_and_not_waited_for(self):
        pipe = self.folder / "pipe.safetensors"
        os.mkfifo(pipe)
        self.check_refused(pipe, "IO_ERROR|INVALID_FILE", "pipe.safetensors")
        self.config.unlink()
        os.mkfifo(self.config)
        self.check_refused(self.home, "IO_ERROR|INVALID_FILE", "config.json")

    def test_a_shard_named_alone(self):
        """It is a file like others, which holds some layers only and has the config of all beside it."""
        expected = self.check_loads(self.home)["outputs"]
        self.check_problem(self.first, "MISSING_TENSOR", "layer 5")
        answer = self.probe(self.first, "--count", 2)
        self.assertEqual(answer["status"], "DS41_STATUS_OK", answer["message"])
        self.assertEqual(answer["outputs"], {layer: expected[layer] for layer in ("0", "1")})


if __name__ == "__main__":
    main()
