#!/usr/bin/env python3
"""The memory that ds41-inspect tells: its figures for all of V4.1-Flash against those known of the model, and how they
follow the options.
"""
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import flash_file
from inspect_case import INSPECT, InspectTest, human, main

CACHES = ("window", "compressed", "index_keys", "group_state")
MB = 1_000_000


class MemoryTest(InspectTest):
    def flash(self, with_drafts=True):
        folder = self.folder / "flash"
        self.sizes = flash_file.write(folder, with_drafts)
        return folder

    def memory(self, path, *options):
        return self.answer(0, path, *options)[0]["memory"]

    def test_the_weights_of_flash(self):
        document, text = self.answer(0, self.flash())
        layers = document["layers"]
        self.assertEqual(document["n_bytes"], sum(self.sizes.values()))
        # Projections in FP8 with their scales, norms and the sink beside them.
        five = {"wq_a", "wq_b", "wkv", "wo_a", "wo_b"}
        projections = [sum(t["n_bytes"] for t in document["tensors"] if t["layer"] == i and t["member"] in five)
                       for i in range(len(layers))]  # fmt: skip
        self.assertEqual({round(n / MB, 1) for n in projections}, {126.7})
        self.assertEqual(round(sum(projections[:40]) / MB / 1000, 2), 5.07)
        extra = lambda i: layers[i]["n_bytes"] - layers[0]["n_bytes"]
        self.assertEqual(round((extra(24)) / MB, 2), round((4096 * 1280 * 1025 / 1024 + 2 * 32 * 5120) / MB, 2))
        self.assertEqual(round((extra(2) - extra(20)) / MB, 2), 5.24)  # the gate that ratio 1 does not have
        self.assertIn("126.7 MB", text)
        self.assertRegex(text, r"\n3-7 +2  rows and selection of 2 +F8_E4M3 ")
        self.assertRegex(text, r"\n40-42 +0  draft, window only +F8_E4M3 ")
        # Norms are kept as F32.
        widened = sum(2 * t["shape"][0] for t in document["tensors"] if len(t["shape"]) == 1 and t["type"] == "BF16")
        self.assertEqual(document["n_model_bytes"], document["n_bytes"] + widened)
        self.assertEqual(document["memory"]["weights"], document["n_model_bytes"])

    def test_expanded_weights_of_flash(self):
        document, _ = self.answer(0, self.flash(), "--expand-fp8", "--layers", "3")
        matrices = sum(t["n_model_bytes"] for t in document["tensors"] if len(t["shape"]) == 2)
        self.assertEqual(round(matrices / MB, 1), 253.2)
        self.assertEqual(document["memory"]["weights"], document["n_model_bytes"])

    def test_the_caches_of_flash(self):
        path = self.flash(with_drafts=False)
        for context, megabytes in ((4096, 6.3), (65536, 61), (1048576, 936)):
            with self.subTest(context=context):
                memory = self.memory(path, "--context", context)
                rows = memory["window"] + memory["compressed"] + memory["index_keys"]
                self.assertAlmostEqual(rows / MB, megabytes, delta=megabytes * 0.01)
                self.assertGreaterEqual(memory["window"], 40 * 128 * 528)
                self.assertGreaterEqual(memory["compressed"], context * 5 // 2 * 288)
                self.assertGreaterEqual(memory["index_keys"], context * 5 // 2 * 68)
                # Pages round up, by less than a hundredth or some kB a layer.
                self.assertLess(rows, 40 * 128 * 528 + context * 5 // 2 * 356 * 1.01 + 200_000)
        self.assertEqual(memory["group_state"], 3 * 2 * 2 * 512 * 4)

    def test_sequences_multiply_the_caches_only(self):
        path = self.flash()
        one = self.memory(path, "--context", 10000, "--prefill", 64)
        for batch in (2, 7, 64):
            several = self.memory(path, "--context", 10000, "--batch", batch, "--prefill", 64)
            self.assertEqual({key: several[key] for key in CACHES}, {key: batch * one[key] for key in CACHES})
            self.assertEqual(several["weights"], one["weights"])
            self.assertEqual(several["workspace"], one["workspace"])

    def test_rows_follow_the_context(self):
        path = self.flash()
        few, many = self.memory(path, "--context", 65536), self.memory(path, "--context", 262144)
        for key in ("compressed", "index_keys"):
            self.assertAlmostEqual(many[key] / few[key], 4, delta=0.02)
        for key in ("weights", "group_state", "window"):
            self.assertEqual(many[key], few[key])

    def test_the_workspace_follows_the_step(self):
        path = self.flash()
        sizes = [self.memory(path, "--prefill", n)["workspace"] for n in (1, 64, 1024)]
        self.assertEqual(sizes, sorted(set(sizes)))

    def test_defaults(self):
        memory = self.memory(path := self.flash())
        self.assertEqual((memory["context"], memory["batch"], memory["prefill"]), (4096, 1, 64))
        self.assertEqual(memory, self.memory(path, "--context", 4096, "--batch", 1, "--prefill", 64))
        self.assertEqual(self.memory(path, "--batch", 200)["prefill"], 200)
        self.assertEqual(self.memory(path, "--context", 3)["prefill"], 3)
        self.assertEqual(self.memory(path, "--context", 3, "--batch", 5)["prefill"], 15)
        small = self.release().save(self.folder / "release")  # max_seq_len 64
        self.assertEqual(self.memory(small)["context"], 64)

    def test_limits(self):
        path = self.flash()
        self.memory(path, "--context", 1048576)
        self.check_refused("--context", "1048577", path, word="1048577, need a number from 1 to 1048576")
        self.check_refused("--layers", "40-43", path, word="43, need a number from 0 to 42")
        self.check_refused("--context", "8", "--batch", "2", "--prefill", "17", path, word="17, need a number from 1 to 16")
        self.check_refused("--backend", "none such", path, word="none such")
        # As much as may be asked for: told, or refused in a sentence.
        most = ("--context", "1048576", "--batch", str(1 << 30), "--prefill", str(1 << 30), str(path))
        result = self.run_tool(*most)
        self.assertIn(result.returncode, (0, 2), result.stderr)
        if result.returncode == 0:
            self.answer(0, path, *most[:-1])

    def test_what_is_mapped_is_not_copied(self):
        path = self.flash()
        copied, text = self.answer(0, path)
        mapped, mapped_text = self.answer(0, path, "--map")
        self.assertEqual(copied["memory"]["left_in_files"], 0)
        self.assertNotIn("left in files", text)
        memory = mapped["memory"]
        self.assertEqual(memory["weights"] + memory["left_in_files"], mapped["n_model_bytes"])
        self.assertLess(memory["weights"], 10 * MB)  # scales and norms
        self.assertRegex(mapped_text, rf"left in files +{human(memory['left_in_files'])}\n")
        both = self.memory(path, "--map", "--expand-fp8")
        self.assertGreater(both["weights"], 2 * copied["n_bytes"] - 400 * MB)

    def test_only_headers_are_read(self):
        """Pages of a mapping that were touched count as the process's memory."""
        process = subprocess.Popen([*INSPECT, self.flash()], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0)
        self.assertLess(usage.ru_maxrss * 1024, 1000 * MB)  # sanitizers take their share


main()
