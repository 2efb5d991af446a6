#!/usr/bin/env python3
"""Tests the table of tests/gpu.sh on made-up reports: gpu_table_test.py FOLDER_OF_GPU_TABLE."""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, sys.argv.pop(1))
import gpu_table

OF = {"kind": "window only", "format": "fp8", "context": 4096, "rows": 4}
TIMES = {**OF, "mode": "step times", "case": "a", "stages": [
    {"stage": "project", "microseconds": 12.0, "floor_microseconds": 10.0},
    {"stage": "attend", "microseconds": 3.0, "floor_microseconds": 2.0},
    {"stage": "all", "microseconds": 15.0, "floor_microseconds": 12.0}]}
CONTEST = {"mode": "step", "case": "a", "contestant": "step, captured", "us": {"median": 13.8}}
COUNTS = {**OF, "mode": "step", "all": {"launches": 8, "requested_to_floor": 1.25, "distinct_to_floor": 1.002}}


class GpuTable(unittest.TestCase):
    def table(self, *reports):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
            paths = []
            for i, report in enumerate(reports):
                paths.append(pathlib.Path(folder) / f"{i}.json")
                paths[-1].write_text(report if isinstance(report, str) else json.dumps({"records": report}))
            gpu_table.main(paths)
        return [line.split() for line in out.getvalue().splitlines()]

    def test_times_have_stages_floor_and_captured(self):
        head, line = self.table([CONTEST, TIMES])
        self.assertEqual(head, ["microseconds", "format", "context", "rows", "project", "attend", "all", "floor",
                                "ratio", "captured", "ratio"])
        self.assertEqual(line, ["window", "only", "fp8", "4096", "4", "12.0", "3.0", "15.0", "12.0", "1.25", "13.8",
                                "1.15"])

    def test_a_step_without_a_graph_has_no_time_of_one(self):
        self.assertEqual(self.table([TIMES])[1][-2:], ["-", "-"])

    def test_counts_where_there_are_no_times(self):
        lines = self.table([COUNTS], [COUNTS])
        self.assertEqual(len(lines), 3)
        self.assertEqual(lines[1][2:], ["fp8", "4096", "4", "8", "1.250", "1.002"])

    def test_what_cannot_be_read_is_named(self):
        lines = self.table("no JSON", [TIMES])
        self.assertIn("0.json:", lines[0][0])
        self.assertEqual(len(lines), 3)
        self.assertEqual(self.table([])[0], ["nothing", "was", "measured"])


if __name__ == "__main__":
    unittest.main()
