#!/usr/bin/env python3
"""One table of what tests/gpu.sh measured: gpu_table.py REPORT..., reports of `ds41-bench step --json`.

A line a layer kind, format, context and number of rows: the time of the layer, stage by stage and captured, beside what a
copy on the GPU takes for as many bytes; or, from the simulated device, launches and bytes. Standard library only.
"""
import json
import pathlib
import sys


def key(record):
    return record["kind"], record["format"], record["context"], record["rows"]


def load(paths):
    """Records by mode and what they are of; reports that cannot be read are named."""
    by_mode = {}
    for path in paths:
        try:
            records = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))["records"]
        except (OSError, ValueError, KeyError) as error:
            print(f"{path}: {error}")
            continue
        for record in records:
            by_mode.setdefault(record["mode"], []).append(record)
    return by_mode


def table(head, lines):
    widths = [max(len(str(line[i])) for line in [head, *lines]) for i in range(len(head))]
    for line in [head, *lines]:
        print("  ".join(str(cell).ljust(width) if i == 0 else str(cell).rjust(width)
                        for i, (cell, width) in enumerate(zip(line, widths))))


def times(records, contests):
    captured = {}
    for record in contests:
        if record.get("contestant") == "step, captured" and record.get("us"):
            captured[record["case"]] = record["us"]["median"]
    stages = []
    for record in records:
        stages += [stage["stage"] for stage in record["stages"] if stage["stage"] not in stages]
    lines = []
    for record in records:
        by_stage = {stage["stage"]: stage for stage in record["stages"]}
        cells = [f"{by_stage[name]['microseconds']:.1f}" if name in by_stage else "-" for name in stages]
        floor = by_stage["all"]["floor_microseconds"]
        graph = captured.get(record["case"])
        lines.append([record["kind"], record["format"], record["context"], record["rows"], *cells, f"{floor:.1f}",
                      f"{by_stage['all']['microseconds'] / floor:.2f}", f"{graph:.1f}" if graph else "-",
                      f"{graph / floor:.2f}" if graph else "-"])
    table(["microseconds", "format", "context", "rows", *stages, "floor", "ratio", "captured", "ratio"], lines)


def counts(records):
    lines = [[*key(record), record["all"]["launches"], f"{record['all']['requested_to_floor']:.3f}",
              f"{record['all']['distinct_to_floor']:.3f}"] for record in records]
    table(["counts", "format", "context", "rows", "launches", "requested", "distinct"], lines)


def main(paths):
    by_mode = load(paths)
    timed = by_mode.get("step times", [])
    counted = [record for record in by_mode.get("step", []) if "all" in record]
    if timed:
        times(timed, by_mode.get("step", []))
    elif counted:
        counts(counted)
    else:
        print("nothing was measured")


if __name__ == "__main__":
    main(sys.argv[1:])
