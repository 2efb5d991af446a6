#!/usr/bin/env python3
"""The command line of ds41-inspect: exit statuses, help, and outputs that cannot be written."""
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from inspect_case import INSPECT, InspectTest, main


class CommandLineTest(InspectTest):
    def test_help_and_version(self):
        help_text = self.run_tool("--help")
        self.assertEqual((help_text.returncode, help_text.stderr), (0, b""))
        for option in ("--context", "--batch", "--prefill", "--layers", "--expand-fp8", "--map", "--backend", "--json"):
            self.assertIn(f"\n  {option} ", help_text.stdout.decode())
        self.assertLessEqual(max(map(len, help_text.stdout.decode().splitlines())), 120)
        self.assertEqual(self.run_tool("-h").stdout, help_text.stdout)
        version = self.run_tool("--version")
        self.assertRegex(version.stdout.decode(), r"\Ads41-inspect \d+\.\d+\.\d+, libds41 \d+\.\d+\.\d+\n\Z")

    def test_wrong_options(self):
        path = str(self.release().save(self.folder / "release"))
        for arguments, word in (
            ((), "no path"),
            ((path, path), "two paths"),
            ((path, "--nothing"), "no option --nothing"),
            ((path, "--nothing\x1b[2J"), "no option --nothing"),
            ((path, "--json=yes"), "--json takes no value"),
            ((path, "--context"), "--context needs a value"),
            ((path, "--context", "0"), "--context is '0', need a number from 1"),
            ((path, "--context", "65"), "--context is 65, need a number from 1 to 64"),
            ((path, "--batch", "many"), "--batch is 'many'"),
            ((path, "--batch=1073741825"), "to 1073741824"),
            ((path, "--prefill", "65"), "--prefill is 65, need a number from 1 to 64"),
            ((path, "--layers", "5"), "5, need a number from 0 to 4"),
            ((path, "--layers", "2-1"), "--layers is '2-1'"),
            ((path, "--backend", "none such"), "'none such', need one that runs here of: auto, "),
            ((path, "--backend="), "--backend"),
        ):
            with self.subTest(arguments=arguments[1:]):
                self.check_refused(*arguments, word=word)
                self.check_refused("--json", *arguments, word=word)

    def test_a_path_after_two_dashes(self):
        self.assertEqual(self.run_tool("--", self.release().save(self.folder / "release")).returncode, 0)

    @unittest.skipUnless(pathlib.Path("/dev/full").exists(), "needs /dev/full")
    def test_an_output_that_is_full(self):
        path = self.release().save(self.folder / "release")
        for option in ("--json", "--map", "--help"):
            with open("/dev/full", "wb") as full:
                result = subprocess.run([*INSPECT, option, path], stdout=full, stderr=subprocess.PIPE, check=False)
            self.assertEqual(result.returncode, 2, option)
            self.assertIn(b"cannot be written", result.stderr)


main()
