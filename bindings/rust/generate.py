#!/usr/bin/env python3
"""Generate ds41-sys, the raw Rust layer, from the tree that `swig -xml` gives for bindings/swig/ds41.i.

SWIG has no target for Rust, so the tree says what there is: functions, structs, enums, constants, callbacks. A C
compiler says how structs lie in memory, the header's own comments become the documentation. What the header declares
and this program does not understand is an error: nothing is left out silently.

usage: generate.py          write ds41-sys/src/generated.rs and ds41-sys/tests/layout/table.rs
       generate.py --check  compare them with a fresh generation; print the difference and fail where there is one

Environment: SWIG and CC name the programs (default: swig, cc).
"""

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import xml.etree.ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
INTERFACE = ROOT / "bindings" / "swig" / "ds41.i"
INCLUDE = ROOT / "include"
HEADER = INCLUDE / "ds41" / "ds41.h"

NOT_FOR_CALLERS = {"DS41_DS41_H", "DS41_API"}  # the include guard, and where symbols live
BASE_TYPES = {
    "char": "c_char",
    "double": "f64",
    "float": "f32",
    "int": "c_int",
    "int8_t": "i8",
    "int16_t": "i16",
    "int32_t": "i32",
    "int64_t": "i64",
    "size_t": "usize",
    "uint8_t": "u8",
    "uint16_t": "u16",
    "uint32_t": "u32",
    "uint64_t": "u64",
}
RUST_KEYWORDS = {
    "as", "async", "await", "box", "break", "const", "continue", "crate", "do", "dyn", "else", "enum", "extern",
    "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "macro", "match", "mod", "move", "mut",
    "override", "priv", "pub", "ref", "return", "self", "static", "struct", "super", "trait", "try", "type",
    "typeof", "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
}  # fmt: skip


class NotUnderstood(Exception):
    """The header holds something that has no translation here."""


def rust_name(name):
    return f"r#{name}" if name in RUST_KEYWORDS else name


# ---- The tree -------------------------------------------------------------------------------------------------------


def attributes(node):
    found = node.find("attributelist")
    return {} if found is None else {a.get("name"): a.get("value") for a in found.findall("attribute")}


def parameters(node):
    return [attributes(parm) for parm in node.findall("attributelist/parmlist/parm")]


def read_tree():
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "tree.xml"
        command = [os.environ.get("SWIG", "swig"), "-xml", f"-I{INCLUDE}", "-o", str(output), str(INTERFACE)]
        subprocess.run(command, check=True)
        tree = xml.etree.ElementTree.parse(output)
    for include in tree.iter("include"):
        if attributes(include).get("name", "").endswith("ds41/ds41.h"):
            return include
    raise NotUnderstood(f"{INTERFACE} does not include ds41/ds41.h")


class Api:
    """What the header declares, in its order."""

    def __init__(self, tree):
        self.constants = []  # (name, type, value)
        self.enums = []  # (name, [(item, number)])
        self.structs = []  # (name, [(member, type)])
        self.opaque = []  # name
        self.callbacks = []  # (name, result, [(parameter, type)])
        self.functions = []  # (name, result, [(parameter, type)])
        for node in tree:
            if node.tag == "attributelist":
                continue
            read = getattr(self, f"read_{node.tag}", None)
            if read is None:
                raise NotUnderstood(f"a node of type {node.tag}: {attributes(node)}")
            read(node, attributes(node))
        self.check_types()

    def read_constant(self, node, of):
        types = {"int": "i32", "unsigned int": "u32"}
        value = re.fullmatch(r"\(?(-?(?:0x[0-9A-Fa-f]+|\d+))[uU]?\)?", of["value"])
        if of["type"] not in types or not value:
            raise NotUnderstood(f"the constant {of['name']} of type {of['type']} with the value {of['value']}")
        self.constants.append((of["name"], types[of["type"]], value.group(1)))

    def read_enum(self, node, of):
        items = []
        for item in node.findall("enumitem"):
            given = attributes(item)
            if not re.fullmatch(r"-?\d+", given.get("enumvalue", "")):
                raise NotUnderstood(f"{given['name']} of {of['name']} without a number of its own")
            items.append((given["name"], int(given["enumvalue"])))
        self.enums.append((of["name"], items))

    def read_class(self, node, of):
        if of["kind"] != "struct":
            raise NotUnderstood(f"{of['name']}, which is a {of['kind']}")
        members = []
        for child in node:
            if child.tag == "attributelist":
                continue
            member = attributes(child)
            if child.tag != "cdecl" or member.get("kind") != "variable" or "bitfield" in member:
                raise NotUnderstood(f"a {child.tag} in {of['name']}: {member}")
            members.append((member["name"], member["decl"] + member["type"]))
        self.structs.append((of["name"], members))

    def read_cdecl(self, node, of):
        name, kind, decl = of["name"], of["kind"], of.get("decl", "")
        if kind == "function":
            self.functions.append((name, *self.signature(node, of, "f(")))
        elif kind == "typedef" and decl.startswith("p.f("):
            self.callbacks.append((name, *self.signature(node, of, "p.f(")))
        elif kind == "typedef" and of["type"] == f"struct {name}" and not decl:
            if name not in (struct for struct, _ in self.structs):
                self.opaque.append(name)
        elif not (kind == "typedef" and of["type"] == f"enum {name}" and not decl):
            raise NotUnderstood(f"the {kind} {name}: {decl}{of['type']}")

    @staticmethod
    def signature(node, of, start):
        depth, end = 1, len(start)
        while depth:
            depth += {"(": 1, ")": -1}.get(of["decl"][end], 0)
            end += 1
        result = of["decl"][end + 1 :] + of["type"]
        arguments = [(parm.get("name"), parm["type"]) for parm in parameters(node) if parm["type"] != "void"]
        for argument, of_type in arguments:
            if not argument:
                raise NotUnderstood(f"a parameter of {of['name']} without a name: {of_type}")
        return result, arguments

    def check_types(self):
        self.named = {name for name, *_ in self.enums + self.structs + self.callbacks} | set(self.opaque)
        for name, members in self.structs:
            for member, of_type in members:
                self.rust_type(of_type, f"{name}.{member}")
        for name, result, arguments in self.functions + self.callbacks:
            for argument, of_type in arguments:
                self.rust_type(of_type, f"{argument} of {name}")
            if result != "void":
                self.rust_type(result, f"the result of {name}")

    def rust_type(self, text, place, by_value=True):
        """Rust's spelling of SWIG's: p. is a pointer to, q(const). qualifies what follows, a(N). is an array of."""
        if text.startswith("p."):
            target = text[2:]
            kind, target = ("const", target[9:]) if target.startswith("q(const).") else ("mut", target)
            return f"*{kind} " + ("c_void" if target == "void" else self.rust_type(target, place, by_value=False))
        array = re.match(r"a\((\d+)\)\.", text)
        if array:
            return f"[{self.rust_type(text[array.end():], place)}; {array.group(1)}]"
        text = re.sub(r"^(enum|struct) ", "", text)
        if text in BASE_TYPES:
            return BASE_TYPES[text]
        if text in self.named:
            if by_value and text in self.opaque:
                raise NotUnderstood(f"{place}, which is {text} by value")
            return text
        raise NotUnderstood(f"the type {text} of {place}")

    def names(self):
        """Everything that the header declares, as check_against_header() finds it in the text."""
        yield from (name for name, *_ in self.constants + self.callbacks + self.functions)
        yield from self.opaque
        for name, members in self.enums + self.structs:
            yield name
            yield from (f"{name}.{member}" for member, _ in members)


# ---- The header's text ----------------------------------------------------------------------------------------------


class Text:
    """Names and doc comments, found in the header's text: SWIG drops comments, and macros that it cannot evaluate."""

    def __init__(self, text):
        self.docs = {}
        self.names = set()
        text = re.sub(r"/\*(?!\*).*?\*/", "", text, flags=re.S)  # comments for readers of the header only
        text = re.sub(r"^\s*//.*$", "", text, flags=re.M)
        doc = r"(?:/\*\*(?P<doc>(?:(?!\*/).)*)\*/\s*)?"
        declaration = re.compile(
            doc + r"(?:^[ \t]*#[ \t]*define[ \t]+(?P<macro>DS41_\w+)"
            r"|^typedef[ \t]+(?P<kind>struct|enum)[ \t]+(?P<type>\w+)[ \t]*(?P<body>\{.*?\})?[ \t]*\w+[ \t]*;"
            r"|^typedef[^;{]*\(\*(?P<callback>\w+)\)[^;]*;"
            r"|^DS41_API[^;(]*?(?P<function>\w+)\([^;]*;"
            r"|^typedef[^;]*;)",
            re.S | re.M,
        )
        for found in declaration.finditer(text):
            name = found["macro"] or found["type"] or found["callback"] or found["function"]
            if not name:
                raise NotUnderstood(f"the declaration {found.group(0)}")
            if name in NOT_FOR_CALLERS:
                continue
            self.add(name, found["doc"])
            if found["body"]:
                self.read_body(name, found["kind"], found["body"])

    def add(self, name, doc):
        self.names.add(name)
        if doc:
            self.docs[name] = doc

    def read_body(self, parent, kind, body):
        before = r"(?:/\*\*(?!<)(?P<before>(?:(?!\*/).)*)\*/\s*)?"
        members = {
            "struct": r"\w[\w \t*]*?(?P<member>\w+)(?:\[\w+\])?[ \t]*;",
            "enum": r"(?P<member>\w+)[ \t]*=[^,}/]*,?",
        }
        after = r"[ \t]*(?:/\*\*<(?P<after>(?:(?!\*/).)*)\*/)?"
        for found in re.compile(before + members[kind] + after, re.S).finditer(body[1 : body.rindex("}")]):
            self.add(f"{parent}.{found['member']}", found["before"] or found["after"])

    def check(self, api):
        in_tree, in_text = set(api.names()), self.names
        if in_tree != in_text:
            raise NotUnderstood(
                "header and tree differ: "
                f"only in the header: {sorted(in_text - in_tree)}, only in the tree: {sorted(in_tree - in_text)}"
            )


class Docs:
    """Doc comments as Markdown, with links to what they name."""

    def __init__(self, text, api):
        self.text = text
        items = {item for _, members in api.enums for item, _ in members}
        self.members = {name: {member for member, _ in members} for name, members in api.structs}
        self.known = {name for name in api.names() if "." not in name} | items

    def lines(self, name, indent):
        doc = self.text.docs.get(name)
        if doc is None:
            return []
        result = []
        for paragraph in self.paragraphs(doc):
            if result and not (paragraph.startswith("- ") and result[-1].startswith(("- ", "  "))):
                result.append("")
            hanging = "  " if paragraph.startswith("- ") else ""
            result += textwrap.wrap(
                paragraph, 110 - indent, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
            )
        return [(" " * indent + "/// " + line).rstrip() for line in result]

    def paragraphs(self, doc):
        plain = re.sub(r"^[ \t]*\*?[ \t]?", "", doc.strip(), flags=re.M)
        plain = re.sub(r"\s+(?=@\w)", "\n\n", plain)
        # A line that is not indented does not belong to the tag before it.
        plain = re.sub(r"^(@.*(?:\n[ \t].*)*)\n(?=\S)", r"\1\n\n", plain, flags=re.M)
        for paragraph in re.split(r"\n[ \t]*\n", plain):
            paragraph = paragraph.strip()
            tag = re.match(r"@(\w+)\s*", paragraph)
            rest = paragraph[tag.end() :] if tag else paragraph
            head, _, tail = rest.partition("  ")
            if not tag:
                yield self.markdown(rest)
            elif tag[1] == "param":
                name, _, what = rest.partition(" ")
                yield f"- `{name}`: {self.markdown(what)}"
            elif tag[1] == "retval" and tail:
                yield f"- {self.markdown(head)}: {self.markdown(tail)}"
            elif tag[1] == "retval":
                yield f"- {self.markdown(rest)}"
            elif tag[1] == "return":
                yield f"Returns: {self.markdown(rest)}"
            else:
                raise NotUnderstood(f"the tag @{tag[1]}")

    def markdown(self, text):
        text = re.sub(r"\s+", " ", text.strip())
        parts = text.split("`")
        for i in range(0, len(parts), 2):  # the odd ones are code
            escaped = re.sub(r"([\[\]<*])", r"\\\1", parts[i])
            parts[i] = re.sub(r"\b(ds41_\w+|DS41_[A-Z0-9_]+)\b(?:\.(\w+))?(\(\))?", self.link, escaped)
        return "`".join(parts)

    def link(self, found):
        name, member, call = found.groups()
        if name not in self.known:
            return found.group(0)
        if member and member in self.members.get(name, ()):
            return f"[`{name}::{member}`]"
        return f"[`{name}`]" + (f".{member}" if member else "")


# ---- Layout ---------------------------------------------------------------------------------------------------------


def measure(api):
    """Size, alignment and offsets of each struct, from a C program; it does not compile when a constant differs."""
    lines = ["#include <ds41/ds41.h>", "#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
    for name, _, value in api.constants:
        lines.append(f'_Static_assert({name} == {value}, "{name}");')
    for name, items in api.enums:
        lines.append(f'_Static_assert(sizeof({name}) == sizeof(int), "{name}");')
        lines += [f'_Static_assert({item} == {number}, "{item}");' for item, number in items]
    for name, members in api.structs:
        lines.append(f'printf("%zu %zu\\n", sizeof({name}), _Alignof({name}));')
        lines += [f'printf("%zu\\n", offsetof({name}, {member}));' for member, _ in members]
    lines.append("return sizeof(void *) == 8 ? 0 : 1; }")
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "layout.c", Path(folder) / "layout"
        source.write_text("\n".join(lines) + "\n")
        command = [os.environ.get("CC", "cc"), "-std=c11", f"-I{INCLUDE}", str(source), "-o", str(program)]
        subprocess.run(command, check=True)
        numbers = subprocess.run([str(program)], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    numbers = iter(int(number) for number in numbers)
    return {
        name: (next(numbers), next(numbers), {member: next(numbers) for member, _ in members})
        for name, members in api.structs
    }


# ---- Rust -----------------------------------------------------------------------------------------------------------

NOTICE = "// Generated by bindings/rust/generate.py from bindings/swig/ds41.i; not edited by hand.\n"


def bindings(api, docs, layout):
    out = [NOTICE + "use super::*;", ""]

    def arguments(of):
        return ", ".join(f"{rust_name(name)}: {api.rust_type(of_type, name)}" for name, of_type in of)

    def result(of_type):
        return "" if of_type == "void" else f" -> {api.rust_type(of_type, 'result')}"

    for name, of_type, value in api.constants:
        out += docs.lines(name, 0) + [f"pub const {name}: {of_type} = {value};"]
    for name, items in api.enums:
        out += ["", *docs.lines(name, 0)]
        out += ["#[repr(transparent)]", "#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]"]
        out += [f"pub struct {name}(pub c_int);", ""]
        for item, number in items:
            out += docs.lines(f"{name}.{item}", 0) + [f"pub const {item}: {name} = {name}({number});"]
        out += ["", f"impl {name} {{", "    /// Each constant of this type, with its name."]
        out += ["    pub const ALL: &'static [(Self, &'static str)] = &["]
        out += [f'        ({item}, "{item}"),' for item, _ in items] + ["    ];", "}"]
    for name in api.opaque:
        out += ["", *docs.lines(name, 0), "#[repr(C)]", f"pub struct {name} {{", "    _data: [u8; 0],"]
        out += ["    _marker: PhantomData<(*mut u8, PhantomPinned)>,", "}"]
    for name, returned, of in api.callbacks:
        out += ["", *docs.lines(name, 0)]
        out.append(f'pub type {name} = Option<unsafe extern "C" fn({arguments(of)}){result(returned)}>;')
    for name, members in api.structs:
        out += ["", *docs.lines(name, 0), "#[repr(C)]", "#[derive(Clone, Copy, Debug)]", f"pub struct {name} {{"]
        for member, of_type in members:
            out += docs.lines(f"{name}.{member}", 4)
            out.append(f"    pub {rust_name(member)}: {api.rust_type(of_type, member)},")
        size, alignment, offsets = layout[name]
        out += ["}", "", '#[cfg(target_pointer_width = "64")]', "const _: () = {"]
        out.append(f"    assert!(size_of::<{name}>() == {size} && align_of::<{name}>() == {alignment});")
        out += [f"    assert!(offset_of!({name}, {rust_name(member)}) == {at});" for member, at in offsets.items()]
        out.append("};")
    out += ["", 'extern "C" {']
    for index, (name, returned, of) in enumerate(api.functions):
        out += ([""] if index else []) + docs.lines(name, 4)
        out.append(f"    pub fn {name}({arguments(of)}){result(returned)};")
    out.append("}")
    return "\n".join(out) + "\n"


def layout_table(api):
    """For the test that asks the machine's own C compiler, on whatever target: what Rust believes, line by line."""
    out = [NOTICE, "pub fn layouts() -> Vec<Layout> {", "    vec!["]
    for name, members in api.structs:
        out += ["        Layout {", f'            name: "{name}",', f"            size: size_of::<{name}>(),"]
        out += [f"            align: align_of::<{name}>(),", "            offsets: vec!["]
        for member, _ in members:
            out.append(f'                ("{member}", offset_of!({name}, {rust_name(member)})),')
        out += ["            ],", "        },"]
    out += ["    ]", "}", "", "pub fn numbers() -> Vec<(&'static str, i64)> {", "    let mut numbers = vec!["]
    out += [f'        ("{name}", i64::from({name})),' for name, *_ in api.constants] + ["    ];"]
    for name, _ in api.enums:
        out.append(f"    numbers.extend({name}::ALL.iter().map(|(value, name)| (*name, i64::from(value.0))));")
    out += ["    numbers", "}", "", "pub const ENUMS: &[&str] = &["]
    out += [f'    "{name}",' for name, _ in api.enums] + ["];", ""]
    out += ["/// Taking the addresses makes the linker look for each function in the library."]
    out += ["pub fn addresses() -> Vec<*const ()> {", "    vec!["]
    out += [f"        {name} as *const ()," for name, *_ in api.functions] + ["    ]", "}"]
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with what is there and change nothing")
    check = parser.parse_args().check
    api = Api(read_tree())
    text = Text(HEADER.read_text())
    text.check(api)
    outputs = {
        HERE / "ds41-sys" / "src" / "generated.rs": bindings(api, Docs(text, api), measure(api)),
        HERE / "ds41-sys" / "tests" / "layout" / "table.rs": layout_table(api),
    }
    stale = False
    for path, fresh in outputs.items():
        name = str(path.relative_to(ROOT))
        if not check:
            path.write_text(fresh)
            continue
        old = path.read_text() if path.exists() else ""
        difference = difflib.unified_diff(
            old.splitlines(True), fresh.splitlines(True), f"{name} (checked in)", f"{name} (fresh)"
        )
        for line in difference:
            stale = True
            sys.stdout.write(line)
    if stale:
        sys.exit("the checked-in files are not those of the header: run bindings/rust/generate.py")
    print(f"{len(api.functions)} functions, {len(api.structs)} structs, {len(api.enums)} enums: ", end="")
    print("as checked in" if check else "written")


if __name__ == "__main__":
    try:
        main()
    except NotUnderstood as error:
        sys.exit(f"generate.py does not understand {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"generate.py: {error}")
