#!/usr/bin/env python3
"""Runs ds41-bench on little work and holds what it prints to its form, never a time. Standard library only.

Usage: bench_cli_test.py BENCH MAKE_CHECKPOINTS FIXTURES.
"""
import json
import os
import re
import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from terminal import shown_on_terminal

# A cross build names the emulator.
BENCH = [*shlex.split(os.environ.get("MESON_EXE_WRAPPER", "")), sys.argv[1]]
MAKE_CHECKPOINTS, FIXTURES = sys.argv[2], pathlib.Path(sys.argv[3])
CASE = FIXTURES / "e_fp8_weights.safetensors"


def make_checkpoint(form, path):
    command = [sys.executable, MAKE_CHECKPOINTS, "--form", form, "--out", path, CASE]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def run(*arguments):
    return subprocess.run([*BENCH, *map(str, arguments)], capture_output=True, text=True, check=False)


class BenchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.release, cls.gguf = cls.folder / "release", cls.folder / "model.gguf"
        make_checkpoint("release", cls.release)
        make_checkpoint("gguf", cls.gguf)

    def document(self, *arguments):
        result = run(*arguments, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def check_summary(self, summary, n_most):
        self.assertEqual(set(summary), {"median", "q1", "q3", "n"})
        self.assertLess(0, summary["q1"])
        self.assertLessEqual(summary["q1"], summary["median"])
        self.assertLessEqual(summary["median"], summary["q3"])
        self.assertIn(summary["n"], range(1, n_most + 1))

    def check_records(self, document, n_rounds):
        """The form of all records; figures are there exactly where samples were kept."""
        self.assertEqual(document["tool"], "ds41-bench")
        by_case = {}
        for record in document["records"]:
            self.assertEqual(record["n_kept"] + record["n_dropped"], n_rounds)
            self.assertEqual((record["cpu"], record["library"]), (document["cpu"], document["library"]))
            self.assertGreater(record["bytes"], 0)
            if record["flops"] and record["n_kept"]:
                self.assertAlmostEqual(record["gflop_per_s"] * record["us"]["median"] * 1e3 / record["flops"], 1)
            else:
                self.assertIsNone(record["gflop_per_s"])
            if record["n_kept"]:
                self.check_summary(record["us"], n_rounds)
                self.assertEqual(record["us"]["n"], record["n_kept"])
                self.assertAlmostEqual(record["gb_per_s"] * record["us"]["median"] * 1e3 / record["bytes"], 1)
            else:
                self.assertIsNone(record["us"])
                self.assertIsNone(record["gb_per_s"])
            for kind in ("floor", "baseline"):
                if record[kind + "_ratio"]:
                    self.check_summary(record[kind + "_ratio"], record["n_kept"])
                if record[kind] == record["contestant"] and record["n_kept"]:
                    self.assertEqual(record[kind + "_ratio"], {"median": 1, "q1": 1, "q3": 1, "n": record["n_kept"]})
            by_case.setdefault(record["case"], []).append(record)
        for records in by_case.values():
            names = [record["contestant"] for record in records]
            self.assertEqual(len(names), len(set(names)))
            for record in records:
                self.assertIn(record["floor"], names)
                self.assertIn(record["baseline"], names)
        return by_case

    def check_load(self, path, *arguments):
        by_case = self.check_records(document := self.document("load", path, "--rounds", 4, *arguments), 4)
        cases = list(by_case) + [skipped["case"] for skipped in document["not_measured"]]
        self.assertEqual(len(cases), 2)
        self.assertTrue(cases[0].endswith("warm page cache"), cases)
        self.assertTrue(cases[1].endswith("cold page cache"), cases)
        self.assertIn(cases[0], by_case)
        for records in by_case.values():
            self.assertEqual([r["contestant"] for r in records], ["read()", "load, copied", "load, mapped"])
            self.assertEqual(len({r["bytes"] for r in records}), 1)
            self.assertEqual({r["mode"] for r in records}, {"load"})
            self.assertEqual(len({r["backend"] for r in records}), 1)
            self.assertNotEqual(records[0]["backend"], "")
        return by_case[cases[0]][0]

    def test_load_of_both_forms(self):
        for path in (self.release, self.gguf):
            with self.subTest(path=path.name):
                record = self.check_load(path)
                size = sum(f.stat().st_size for f in ([path] if path.is_file() else path.iterdir()))
                self.assertLess(record["bytes"], size)

    def test_a_range_of_layers_is_its_part_of_the_whole(self):
        every = self.check_load(self.release)
        first = self.check_load(self.release, "--layers", "0-1", "--threads", 1)
        rest = self.check_load(self.release, "--layers", "2-4")
        self.assertEqual(first["bytes"] + rest["bytes"], every["bytes"])
        self.assertTrue(first["case"].startswith("2 layers, "), first["case"])
        held = [float(record["note"].split(" MB")[0].split()[-1]) for record in (first, rest, every)]
        self.assertLess(0, held[0])
        self.assertAlmostEqual(held[0] + held[1], held[2], delta=0.02)  # of what the model took, to two decimals

    def test_the_backend_is_the_one_asked_for(self):
        self.assertEqual(self.check_load(self.release, "--backend", "reference")["backend"], "reference")

    def test_read(self):
        document = self.document("read", "--rounds", 3, "--threads", 2)
        (records,) = self.check_records(document, 3).values()
        self.assertEqual([record["threads"] for record in records], [1, 2])
        self.assertEqual([record["flops"] for record in records], [None, None])

    def check_stages(self, mode, *arguments):
        """Records by case, of a mode that times stages of the CPU alone, at sizes divided by 32."""
        document = self.document(mode, "--scale", 32, "--rounds", 3, "--threads", 2, *arguments)
        by_case = self.check_records(document, 3)
        for records in by_case.values():
            self.assertEqual({(r["mode"], r["backend"], r["floor"]) for r in records}, {(mode, "cpu", "plain read")})
            self.assertLessEqual(len({r["flops"] for r in records if r["flops"]}), 1)
        return document, by_case

    # Values of the five matrices, whose sizes are 5120, 1280, 512, 64, 1024 and 8 groups divided by 32, or the least.
    PROJ_VALUES = 256 * 256 + 256 * 256 + 8 * 256 * 256 + 256 * 256 + 256 * 256

    def check_projections(self, mode, rows, *arguments):
        document, by_case = self.check_stages(mode, *arguments)
        words = {n: f"{n} row" if n == 1 else f"{n} rows" for n in rows}
        self.assertEqual(list(by_case), [f"{f}, {words[n]}, scale 32" for f in ("bf16", "fp8", "q2_k") for n in rows])
        for (case, records), n in zip(by_case.items(), 3 * rows):
            here = [r["contestant"] for r in records]
            missing = {m["case"]: m["reason"] for m in document["not_measured"] if m["case"].startswith(case + ", ")}
            others = [m[len(case) + 2 :] for m in missing]
            if case.startswith("bf16"):
                self.assertEqual({*here, *others}, {"plain read", "ours", "oneDNN, bf16", "oneDNN, f32", "OpenBLAS, f32"})
                self.assertEqual(len(here) + len(others), 5)  # each is timed, or said to be missing
                self.assertTrue(all(missing.values()))
            else:
                baseline = ["plain loop"] if case == "q2_k, 1 row, scale 32" else []
                self.assertEqual((here, others), (["plain read", "ours"] + baseline, []))
            self.assertEqual({r["flops"] for r in records[1:]}, {2 * n * self.PROJ_VALUES})
            self.assertEqual({r["threads"] for r in records}, {2})
        weights = {case.split(",")[0]: records[1]["bytes"] for case, records in by_case.items()}
        for form, n_bytes in (("bf16", 2), ("fp8", 1), ("q2_k", 84 / 256)):
            self.assertGreaterEqual(weights[form], self.PROJ_VALUES * n_bytes)
            self.assertLess(weights[form], self.PROJ_VALUES * n_bytes * 1.1)

    def test_proj(self):
        self.check_projections("proj", [1, 5], "--rows", "1,5")

    def test_prefill(self):
        self.check_projections("prefill", [64, 512])

    def test_attend(self):
        # Of the smallest size: 8 heads of 256, a window of 4, and up to 16 selected rows of half as many as tokens.
        _, by_case = self.check_stages("attend", "--contexts", "3,100,1K")
        shapes = [("4 rows", 3 + 1), ("20 rows", 4 + 16), ("20 rows", 4 + 16)]
        for (case, records), context, (words, n_rows) in zip(by_case.items(), (3, 100, 1024), shapes):
            self.assertEqual(case, f"8 heads of 256, {words} of a context of {context}")
            self.assertEqual([r["contestant"] for r in records], ["plain read", "plain loop", "ours"])
            self.assertEqual(records[2]["flops"], 4 * 8 * 256 * n_rows)

    def test_index(self):
        _, by_case = self.check_stages("index", "--contexts", "5,1001,2K")
        cases = [f"{n} keys of 128, 1 heads" for n in ("5", "1001", "2K")]
        cases += [f"best {k} of {n} scores" for k, n in ((5, "5"), (16, "1001"), (16, "2K"))]
        self.assertEqual(list(by_case), cases)
        for case in cases[:3]:
            self.assertEqual([r["contestant"] for r in by_case[case]], ["plain read", "scores of bf16 keys", "ours"])
        for case in cases[3:]:
            self.assertEqual([r["contestant"] for r in by_case[case]], ["plain read", "std::nth_element", "ours"])
        self.assertEqual(by_case[cases[1]][1]["bytes"], 1001 * 128 * 2)

    def test_stack(self):
        document = self.document("stack", "--scale", 32, "--rounds", 3, "--threads", 2, "--contexts", "5,1K", "--rows", "1,3")
        by_case = self.check_records(document, 3)
        shapes = [(5, "1 row"), (5, "3 rows"), (1024, "1 row"), (1024, "3 rows")]
        self.assertEqual(
            list(by_case),
            [f"40 layers, {f}, context {n}, {rows}, scale 32" for f in ("bf16", "fp8", "q2_k") for n, rows in shapes],
        )
        weights = {}
        for case, records in by_case.items():
            self.assertEqual([r["contestant"] for r in records], ["plain read of the weights", "step"])
            self.assertEqual({(r["backend"], r["floor"], r["baseline"]) for r in records},
                             {("cpu", "plain read of the weights", "step")})
            note = re.fullmatch(r"([0-9.]+) GB of weights; the process has had ([0-9.]+) GB of memory at most\.",
                                records[0]["note"])
            self.assertLess(float(note[1]), float(note[2]))
            weights[case.split(",")[1].strip()] = records[0]["bytes"]
        self.assertGreater(weights["bf16"], 1.9 * weights["fp8"])
        self.assertGreater(weights["fp8"], 2.5 * weights["q2_k"])
        self.assertGreater(weights["q2_k"], 40 * self.PROJ_VALUES * 84 / 256)

    def test_the_table_says_who_is_missing(self):
        document = self.document("proj", "--scale", 32, "--rounds", 3, "--formats", "bf16")
        result = run("proj", "--scale", 32, "--rounds", 3, "--formats", "bf16")
        self.assertEqual(result.returncode, 0, result.stderr)
        for name in ("oneDNN, bf16", "oneDNN, f32", "OpenBLAS, f32"):
            self.assertIn(name, result.stdout)
        self.assertEqual(result.stdout.count(": not measured: "), len(document["not_measured"]))

    def test_the_table_shows_every_contestant(self):
        result = run("load", self.release, "--rounds", 3)
        self.assertEqual(result.returncode, 0, result.stderr)
        for word in ("read()", "load, copied", "load, mapped", "floor", "baseline", "warm page cache", "GB/s"):
            self.assertIn(word, result.stdout)
        self.assertNotIn("[#", result.stderr)  # no progress bar in a pipe

    def test_a_terminal_gets_a_progress_bar(self):
        status, shown = shown_on_terminal([*BENCH, "load", self.release, "--rounds", "3"])
        self.assertEqual(status, 0)
        self.assertIn(b"\r[####################] 100 %", shown)
        self.assertIn(b"attn", shown)  # a tensor's name
        self.assertIn(b"\r\x1b[K", shown)  # and the line is wiped

    def test_what_fails_is_one_sentence_and_status_1(self):
        for arguments, word in (
            (("load", self.folder / "nothing"), "nothing"),
            (("load", CASE), "config.json"),
            (("load", self.release, "--layers", "900"), "900"),
            (("load", self.release, "--backend", "none such"), "none such"),
        ):
            with self.subTest(arguments=arguments):
                result = run(*arguments)
                self.assertEqual((result.returncode, result.stdout), (1, ""))
                self.assertTrue(result.stderr.startswith("ds41-bench: "), result.stderr)
                self.assertEqual(result.stderr.count("\n"), 1)
                self.assertIn(word, result.stderr)

    def test_a_bad_option_is_one_sentence_and_status_2(self):
        result = run("load", self.release, "--seconds", "soon")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        sentence = "--seconds is 'soon', need a number from 0.001 to 86400; see --help"
        self.assertEqual(result.stderr, f"ds41-bench: {sentence}\n")

    def test_help_and_version(self):
        self.assertIn("usage: ds41-bench", run("--help").stdout)
        self.assertRegex(run("--version").stdout, r"^ds41-bench \d+\.\d+\.\d+, libds41 \d+\.\d+\.\d+\n$")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
