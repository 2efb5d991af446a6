#!/usr/bin/env python3
"""Checks the README against the files that it quotes: check_readme.py README.md EXAMPLE...

Every ```c, ```rust and ```go block is a contiguous part of an example, line for line, and each example has one of five lines or more; every
relative link leads to a file. Prints one line a finding and exits 1 if there is any. Standard library only.
"""
import pathlib
import re
import sys


def holds(lines, part):
    return any(lines[i : i + len(part)] == part for i in range(len(lines) - len(part) + 1))


def check(readme, examples):
    text = readme.read_text(encoding="utf-8")
    sources = {example.name: example.read_text(encoding="utf-8").splitlines() for example in examples}
    snippets = [block.splitlines() for block in re.findall(r"^```(?:c|rust|go)\n(.*?)^```$", text, flags=re.S | re.M)]
    findings = []
    quoted = set()
    for snippet in snippets:
        holders = [name for name, lines in sources.items() if holds(lines, snippet)]
        if len(snippet) >= 5:
            quoted.update(holders)
        if not holders:
            missing = [line for line in snippet if not any(line in lines for lines in sources.values())]
            where = f"none has the line {missing[0]!r}" if missing else "its lines are not in this order in any"
            findings.append(f"the snippet that starts with {snippet[:1]} is no part of {', '.join(sources)}: {where}")
    findings += [f"no snippet of {name}" for name in sources if name not in quoted]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose):
        if "://" not in target and not (readme.parent / target).exists():
            findings.append(f"a link to {target}, which is not there")
    return findings


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: check_readme.py README.md EXAMPLE...")
    found = check(pathlib.Path(sys.argv[1]), [pathlib.Path(name) for name in sys.argv[2:]])
    for finding in found:
        print(f"README: {finding}")
    sys.exit(1 if found else 0)
