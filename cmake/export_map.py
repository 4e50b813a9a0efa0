#!/usr/bin/env python3
"""Writes the version script of a shared library: which symbols users may link against.

usage: export_map.py NM OUTPUT ARCHIVE...

Exported is what the archives of the public folders define in namespace cairn, except what mentions a type of a library that Cairn
uses inside: users never meet those. Patterns alone cannot say that, so the list is exact and made from the archives.
"""

import re
import subprocess
import sys

# Functions and data, run-time type information, thunks and guards of namespace cairn, by their mangled names.
OURS = re.compile(r"^_Z(N|NK|T[VTIS]N|Th\w*_N|Tv\w*_N|Tc\w*_N|GVN)K?5cairn")
INNER = re.compile(r"cairn::v1\b|google::protobuf|\bcaf::|\bspdlog::|\bfmt::|\bnlohmann::|\bCLI::|"
                   r"\b(ssl|evp|bio|x509|engine)_\w*st\b")


def exported(nm, archives):
    symbols = set()
    for archive in archives:
        listing = subprocess.run([nm, "--defined-only", "--extern-only", "--format=posix", archive],
                                 check=True, capture_output=True, text=True).stdout
        for line in listing.splitlines():
            name = line.split(" ", 1)[0]
            if OURS.match(name):
                symbols.add(name)
    symbols = sorted(symbols)
    plain = subprocess.run(["c++filt"], check=True, capture_output=True, text=True,
                           input="\n".join(symbols)).stdout.splitlines()
    return [symbol for symbol, text in zip(symbols, plain) if not INNER.search(text)]


def main():
    nm, output, archives = sys.argv[1], sys.argv[2], sys.argv[3:]
    symbols = exported(nm, archives)
    text = "{\n  global:\n" + "".join(f"    {symbol};\n" for symbol in symbols) if symbols else "{\n"
    with open(output, "w", encoding="ascii") as file:
        file.write(text + "  local:\n    *;\n};\n")


if __name__ == "__main__":
    main()
