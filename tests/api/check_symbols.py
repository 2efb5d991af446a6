#!/usr/bin/env python3
"""Checks on the built library that no C++ test can make.

  exports  the shared library exports exactly exported-symbols.txt, and that list is exactly what the header declares
  layout   abi_layout.c pins every member and every enumerator of the header
  inits    the library's own objects run no code when it is loaded
  needed   the shared library asks the loader for no CUDA (and, with --no-cxx-runtime, no C++) library

Each prints what is wrong, one line a finding, and exits 1 if there is any. Standard library only.
"""
import argparse
import pathlib
import re
import subprocess
import sys

# What compilers add for themselves: sanitizer constructors and crt's frame_dummy. Anything else is ours.
TOOL_INITS = re.compile(r"_sub_I_00099|asan|msan|tsan|ubsan|sancov|gcov|profile|frame_dummy|cxx_global_array_dtor")


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout


def without_comments(path):
    text = re.sub(r"/\*.*?\*/", " ", pathlib.Path(path).read_text(encoding="utf-8"), flags=re.S)
    return re.sub(r"//[^\n]*", " ", text)


def declared_functions(header):
    return set(re.findall(r"\bDS41_API\b[^;{}()#]*?\b(ds41_\w+)\s*\(", without_comments(header)))


def declared_members(header):
    text = without_comments(header)
    members = set()
    for body, name in re.findall(r"\btypedef struct \w+\s*\{(.*?)\}\s*(\w+)\s*;", text, flags=re.S):
        for line in filter(None, (part.strip() for part in body.split(";"))):
            members.add((name, re.search(r"(\w+)\s*(?:\[[^\]]*\])*$", line).group(1)))
    return members


def declared_enumerators(header):
    bodies = re.findall(r"\btypedef enum \w+\s*\{(.*?)\}", without_comments(header), flags=re.S)
    return {part.split("=")[0].strip() for body in bodies for part in body.split(",") if part.strip()}


def differences(left, right, left_name, right_name):
    def text(item):
        return item if isinstance(item, str) else ".".join(item)

    return [f"{text(item)}: in {left_name}, not in {right_name}" for item in sorted(left - right)] + [
        f"{text(item)}: in {right_name}, not in {left_name}" for item in sorted(right - left)
    ]


def check_exports(args):
    lines = pathlib.Path(args.list).read_text(encoding="utf-8").split()
    listed = set(lines)
    exported = set()
    for line in run(args.nm, "-D", "--defined-only", args.shared_library).splitlines():
        symbol = line.split()[-1].split("@")[0]
        # A symbol version's own name is an absolute symbol, not something to call.
        if line.split()[-2] != "A":
            exported.add(symbol)
    findings = differences(exported, listed, "the library", "exported-symbols.txt")
    findings += differences(declared_functions(args.header), listed, "ds41.h", "exported-symbols.txt")
    if lines != sorted(listed):
        findings.append("exported-symbols.txt: not sorted, or a name twice")
    return findings


def check_layout(args):
    text = without_comments(args.layout)
    members = set(re.findall(r"^MEMBER\((\w+), (\w+),", text, flags=re.M))
    values = set(re.findall(r"^VALUE\((DS41_\w+),", text, flags=re.M))
    findings = differences(declared_members(args.header), members, "ds41.h", "abi_layout.c")
    missing = declared_enumerators(args.header) - values
    return findings + [f"{name}: in ds41.h, not in abi_layout.c" for name in sorted(missing)]


def objects_of(paths):
    for path in map(pathlib.Path, paths):
        if path.is_dir():
            yield from sorted(path.rglob("*.o"))
        else:
            yield path


def check_inits(args):
    findings = []
    objects = list(objects_of(args.objects))
    n_symbols = 0
    for path in objects:
        # Of an archive both tools name the member first, in a line of its own.
        member = path.name
        for line in run(args.nm, "--defined-only", str(path)).splitlines():
            if line.endswith(":"):
                member = line[:-1]
            symbol = line.split()[-1] if line.split() else ""
            n_symbols += 1
            if re.match(r"_GLOBAL__(sub_)?[ID]_|__cxx_global_var_init", symbol) and not TOOL_INITS.search(symbol):
                findings.append(f"{member}: {symbol} runs when the library is loaded")
        for line in run(args.readelf, "--sections", "--wide", str(path)).splitlines():
            if line.startswith("File:"):
                member = line.split()[-1]
            section = re.search(r"\s\.(?:(?:pre)?init_array|fini_array|ctors|dtors)\b\S*", line)
            # Sanitizers register their constructors in sections of their own, so only symbols tell there.
            if section and not line.lstrip().startswith("File:") and not args.sanitized:
                findings.append(f"{member}: section {section.group().strip()}")
    if n_symbols == 0:
        findings.append("no objects given")
    return findings


def check_needed(args):
    dynamic = run(args.readelf, "--dynamic", "--wide", args.shared_library)
    needed = re.findall(r"\(NEEDED\)[^\[]*\[([^\]]+)\]", dynamic)
    forbidden = [r"libcuda", r"libcudart", r"libcublas", r"libnv"]
    if args.no_cxx_runtime:
        forbidden += [r"libstdc\+\+", r"libc\+\+", r"libgcc_s"]
    return [f"{args.shared_library} needs {name}" for name in needed if any(re.match(f, name) for f in forbidden)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--readelf", default="readelf")
    commands = parser.add_subparsers(dest="command", required=True)

    exports = commands.add_parser("exports")
    exports.add_argument("--library", dest="shared_library", required=True)
    exports.add_argument("--list", required=True)
    exports.add_argument("--header", required=True)
    exports.set_defaults(check=check_exports)

    layout = commands.add_parser("layout")
    layout.add_argument("--layout", required=True)
    layout.add_argument("--header", required=True)
    layout.set_defaults(check=check_layout)

    inits = commands.add_parser("inits")
    inits.add_argument("--sanitized", action="store_true", help="built with sanitizers: look at symbols only")
    inits.add_argument("objects", nargs="+", help="objects, archives, or folders that hold objects")
    inits.set_defaults(check=check_inits)

    needed = commands.add_parser("needed")
    needed.add_argument("--library", dest="shared_library", required=True)
    needed.add_argument("--no-cxx-runtime", action="store_true")
    needed.set_defaults(check=check_needed)

    args = parser.parse_args()
    findings = args.check(args)
    for finding in findings:
        print(finding, file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
