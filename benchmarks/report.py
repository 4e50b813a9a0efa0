#!/usr/bin/env python3
"""Turns the JSON lines that the benchmarks print into a Markdown table and a JSON list.

usage: report.py [--json FILE] LINES...

A line is {"name", "value", "unit", "limit", "ratio", "goal", "met"}: `limit` is the physical limit measured in the same run, in the same
unit; `ratio` is value to limit; `goal` says in words what is wanted, `met` whether it is. All but name, value and unit may be null or
absent. Other text in the files is passed over.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess

FIELDS = ("name", "value", "unit", "limit", "ratio", "goal", "met")
# PyTorch's figures carry the name of Cairn's for the same work behind this.
DCP = "dcp_"


def machine():
    """What a reader needs to judge the figures."""
    def first(path, key):
        for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
            if line.startswith(key):
                return line.split(":", 1)[1].strip()
        return "unknown"

    def version_of(package):
        asked = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True, check=False)
        return asked.stdout or "unknown"

    memory = int(first("/proc/meminfo", "MemTotal").split()[0]) / 2**20
    return (f"{os.cpu_count()} x {first('/proc/cpuinfo', 'model name')}, {memory:.0f} GiB memory, Linux {platform.release()}, "
            f"LibTorch {version_of('libtorch-dev')}, {datetime.date.today().isoformat()}")


def read_lines(paths):
    rows = []
    for path in paths:
        for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
            if line.startswith("{"):
                row = json.loads(line)
                rows.append({field: row.get(field) for field in FIELDS})
    return rows


def compare_with_dcp(rows):
    """Adds a row for each figure of Cairn's that PyTorch has one of its own for: times are to be below it, rates above."""
    by_name = {row["name"]: row for row in rows}
    for name, dcp in by_name.items():
        ours = by_name.get(name[len(DCP):]) if name.startswith(DCP) else None
        if ours:
            is_time = ours["unit"] == "s"
            rows.append({**ours, "name": f"{ours['name']}_to_dcp", "limit": dcp["value"], "ratio": ours["value"] / dcp["value"],
                         "goal": "less than DCP's time" if is_time else "more than DCP's rate",
                         "met": (ours["value"] < dcp["value"]) == is_time})


def figure(value):
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, (int, float)) else str(value)


def table(rows, where):
    yield f"Measured on {where}."
    yield ""
    yield "| what | value | limit | ratio | goal | met |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        limit = figure(row["limit"]) + (f" {row['unit']}" if row["limit"] is not None else "")
        met = {True: "yes", False: "**no**", None: "–"}[row["met"]]
        yield f"| {row['name']} | {figure(row['value'])} {row['unit']} | {limit} | {figure(row['ratio'])} | {figure(row['goal'])} | {met} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("lines", nargs="+")
    arguments = parser.parse_args()
    rows = read_lines(arguments.lines)
    if not rows:
        parser.exit(1, "the benchmarks printed no figures\n")
    compare_with_dcp(rows)
    where = machine()
    print("\n".join(table(rows, where)))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump([{**row, "machine": where} for row in rows], file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
