#!/usr/bin/env python3
"""Code in README that names the file it is from stands there word for word, and what README refers to is there."""

import re

from layers import ROOT, finish

BLOCK = re.compile(r"^```cpp\n// (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Things in backquotes that look like files of the tree.
REFERENCE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:hpp|cpp|md|sh|py))`")


def main():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    faults, blocks, references = [], BLOCK.findall(text), REFERENCE.findall(text)
    for name, code in blocks:
        if code.strip() not in (ROOT / name).read_text(encoding="utf-8"):
            faults.append(f"README.md: the code from {name} differs from what is there")
    for name in references:
        if not (ROOT / name).is_file():
            faults.append(f"README.md: {name} is not there")
    if not blocks:
        faults.append("README.md shows no code of the example")
    finish("readme", faults, len(blocks) + len(references))


if __name__ == "__main__":
    main()
