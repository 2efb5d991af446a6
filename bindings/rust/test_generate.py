#!/usr/bin/env python3
"""Tests of generate.py: what it makes of declarations, that nothing is left out silently, that stale files are found.

Each test changes a copy of the header and runs the program on it. Needs what the program needs: SWIG and a C compiler.
"""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
GENERATED = [Path("ds41-sys/src/generated.rs"), Path("ds41-sys/tests/layout/table.rs")]
END = "#ifdef __cplusplus\n}\n#endif"


class GenerateTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        shutil.copytree(ROOT / "include", self.root / "include")
        shutil.copytree(ROOT / "bindings" / "swig", self.root / "bindings" / "swig")
        self.rust = self.root / "bindings" / "rust"
        for name in [Path("generate.py"), *GENERATED]:
            (self.rust / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(HERE / name, self.rust / name)
        self.header = self.root / "include" / "ds41" / "ds41.h"

    def change(self, old, new):
        text = self.header.read_text()
        self.assertIn(old, text)
        self.header.write_text(text.replace(old, new, 1))

    def add(self, declaration):
        before, _, after = self.header.read_text().rpartition(END)
        self.header.write_text(f"{before}{declaration}\n\n{END}{after}")

    def run_it(self, *arguments):
        command = [sys.executable, str(self.rust / "generate.py"), *arguments]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def generated(self):
        result = self.run_it()
        self.assertEqual(result.returncode, 0, result.stderr)
        return (self.rust / GENERATED[0]).read_text()

    def refused(self, declaration, words):
        self.add(declaration)
        result = self.run_it()
        self.assertNotEqual(result.returncode, 0, f"{declaration} is accepted")
        self.assertIn("does not understand", result.stderr)
        self.assertIn(words, result.stderr)

    def test_what_is_checked_in_is_fresh(self):
        result = self.run_it("--check")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("as checked in", result.stdout)

    def test_a_header_change_is_found(self):
        self.change("DS41_API const char *ds41_version(void);", "DS41_API const char *ds41_revision(void);")
        result = self.run_it("--check")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("-    pub fn ds41_version() -> *const c_char;", result.stdout)
        self.assertIn("+    pub fn ds41_revision() -> *const c_char;", result.stdout)
        self.assertIn("run bindings/rust/generate.py", result.stderr)

    def test_a_changed_file_is_found(self):
        for name in GENERATED:
            with self.subTest(name):
                path = self.rust / name
                text = path.read_text()
                path.write_text(text + "// more\n")
                result = self.run_it("--check")
                self.assertNotEqual(result.returncode, 0)
                self.assertIn("-// more", result.stdout)
                path.write_text(text)

    def test_a_missing_file_is_found(self):
        (self.rust / GENERATED[1]).unlink()
        self.assertNotEqual(self.run_it("--check").returncode, 0)

    def test_a_function(self):
        self.add(
            "/**\n * Trim it to [n] of ds41_seq.\n *\n * @param n  Tokens,\n *           or none.\n"
            " * @retval DS41_STATUS_OK  Done.\n * Any thread.\n */\n"
            "DS41_API ds41_status ds41_seq_trim(const ds41_seq *const *type, uint8_t n);"
        )
        expected = (
            "    /// Trim it to \\[n\\] of [`ds41_seq`].\n    ///\n    /// - `n`: Tokens, or none.\n"
            "    /// - [`DS41_STATUS_OK`]: Done.\n    ///\n    /// Any thread.\n"
            "    pub fn ds41_seq_trim(r#type: *const *const ds41_seq, n: u8) -> ds41_status;\n"
        )
        self.assertIn(expected, self.generated())
        self.assertIn("ds41_seq_trim as *const ()", (self.rust / GENERATED[1]).read_text())

    def test_a_struct(self):
        self.add(
            "typedef struct ds41_more {\n    int8_t first; /**< One. */\n    double second[3];\n"
            "    const char *const *third;\n} ds41_more;"
        )
        text = self.generated()
        self.assertIn(
            "pub struct ds41_more {\n    /// One.\n    pub first: i8,\n    pub second: [f64; 3],\n"
            "    pub third: *const *const c_char,\n}",
            text,
        )
        self.assertIn("assert!(size_of::<ds41_more>() == 40 && align_of::<ds41_more>() == 8);", text)
        self.assertIn("assert!(offset_of!(ds41_more, second) == 8);", text)

    def test_an_enum_an_opaque_struct_and_a_callback(self):
        self.add(
            "typedef enum ds41_kind {\n    DS41_KIND_A = -1, /**< First. */\n    DS41_KIND_B = 7\n} ds41_kind;\n"
            "typedef struct ds41_graph ds41_graph;\n"
            "typedef int32_t (*ds41_graph_fn)(ds41_graph *graph, ds41_kind kind, void *user);\n"
            "#define DS41_GRAPH_MASK 0x10u\n"
        )
        text = self.generated()
        self.assertIn("/// First.\npub const DS41_KIND_A: ds41_kind = ds41_kind(-1);", text)
        self.assertIn("pub struct ds41_graph {\n    _data: [u8; 0],", text)
        self.assertIn(
            'pub type ds41_graph_fn = Option<unsafe extern "C" fn(graph: *mut ds41_graph, kind: ds41_kind, '
            "user: *mut c_void) -> i32>;",
            text,
        )
        self.assertIn("pub const DS41_GRAPH_MASK: u32 = 0x10;", text)

    def test_a_macro_that_is_no_number(self):
        self.refused('#define DS41_GREETING "hello"', "DS41_GREETING")

    def test_a_macro_that_swig_drops(self):
        self.refused("#define DS41_NOWHERE ((void *)0)", "DS41_NOWHERE")
        self.refused("#define DS41_TWICE(x) (2 * (x))", "DS41_TWICE")

    def test_a_union(self):
        self.refused("typedef union ds41_either {\n    int32_t a;\n    float b;\n} ds41_either;", "ds41_either")

    def test_a_bit_field(self):
        self.refused("typedef struct ds41_bits {\n    uint32_t a : 3;\n} ds41_bits;", "ds41_bits")

    def test_an_enumerator_without_a_number(self):
        self.refused("typedef enum ds41_kind {\n    DS41_KIND_A = 1,\n    DS41_KIND_B\n} ds41_kind;", "DS41_KIND_B")

    def test_variable_arguments(self):
        self.refused("DS41_API void ds41_log(const char *format, ...);", "ds41_log")

    def test_a_handle_by_value(self):
        self.refused("DS41_API void ds41_take(ds41_seq seq);", "ds41_seq")

    def test_an_unknown_type(self):
        self.refused("DS41_API void ds41_wait(long duration);", "long")

    def test_a_parameter_without_a_name(self):
        self.refused("DS41_API void ds41_wait(int32_t);", "ds41_wait")

    def test_a_type_of_another_name(self):
        self.refused("typedef int32_t ds41_number;", "ds41_number")

    def test_a_variable(self):
        self.refused("extern int32_t ds41_level;", "ds41_level")

    def test_what_swig_does_not_see(self):
        self.refused("#ifdef DS41_EXPERIMENTAL\nDS41_API void ds41_try(void);\n#endif", "ds41_try")

    def test_a_doc_tag(self):
        self.refused("/** @deprecated */\nDS41_API void ds41_old(void);", "@deprecated")


if __name__ == "__main__":
    unittest.main()
