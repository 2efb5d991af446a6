"""Compile one kernel source for GPUs: nvcc's errors go through, and what ptxas says of registers goes to a file.

usage: compile.py REPORT NVCC ARGUMENT...
"""

import subprocess
import sys


def main() -> int:
    report, command = sys.argv[1], sys.argv[2:]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = run.stdout.splitlines(keepends=True)
    with open(report, "w", encoding="utf-8") as out:
        out.writelines(line for line in lines if line.startswith(("ptxas info", "    ")))
    sys.stderr.writelines(line for line in lines if not line.startswith(("ptxas info", "    ")) and line.strip())
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
