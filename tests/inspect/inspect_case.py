"""What the tests of ds41-inspect share: the golden cases, a folder of their own, and the tool's answers.

Usage of each test: TEST.py INSPECT FIXTURES SUPPORT, where SUPPORT is the folder of make_checkpoints.py.
"""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

# A cross build names the emulator.
INSPECT = [*shlex.split(os.environ.get("MESON_EXE_WRAPPER", "")), sys.argv[1]]
FIXTURES, SUPPORT = pathlib.Path(sys.argv[2]), sys.argv[3]
sys.dont_write_bytecode = True
sys.path.insert(0, SUPPORT)
import make_checkpoints

MEMORY_ROWS = {"weights": "weights", "window": "window rows", "compressed": "compressed rows",
               "index_keys": "index keys", "group_state": "incomplete groups", "workspace": "workspace",
               "total": "total"}  # fmt: skip


def human(n):
    """Bytes as the tool shows them."""
    if n < 1000:
        return f"{n} B"
    value, units = n / 1000, ["kB", "MB", "GB", "TB", "PB", "EB"]
    while value >= 999.95:
        value /= 1000
        units.pop(0)
    return f"{value:.2f} {units[0]}" if value < 9.995 else f"{value:.1f} {units[0]}"


class InspectTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def case(self, name="e_fp8_weights"):
        return make_checkpoints.find_case(FIXTURES, name)

    def release(self, name="e_fp8_weights"):
        return make_checkpoints.make_release(self.case(name))

    def run_tool(self, *arguments):
        """The finished process; output and errors are bytes."""
        return subprocess.run([*INSPECT, *arguments], capture_output=True, timeout=120, check=False)

    def answer(self, status, path, *options):
        """Exit status and both reports: the JSON document, and the text, of which it is checked that they agree."""
        arguments = [str(option) for option in options]
        as_json = self.run_tool(*arguments, "--json", path)
        as_text = self.run_tool(*arguments, path)
        for result in (as_json, as_text):
            self.assertEqual(result.returncode, status, result.stdout[-3000:] + result.stderr)
            self.assertEqual(result.stderr, b"")
            self.check_harmless(result.stdout)
        document = json.loads(as_json.stdout)
        text = as_text.stdout.decode()
        self.check_agreement(document, text)
        return document, text

    def check_harmless(self, output):
        """Nothing in it acts on a terminal."""
        text = output.decode()
        self.assertEqual([c for c in text if c != "\n" and (ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 or ord(c) == 0x202E)], [])

    def check_agreement(self, document, text):
        self.assertEqual(document["tool"], "ds41-inspect")
        self.check_sums(document)
        lines = text.splitlines()
        self.assertTrue(lines[1].startswith(f"{document['format']}, {len(document['files'])} file"), lines[1])
        self.assertIn(human(sum(file["n_bytes"] for file in document["files"])), lines[1])
        if document["config"]:
            self.check_table(document, lines)
        self.check_memory(document["memory"], lines)
        self.assertIn(str(len(document["problems"]) or "none"), next(l for l in lines if l.startswith("Problems")))
        self.assertEqual(document["ok"], not document["problems"] and document["memory"] is not None)

    def check_sums(self, document):
        for key in ("n_bytes", "n_model_bytes"):
            self.assertEqual(sum(tensor[key] for tensor in document["tensors"]), document[key])
            self.assertEqual(sum(layer[key] for layer in document["layers"]), document[key])
        for layer in document["layers"]:
            own = [tensor for tensor in document["tensors"] if tensor["layer"] == layer["layer"]]
            self.assertEqual((len(own), sum(t["n_bytes"] for t in own)), (layer["n_tensors"], layer["n_bytes"]))
        for tensor in document["tensors"]:
            self.assertIn(tensor["file"], range(len(document["files"])))

    def check_table(self, document, lines):
        """Every layer stands in one row of the table, with its own figures."""
        layers = {layer["layer"]: layer for layer in document["layers"]}
        start = next(i for i, line in enumerate(lines) if line.startswith("layers "))
        seen = []
        for line in lines[start + 1 :]:
            numbers = re.match(r"(\d+)(?:-(\d+))? ", line)
            if not numbers:
                break
            first, last = int(numbers[1]), int(numbers[2] or numbers[1])
            for index in range(first, last + 1):
                layer = layers[index]
                self.assertIn(f" {layer['ratio']}  {layer['role']}  ", line)
                bytes_shown = re.search(r"  (\S+ \S+)  +(\S+ \S+)$", line)
                self.assertEqual(bytes_shown.groups(), (human(layer["n_bytes"]), human(layer["n_model_bytes"])), line)
                seen.append(index)
        self.assertEqual(seen, sorted(layers))
        self.assertRegex(line, rf"^total .*{human(document['n_bytes'])}  +{human(document['n_model_bytes'])}$")

    def check_memory(self, memory, lines):
        if memory is None:
            return
        self.assertEqual(sum(memory[key] for key in MEMORY_ROWS if key != "total"), memory["total"])
        for key, name in MEMORY_ROWS.items():
            line = next(line for line in lines if line.startswith(f"  {name} "))
            self.assertEqual(line.split("  ")[-1].strip(), human(memory[key]), line)

    def check_problem(self, status, path, *words, options=()):
        """One problem of those found holds all words."""
        document, text = self.answer(status, path, *options)
        found = [problem for problem in document["problems"] if all(word in problem for word in words)]
        self.assertTrue(found, document["problems"])
        for word in words:
            self.assertIn(word, text)
        return document

    def check_refused(self, *arguments, word):
        """Status 2, one sentence, and nothing that a program could take for an answer."""
        result = self.run_tool(*arguments)
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        self.assertEqual(result.stdout, b"")
        self.check_harmless(result.stderr)
        message = result.stderr.decode()
        self.assertTrue(message.startswith("ds41-inspect: "), message)
        self.assertEqual(message.count("\n"), 1, message)
        self.assertIn(word, message)


def main():
    unittest.main(argv=sys.argv[:1])
