#!/usr/bin/env python3
"""Code in README and the other documents that names the file it is from stands there word for word. What README refers to is there: files, as in the other
documents, and the tests that stand for what happens when something fails."""

import re

from layers import ROOT, finish, sources

BLOCK = re.compile(r"^```cpp\n// (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Things in backquotes that look like files of the tree.
REFERENCE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:hpp|cpp|md|sh|py))`")


DOCUMENTS = ["README.md", "CONTRIBUTING.md", "docs/protocol.md", "docs/tracing.md", "storage/FORMAT.md"]

SECTION = re.compile(r"^## What happens when …$(.*?)^## ", re.MULTILINE | re.DOTALL)
# In the last column: `folder: ` and the names of tests in it, in backquotes; several folders are parted by ';'.
TESTS = re.compile(r"(\w+): (`[^`]+`(?:, `[^`]+`)*)")
CASE = re.compile(r"TEST_CASE(?:_FIXTURE\(\w+,\s*|_TEMPLATE\(|\()\s*\"((?:[^\"\\]|\\.)*)\"")
PYTHON_TEST = re.compile(r"^\s*(?:class|def) (\w+)\(", re.MULTILINE)


def tests_of(folder):
    names = set()
    for path in sources(f"tests/{folder}", ".cpp", ".hpp", ".py"):
        pattern = PYTHON_TEST if path.suffix == ".py" else CASE
        names.update(pattern.findall(path.read_text(encoding="utf-8")))
    return names


def table_faults(text):
    """What is wrong with the tests in the table of failures, and how many it names."""
    section = SECTION.search(text)
    rows = [row for row in section.group(1).splitlines() if row.startswith("| ")][1:] if section else []
    faults, named = ([] if rows else ["README.md has no table of what happens when something fails"]), 0
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        groups = TESTS.findall(cells[-1])
        if not groups:
            faults.append(f"README.md: no test stands for '{cells[0]}'")
        for folder, names in groups:
            for name in re.findall("`([^`]+)`", names):
                named += 1
                if name not in tests_of(folder):
                    faults.append(f"README.md: tests/{folder} has no test '{name}', which is to stand for '{cells[0]}'")
    return faults, named


def main():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    faults = []
    blocks = [(document, name, code) for document in DOCUMENTS
              for name, code in BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))]
    for document, name, code in blocks:
        if code.strip() not in (ROOT / name).read_text(encoding="utf-8"):
            faults.append(f"{document}: the code from {name} differs from what is there")
    references = [(document, name) for document in DOCUMENTS
                  for name in REFERENCE.findall((ROOT / document).read_text(encoding="utf-8"))]
    for document, name in references:
        if not (ROOT / name).is_file() and not ((ROOT / document).parent / name).is_file():
            faults.append(f"{document}: {name} is not there")
    if not blocks:
        faults.append("README.md shows no code of the example")
    more, named = table_faults(text)
    finish("readme", faults + more, len(blocks) + len(references) + named)


if __name__ == "__main__":
    main()
