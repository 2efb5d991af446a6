#!/usr/bin/env python3
"""Break the library in each way that mutations.py lists, one at a time, and see a test fail.

Usage: mutate.py BUILD_FOLDER [PATTERN]
       mutate.py --check

Copies the sources into BUILD_FOLDER, builds there, and for each mutation rebuilds and runs the unit, parity and api
suites. Prints one line per mutation; exits 1 when one survives or does not apply. --check only sees that each applies.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import time

from mutations import MUTATIONS

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ["meson.build", "meson_options.txt", "include", "lib", "kernels", "bindings", "examples", "tests", "README.md"]


def run(command, folder):
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def first_failure(build):
    """Name of a test that fails, or None. Cheapest suites first."""
    for suite in ("unit", "parity", "api"):
        result = run(["meson", "test", "--no-rebuild", "--suite", suite, "--maxfail", "1"], build)
        if result.returncode != 0:
            failed = re.search(r"\d+/\d+ \S+ (?:/ )?(.*?)\s+(?:FAIL|TIMEOUT|ERROR)", result.stdout)
            return failed.group(1).strip() if failed else suite
    return None


def check():
    stale = [f"{name}: the text occurs {n} times in lib/{file}" for name, file, old, _ in MUTATIONS
             if (n := (ROOT / "lib" / file).read_text().count(old)) != 1]
    sys.exit("\n".join(stale) if stale else 0)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--check":
        check()
    if sys.argv[1].startswith("-"):
        print(__doc__)
        sys.exit(0 if sys.argv[1] in ("--help", "-h") else 2)
    work = pathlib.Path(sys.argv[1]).resolve()
    chosen = [m for m in MUTATIONS if len(sys.argv) < 3 or re.search(sys.argv[2], m[0])]
    tree, build = work / "tree", work / "build"
    shutil.rmtree(work, ignore_errors=True)
    tree.mkdir(parents=True)
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name)
        elif source.exists():
            shutil.copy2(source, tree / name)
    # Optimised, but with assertions and poisoned memory.
    setup = run(["meson", "setup", str(build), "--buildtype=debugoptimized", "-Db_ndebug=false"], tree)
    if setup.returncode != 0 or run(["ninja"], build).returncode != 0:
        print(setup.stdout[-2000:])
        sys.exit("mutate: the sources do not build")
    clean = first_failure(build)
    if clean:
        sys.exit(f"mutate: '{clean}' fails without a mutation")

    survivors = 0
    for name, file, old, new in chosen:
        path = tree / "lib" / file
        original = path.read_text()
        if original.count(old) != 1:
            verdict, caught = f"DOES NOT APPLY: the text occurs {original.count(old)} times in {file}", False
        else:
            started = time.monotonic()
            path.write_text(original.replace(old, new))
            built = run(["ninja"], build)
            failure = first_failure(build) if built.returncode == 0 else None
            path.write_text(original)
            if built.returncode != 0:
                verdict, caught = "DOES NOT BUILD", False
            elif failure is None:
                verdict, caught = "SURVIVED", False
            else:
                verdict, caught = f"caught by {failure} ({time.monotonic() - started:.0f} s)", True
        survivors += not caught
        print(f"{name:55s} {verdict}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutations caught")
    sys.exit(survivors != 0)


if __name__ == "__main__":
    main()
