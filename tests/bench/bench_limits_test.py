#!/usr/bin/env python3
"""What a decode step may cost at DeepSeek-V4.1-Flash's sizes, counted on the simulated device: bench_limits_test.py BENCH.

A source of keys and selections, and a layer that is none, in each weight format. Distinct bytes are what memory has to
deliver, requested ones what the L2 has to.
"""
import json
import subprocess
import sys
import unittest

BENCH = sys.argv.pop(1)


class Limits(unittest.TestCase):
    def test_launches_and_bytes(self):
        done = subprocess.run([BENCH, "step", "--backend", "sim", "--layers", "2-3", "--contexts", "4K", "--json"],
                              stdout=subprocess.PIPE, check=True, timeout=900)
        records = json.loads(done.stdout)["records"]
        self.assertEqual(len(records), 6)
        for record in records:
            cost = record["all"]
            with self.subTest(record["case"]):
                self.assertGreater(cost["launches"], 4)
                self.assertLessEqual(cost["launches"], 16 if record["layer"] == 2 else 8)
                self.assertGreater(cost["distinct_to_floor"], 0.98)
                self.assertLessEqual(cost["distinct_to_floor"], 1.05)
                self.assertLessEqual(cost["requested_to_floor"], 1.6)
                self.assertEqual(record["captured"]["graph_launches"], 1)
                self.assertEqual(record["captured"]["synchronisations"], 0)
                self.assertLessEqual(record["captured_prep"]["uploads"], 1)
                self.assertLess(record["captured_prep"]["uploaded_bytes"], 4096)


if __name__ == "__main__":
    unittest.main()
