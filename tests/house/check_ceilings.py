#!/usr/bin/env python3
"""Holds the tree to tests/house/ceilings.toml: the lines of each folder of the product, of its tests and scripts, and the share of comments.

usage: check_ceilings.py [--print]

--print shows a file of ceilings with the lines that the tree has now.
"""

import re
import sys
import tomllib

from layers import FOLDERS, ROOT, finish, sources

# All that is compiled, or from which sources are generated.
COMPILED = (".hpp", ".cpp", ".proto", ".inc", ".in")
SCRIPTS = (".py", ".sh")
# Beside the product and its tests.
OTHER_FOLDERS = {"benchmarks", "build", "cmake", "docker", "docs", "examples"}
FILE = ROOT / "tests" / "house" / "ceilings.toml"
COMMENT = re.compile(r"\s*//")


def lines_of(paths):
    return [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]


def counted():
    """The tables of a file of ceilings, as the tree is."""
    product = {folder: lines_of(sources(folder, *COMPILED)) for folder in FOLDERS}
    all_lines = [line for lines in product.values() for line in lines]
    rows = {folder: len(lines) for folder, lines in product.items()}
    comments = sum(1 for line in all_lines if COMMENT.match(line))
    return {
        "product": {**rows, "sum": len(all_lines)},
        "tests": {"cpp": len(lines_of(sources("tests", *COMPILED))), "scripts": len(lines_of(sources("tests", *SCRIPTS)))},
        "comments": {"per_thousand_min": comments * 1000 // len(all_lines)},
    }


def faults_of(now, ceilings):
    for table, rows in now.items():
        if rows.keys() != ceilings.get(table, {}).keys():
            yield f"[{table}] has the rows {', '.join(ceilings.get(table, {}))}: the tree has {', '.join(rows)}"
            continue
        for row, count in rows.items():
            limit = ceilings[table][row]
            if count < limit if row.endswith("_min") else count > limit:
                yield f"[{table}] {row} is {count}: {'at least' if row.endswith('_min') else 'at most'} {limit}"
    product = dict(ceilings.get("product", {}))
    if product.pop("sum", 0) < sum(product.values()):
        yield f"[product] the rows allow {sum(product.values())} lines, more than their sum: take from one row what another is given"
    known = {*FOLDERS, *OTHER_FOLDERS, "tests"}
    for folder in sorted(path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in known and not path.name.startswith(".")):
        if sources(folder, *COMPILED):
            yield f"{folder}/ has sources, but no row"


def main():
    now = counted()
    if "--print" in sys.argv[1:]:
        print(re.match(r"(#.*\n)*", FILE.read_text(encoding="utf-8"))[0] if FILE.exists() else "", end="")
        for table, rows in now.items():
            print(f"\n[{table}]", *(f"{row} = {count}" for row, count in rows.items()), sep="\n")
        return
    finish("ceilings", list(faults_of(now, tomllib.loads(FILE.read_text(encoding="utf-8")))), sum(len(rows) for rows in now.values()))


if __name__ == "__main__":
    main()
