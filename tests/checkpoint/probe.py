"""What the Python tests of checkpoints share: the golden cases, a folder of their own, and the probe's answers.

Usage of each test: TEST.py PROBE FIXTURES SUPPORT, where PROBE is checkpoint_probe and SUPPORT the folder of
make_checkpoints.py. A probe that does not end with 0 fails the test: it crashed, leaked, or a sanitizer spoke.
"""
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

# A cross build names the emulator.
PROBE = [*shlex.split(os.environ.get("MESON_EXE_WRAPPER", "")), sys.argv[1]]
FIXTURES, SUPPORT = pathlib.Path(sys.argv[2]), sys.argv[3]
sys.dont_write_bytecode = True
sys.path.insert(0, SUPPORT)
import make_checkpoints

SECONDS = 240  # Of a load; an answer that takes longer is none.


class CheckpointTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def case(self, name="a_golden_stable"):
        return make_checkpoints.find_case(FIXTURES, name)

    def probe(self, path, *options):
        """The probe's answer, with what holds for every load checked."""
        run = subprocess.run([*PROBE, str(path), *map(str, options)], capture_output=True, timeout=SECONDS, check=False)
        self.assertEqual(run.returncode, 0, run.stderr.decode(errors="replace")[-4000:])
        answer = json.loads(run.stdout)
        if answer["status"] == "DS41_STATUS_OK":
            self.assertEqual(answer["checkpoint"]["status"], "DS41_STATUS_OK")
            self.assertEqual(answer["memory"], answer["checkpoint"]["memory"].get("values"),
                             answer["checkpoint"]["memory"])  # fmt: skip
        else:
            self.assertTrue(answer["handle_untouched"])
            self.assertTrue(answer["message"].startswith("ds41_model_load: "), answer["message"])
        return answer

    def check_loads(self, path, *options):
        answer = self.probe(path, *options)
        self.assertEqual(answer["status"], "DS41_STATUS_OK", answer["message"])
        self.assertNotIn("problems", answer["checkpoint"])
        self.assertTrue(answer["outputs"])
        return answer

    def check_same(self, paths, *options):
        """All paths give the same outputs; returns the first answer."""
        first, *others = [self.check_loads(path, *options) for path in paths]
        for path, other in zip(paths[1:], others):
            self.assertEqual(other["outputs"], first["outputs"], f"{path} and {paths[0]}")
            self.assertEqual(other["config"], first["config"], f"{path} and {paths[0]}")
        return first

    def check_refused(self, path, statuses, *words, options=()):
        """A load answers with one of `statuses` (names without DS41_STATUS_, with | between them) and a sentence that
        holds every word; alternatives have | between them too."""
        answer = self.probe(path, *options)
        self.assertIn(answer["status"].replace("DS41_STATUS_", ""), statuses.split("|"), answer["message"])
        for word in words:
            self.assertTrue(any(option in answer["message"] for option in word.split("|")),
                            f"no {word!r} in: {answer['message']}")  # fmt: skip
        return answer

    def check_problem(self, path, statuses, *words, options=()):
        """As check_refused, of single tensors: the checkpoint opens, lists the problem, and the log has it too."""
        answer = self.check_refused(path, statuses, *words, options=options)
        opened = answer["checkpoint"]
        self.assertEqual(opened["status"], "DS41_STATUS_OK", opened.get("message"))
        for lines in (opened.get("problems", []), [line for _, line in answer["log"]]):
            text = "\n".join(lines)
            for word in words:
                self.assertTrue(any(option in text for option in word.split("|")), f"no {word!r} in: {lines}")
        return answer


def main():
    unittest.main(argv=sys.argv[:1])
