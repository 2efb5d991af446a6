#!/usr/bin/env python3
"""Checks the README against the files that it quotes: check_readme.py README.md EXAMPLE.c

Every ```c block is a contiguous part of the example, line for line, and there is at least one of five lines or more;
every relative link leads to a file. Prints one line a finding and exits 1 if there is any. Standard library only.
"""
import pathlib
import re
import sys


def holds(lines, part):
    return any(lines[i : i + len(part)] == part for i in range(len(lines) - len(part) + 1))


def check(readme, example):
    text = readme.read_text(encoding="utf-8")
    lines = example.read_text(encoding="utf-8").splitlines()
    snippets = [block.splitlines() for block in re.findall(r"^```c\n(.*?)^```$", text, flags=re.S | re.M)]
    findings = []
    for snippet in snippets:
        if not holds(lines, snippet):
            missing = next((line for line in snippet if line not in lines), None)
            where = "its lines are not in this order" if missing is None else f"it has no line {missing!r}"
            findings.append(f"the snippet that starts with {snippet[:1]} is no part of {example.name}: {where}")
    if not any(len(snippet) >= 5 for snippet in snippets):
        findings.append(f"no snippet of {example.name}")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose):
        if "://" not in target and not (readme.parent / target).exists():
            findings.append(f"a link to {target}, which is not there")
    return findings


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: check_readme.py README.md EXAMPLE.c")
    found = check(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
    for finding in found:
        print(f"README: {finding}")
    sys.exit(1 if found else 0)
