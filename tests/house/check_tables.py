#!/usr/bin/env python3
"""Each row of a table in docs/ whose last column is "tested by" names tests, and these tests exist."""

import re

from check_readme import tests_of
from layers import ROOT, check_files

TABLE = re.compile(r"^\| .* \| tested by \|\n\|[-|]+\|\n((?:\| .*\n)+)", re.MULTILINE)
# `folder: ` and the names of tests in it, in backquotes; several folders are parted by ';'.
TESTS = re.compile(r"(\w+): (`[^`]+`(?:, `[^`]+`)*)")


def faults_of(path):
    """The faults of one document, and how many tests were looked for."""
    faults, checked = [], 0
    for row in "".join(TABLE.findall(path.read_text(encoding="utf-8"))).splitlines():
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        groups = TESTS.findall(cells[-1])
        if not groups:
            faults.append(f"{path.name}: no test stands for '{cells[0]}'")
        for folder, listed in groups:
            for name in re.findall("`([^`]+)`", listed):
                checked += 1
                if name not in tests_of(folder):
                    faults.append(f"{path.name}: tests/{folder} has no test '{name}', which stands for '{cells[0]}'")
    return faults, checked


if __name__ == "__main__":
    check_files("tables", sorted((ROOT / "docs").glob("*.md")), faults_of)
