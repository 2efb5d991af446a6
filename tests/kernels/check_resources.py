"""Compare what ptxas says of each kernel with the table in kernels/README.md.

usage: check_resources.py README REPORT... [--write]

Of each kernel, over its instances and architectures: none may spill, none may use more registers or static shared memory
than the table says. --write puts the present figures into the table.
"""

import re
import subprocess
import sys

HEADING = "| kernel | instances | registers | static shared, bytes |\n|---|---|---|---|\n"


def read_report(path, kernels):
    """Add {name: {"instances", "registers", "shared", "spills"}} of one report."""
    instance = None
    with open(path, encoding="utf-8") as file:
        for line in file:
            if match := re.search(r"Compiling entry function '(\S+)' for '(\w+)'", line):
                full = subprocess.run(["c++filt", match[1]], capture_output=True, text=True, check=True).stdout.strip()
                name = re.sub(r"\(anonymous namespace\)::", "", full)
                name = re.search(r"(\w+)(?:<.*>)?\(", re.sub(r"^void ", "", name))[1]
                instance = (full, match[2])
                kernel = kernels.setdefault(name, {"instances": set(), "registers": 0, "shared": 0, "spills": set()})
                kernel["instances"].add(full)
            elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
                if any(int(match[i]) for i in (1, 2, 3)):
                    kernel["spills"].add((instance, match[0]))
            elif match := re.search(r"Used (\d+) registers", line):
                kernel["registers"] = max(kernel["registers"], int(match[1]))
                shared = re.search(r"(\d+) bytes smem", line)
                kernel["shared"] = max(kernel["shared"], int(shared[1]) if shared else 0)


def main():
    arguments = [a for a in sys.argv[1:] if a != "--write"]
    readme, reports = arguments[0], arguments[1:]
    kernels = {}
    for report in reports:
        read_report(report, kernels)
    if not kernels:
        sys.exit("no kernel in the reports")
    with open(readme, encoding="utf-8") as file:
        text = file.read()
    if HEADING not in text:
        sys.exit(f"{readme} has no table of resources")
    before, rest = text.split(HEADING)
    rows = rest.split("\n\n", 1)
    if "--write" in sys.argv:
        table = "\n".join(
            f"| `{name}` | {len(k['instances'])} | {k['registers']} | {k['shared']} |" for name, k in sorted(kernels.items())
        )
        with open(readme, "w", encoding="utf-8") as file:
            file.write(before + HEADING + table + "\n\n" + rows[1])
        return
    limits = {}
    for row in rows[0].splitlines():
        name, instances, registers, shared = (cell.strip(" `") for cell in row.strip("|").split("|"))
        limits[name] = (int(instances), int(registers), int(shared))
    wrong = [f"{name}: in the table, not in the reports" for name in limits.keys() - kernels.keys()]
    for name, kernel in sorted(kernels.items()):
        wrong += [f"{name}: {found}: {instance[0]} on {instance[1]}" for instance, found in sorted(kernel["spills"])]
        if name not in limits:
            wrong.append(f"{name}: not in the table")
            continue
        instances, registers, shared = limits[name]
        if len(kernel["instances"]) != instances:
            wrong.append(f"{name}: {len(kernel['instances'])} instances, the table says {instances}")
        if kernel["registers"] > registers:
            wrong.append(f"{name}: {kernel['registers']} registers, the table says {registers}")
        if kernel["shared"] > shared:
            wrong.append(f"{name}: {kernel['shared']} bytes of static shared memory, the table says {shared}")
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(kernels)} kernels, {sum(len(k['instances']) for k in kernels.values())} instances, no spills")


if __name__ == "__main__":
    main()
