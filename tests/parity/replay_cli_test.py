#!/usr/bin/env python3
"""What ds41-replay answers to files that are wrong, and to those that are only unusual. Standard library only.

Usage: replay_cli_test.py REPLAY FIXTURES. Each case makes a file from a golden one, runs the tool, and checks the exit
status (0 inside, 1 outside, 2 could not run) and a telling part of the output.
"""
import json
import os
import pathlib
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import unittest

SUPPORT = pathlib.Path(__file__).resolve().parent.parent / "support"
sys.path.insert(0, str(SUPPORT))
from terminal import shown_on_terminal

# A cross build names the emulator.
REPLAY, FIXTURES = [*shlex.split(os.environ.get("MESON_EXE_WRAPPER", "")), sys.argv[1]], pathlib.Path(sys.argv[2])


class File:
    """A safetensors file in memory: metadata, and tensors as [dtype, shape, bytes]."""

    def __init__(self, name):
        data = (FIXTURES / f"{name}.safetensors").read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        self.metadata = header.pop("__metadata__")
        self.tensors = {}
        for key, entry in header.items():
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            self.tensors[key] = [entry["dtype"], entry["shape"], data[begin:end]]

    def save(self, path, only=None):
        header, data = {"__metadata__": self.metadata}, b""
        for key, (dtype, shape, content) in self.tensors.items():
            if only and not only(key):
                continue
            header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
            data += content
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data)

    def set_metadata(self, key, change):
        value = json.loads(self.metadata[key])
        self.metadata[key] = json.dumps(change(value))


class ReplayTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.path = self.folder / "case.safetensors"
        self.file = File("d_sinks")

    def run_tool(self, *arguments, stdout=subprocess.PIPE):
        return subprocess.run([*REPLAY, *map(str, arguments)], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)

    def check(self, status, *words, file=None, arguments=()):
        (file or self.file).save(self.path)
        result = self.run_tool(*arguments, self.path)
        self.assertEqual(result.returncode, status, result.stdout[-2000:] + result.stderr)
        for word in words:
            self.assertIn(word, result.stdout + result.stderr)
        if status == 2:
            self.assertTrue(result.stderr.startswith("ds41-replay: "), result.stderr)

    def test_loading_a_checkpoint_shows_a_bar_on_a_terminal_and_nowhere_else(self):
        case = FIXTURES / "a_golden_stable.safetensors"
        checkpoint = self.folder / "small.gguf"
        subprocess.run([sys.executable, SUPPORT / "make_checkpoints.py", "--form", "gguf", "--out", checkpoint, case],
                       check=True, stdout=subprocess.DEVNULL)
        arguments = ["--weights", checkpoint, case]
        status, shown = shown_on_terminal([*REPLAY, *map(str, arguments)])
        self.assertEqual(status, 0, shown)
        self.assertIn(b"\r[####################] 100 %", shown)
        self.assertIn(b"blk.", shown)  # a tensor's name
        self.assertTrue(shown.endswith(b"\r\x1b[K"), shown[-100:])  # and the line is wiped
        result = self.run_tool(*arguments)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_as_it_is(self):
        self.check(0, "ok: 0 of")

    def test_a_wrong_value_is_outside(self):
        dtype, shape, content = self.file.tensors["step0.layer1.out"]
        self.file.tensors["step0.layer1.out"] = [dtype, shape, b"\x00\x43" + content[2:]]  # 128
        self.check(1, "outside: 1 of")

    def test_a_wrong_selection_is_outside(self):
        dtype, shape, content = self.file.tensors["step0.layer1.idx"]
        self.file.tensors["step0.layer1.idx"] = [dtype, shape, struct.pack("<i", 3) + content[4:]]
        self.check(1, "outside: 1 of")

    def test_nan_is_expected_only_where_it_stands(self):
        dtype, shape, content = self.file.tensors["step0.layer1.out"]
        self.file.tensors["step0.layer1.out"] = [dtype, shape, b"\xc0\x7f" + content[2:]]
        self.check(1, "outside: 1 of")

    def test_a_wrong_shape_is_outside(self):
        dtype, shape, content = self.file.tensors["step0.layer0.q"]
        self.file.tensors["step0.layer0.q"] = [dtype, [shape[0] * shape[1], shape[2]], content]
        self.check(1, "outside: 1 of")

    def test_unknown_tensors_are_named(self):
        self.file.tensors["step0.layer0.nonsense"] = ["U8", [1], b"\0"]
        self.check(0, "step0.layer0.nonsense")

    def test_unknown_tensors_are_named_when_the_first_mode_expects_nothing(self):
        file = File("e_fp8_weights")
        kinds = ("out", "q", "o", "idx", "ring", "comp_rows", "index_keys", "latent")
        for key in [key for key in file.tensors if key.startswith("step") and key.split(".", 2)[2] in kinds]:
            del file.tensors[key]
        file.tensors["step0.layer0.nonsense"] = ["U8", [1], b"\0"]
        self.check(0, "step0.layer0.nonsense", file=file)

    def test_nothing_to_compare(self):
        for key in [key for key in self.file.tensors if key.startswith("step") and not key.endswith(".x")]:
            del self.file.tensors[key]
        self.check(2, "no expected tensor")

    def test_candidates_without_blocks(self):
        self.file.set_metadata("config", lambda c: {**c, "candidate_source_layer": None, "candidate_topk_blocks": 0,
                                                    "candidate_block_size": 0})
        self.file.tensors["step0.layer0.candidates"] = ["U8", [10, 1], bytes(10)]
        self.check(1, "candidates")

    def test_scales_of_another_dtype(self):
        for dtype, shape, size in (("F32", [4, 3], 48), ("U8", [4, 3], 12), ("F8_E8M0", [12], 12)):
            file = File("e_fp8_weights")
            file.tensors["layers.0.attn.wq_a.scale"] = [dtype, shape, bytes(size)]
            self.check(2, "layers.0.attn.wq_a.scale", file=file)

    def test_metadata_of_another_type_is_named(self):
        for key, value in (("rules", '{"tie": 5}'), ("steps", "[1]"), ("steps", '[{"start_pos": 0, "tokens": 10.7}]'),
                           ("tolerance", '{"float": 5}'), ("modes", '{"": 5}'), ("weights", "{}"), ("steps", "[")):
            with self.subTest(key=key, value=value):
                file = File("d_sinks")
                file.metadata[key] = value
                self.check(2, f"'{key}'", file=file)

    def test_no_steps(self):
        result = self.run_tool(FIXTURES / "rope_tables.safetensors")
        self.assertEqual(result.returncode, 2)
        self.assertIn("no steps", result.stderr)

    def test_parts_in_any_number_and_a_missing_one(self):
        part = lambda k: self.folder / f"split.0{k}of03.safetensors"
        for k in (1, 2, 3):
            self.file.save(part(k), only=lambda key, k=k: sum(key.encode()) % 3 == k - 1)
        self.assertEqual(self.run_tool(part(2)).returncode, 0)
        part(3).unlink()
        result = self.run_tool(part(1))
        self.assertEqual(result.returncode, 2)
        self.assertIn("split.03of03", result.stderr)

    def test_truncated_at_many_sizes(self):
        self.file.save(self.path)
        content = self.path.read_bytes()
        for size in [0, 1, 7, 8, 9, 100, 5000, len(content) // 2, len(content) - 1]:
            self.path.write_bytes(content[:size])
            self.assertEqual(self.run_tool(self.path).returncode, 2, size)

    def test_one_file_that_cannot_be_run_does_not_stop_the_others(self):
        self.file.save(self.path)
        result = self.run_tool(self.folder / "none.safetensors", self.path)
        self.assertEqual(result.returncode, 2)
        self.assertIn("ok: 0 of", result.stdout)

    def test_json(self):
        self.file.save(self.path)
        result = self.run_tool("--json", "--chunk", 3, self.path)
        document = json.loads(result.stdout)
        (run,) = document["files"]
        self.assertEqual((run["case"], run["chunk"], run["verdict"]), ("d_sinks", 3, "ok"))
        self.assertGreater(len(run["records"]), 50)

    def test_a_fingerprint_tells_runs_apart(self):
        def fingerprint(file, *arguments):
            file.save(self.path)
            return json.loads(self.run_tool("--json", *arguments, self.path).stdout)["files"][0]["fingerprint"]

        first = fingerprint(self.file)
        self.assertEqual(fingerprint(self.file), first)
        dtype, shape, content = self.file.tensors["step0.layer0.x"]
        self.file.tensors["step0.layer0.x"] = [dtype, shape, b"\x00\x40" + content[2:]]
        self.assertNotEqual(fingerprint(self.file), first)

    def test_threads_do_not_change_a_bit(self):
        for name in sorted(path.name for path in FIXTURES.glob("*.safetensors")):
            if not re.match(r"[a-h]_", name) or re.search(r"\.[2-9]of", name):
                continue
            with self.subTest(name=name):
                prints = set()
                for threads in (1, 2, 3):
                    result = self.run_tool("--json", "--threads", threads, FIXTURES / name)
                    self.assertEqual(result.returncode, 0)
                    prints.add(tuple(run["fingerprint"] for run in json.loads(result.stdout)["files"]))
                self.assertEqual(len(prints), 1)

    def test_usage(self):
        for arguments in ([], ["--nonsense"], ["--chunk", "0", "x"], ["--topk", "best", "x"], ["--chunk"],
                          ["--threads", "-1", "x"], ["--threads", "1025", "x"], ["--threads"]):
            self.assertEqual(self.run_tool(*arguments).returncode, 2, arguments)
        self.assertEqual(self.run_tool("--help").returncode, 0)

    def test_an_unknown_backend(self):
        self.check(2, "reference", arguments=["--backend", "abacus"])

    @unittest.skipUnless(pathlib.Path("/dev/full").exists(), "no /dev/full")
    def test_output_that_cannot_be_written(self):
        self.file.save(self.path)
        with open("/dev/full", "w", encoding="utf-8") as full:
            self.assertEqual(self.run_tool(self.path, stdout=full).returncode, 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
