#!/usr/bin/env python3
"""Runs mode `step` of ds41-bench on the simulated device, at small sizes, and holds its counts to each other.

Usage: bench_step_test.py BENCH, with DS41_PLUGIN_PATH set. Standard library only.
"""
import json
import subprocess
import sys
import unittest

BENCH = sys.argv[1]
COUNTS = ("launches", "requested_bytes", "distinct_bytes", "floor_bytes")


def run(*arguments):
    command = [BENCH, "step", "--backend", "sim", "--scale", "32", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def records(*arguments):
    result = run(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["records"]


class StepTest(unittest.TestCase):
    def check_ratios(self, cost):
        for kind in ("requested", "distinct"):
            self.assertAlmostEqual(cost[f"{kind}_to_floor"], cost[f"{kind}_bytes"] / cost["floor_bytes"], 9)
        self.assertLessEqual(cost["distinct_bytes"], cost["requested_bytes"])

    def check_record(self, record):
        self.assertEqual((record["mode"], record["backend"], record["scale"]), ("step", "sim", 32))
        stages = record["stages"]
        names = [stage["stage"] for stage in stages]
        self.assertEqual((names[0], names[-3:]), ("project", ["attend", "output", "commit_window"]))
        self.assertEqual("compress" in names, "source" in record["kind"] and "index" not in record["kind"])
        self.assertEqual("select" in names, "source" in record["kind"])
        for cost in (*stages, record["all"]):
            self.check_ratios(cost)
        for count in COUNTS:
            self.assertEqual(sum(stage[count] for stage in stages), record["all"][count])
        # Every weight is read, and little beside what has to be.
        self.assertGreater(record["all"]["distinct_to_floor"], 0.98)
        self.assertLess(record["all"]["distinct_to_floor"], 2)

        body, captured = record["body"], record["captured"]
        self.assertGreater(body["launches"], 0)
        for count in ("launches", "requested_bytes"):
            self.assertEqual(body[count], record["all"][count])
        self.assertEqual((body["graph_launches"], captured["graph_launches"]), (0, 1))
        self.assertGreater(captured["launches"], 0)
        for of_layer in (body, captured):
            self.assertEqual((of_layer["uploads"], of_layer["synchronisations"]), (0, 0))
        for prep in (record["prep"], record["captured_prep"]):
            self.assertEqual(prep["synchronisations"], 0)
            self.assertEqual(prep["uploads"], 1)
            self.assertGreater(prep["uploaded_bytes"], 0)

    def test_every_kind_format_and_context(self):
        got = records("--contexts", "41") + records("--contexts", "2,100", "--formats", "fp8")
        cases = {(record["kind"], record["format"], record["context"]) for record in got}
        self.assertEqual(len(cases), len(got))
        self.assertEqual(len(got), 6 * (3 + 2))
        self.assertEqual({record["format"] for record in got}, {"bf16", "fp8", "q2_k"})
        self.assertEqual({record["context"] for record in got}, {2, 41, 100})
        self.assertEqual([record["layer"] for record in got][:6], [0, 2, 3, 20, 21, 24])
        for record in got:
            with self.subTest(case=record["case"]):
                self.check_record(record)

    def test_rows_and_layers_are_those_asked_for(self):
        one, other = (records("--contexts", "41", "--formats", "fp8", "--layers", "20-21", "--rows", n) for n in "13")
        self.assertEqual([record["layer"] for record in one], [20, 21])
        for record, of_three in zip(one, other):
            self.check_record(of_three)
            self.assertEqual((record["rows"], of_three["rows"]), (1, 3))
            attends = [next(s for s in r["stages"] if s["stage"] == "attend") for r in (record, of_three)]
            self.assertGreater(attends[1]["distinct_bytes"], 2 * attends[0]["distinct_bytes"])

    def test_the_table_says_the_same(self):
        arguments = ("--contexts", "41", "--formats", "bf16", "--layers", "2")
        (record,) = records(*arguments)
        result = run(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"step: {record['case']}, backend sim\n", result.stdout)
        rows = {line[:18].strip(): line[18:].split() for line in result.stdout.splitlines() if line.startswith("  ")}
        for cost in (*record["stages"], record["all"]):
            launches, *megabytes, requested, distinct = rows[cost["stage"]]
            self.assertEqual(int(launches), cost["launches"])
            for shown, count in zip(megabytes, COUNTS[1:]):
                self.assertAlmostEqual(float(shown), cost[count] / 1e6, delta=0.0006)
            self.assertAlmostEqual(float(requested), cost["requested_to_floor"], delta=0.006)
            self.assertAlmostEqual(float(distinct), cost["distinct_to_floor"], delta=0.006)
        for name, key in (("prep", "prep"), ("layer", "body"), ("prep for graph", "captured_prep"), ("graph", "captured")):
            host = record[key]
            launches, megabytes, *shown = rows[name]
            members = ("graph_launches", "uploads", "uploaded_bytes", "synchronisations")
            self.assertEqual([int(launches), *map(int, shown)], [host["launches"], *(host[member] for member in members)])
            self.assertAlmostEqual(float(megabytes), host["requested_bytes"] / 1e6, delta=0.0006)

    def test_a_layer_that_is_not_there_is_one_sentence(self):
        result = run("--layers", "900")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertEqual(result.stderr.count("\n"), 1)
        self.assertIn("900", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
