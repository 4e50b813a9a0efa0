#!/usr/bin/env python3
"""Every public header compiles alone: includes what it uses, guards against being included twice.

usage: check_headers.py BUILD_DIRECTORY

A header is compiled with the flags of runtime/, taken from the build's compile_commands.json, without the precompiled header of
LibTorch, which would hide what is missing. One costly header, which a third of ours include, is precompiled for those.
"""

import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

from layers import ROOT, finish, includes, public_headers

COSTLY = "torch/types.h"


def is_foreign(build, path):
    """Whether this folder of headers is somebody else's, whose warnings are none of ours."""
    return path != "" and not any(pathlib.Path(path).is_relative_to(own) for own in (ROOT, build))


def flags_of_runtime(build):
    """The compiler and its flags, without input, output and precompiled header."""
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    words = shlex.split(next(entry["command"] for entry in entries if "/cairn_runtime.dir/" in entry["command"]))
    while "ccache" in pathlib.Path(words[0]).name or "=" in words[0] or words[0].endswith("cmake") or words[0] in ("-E", "env"):
        words.pop(0)
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in ("-o", "-c", "-include"):
            skip = True
        elif word.startswith("-I") and is_foreign(build, word[2:]):
            kept += ["-isystem", word[2:]]
        elif word not in ("-Winvalid-pch", "-fpch-preprocess"):
            kept.append(word)
    return kept


def includes_costly(name, seen):
    """Whether this header of ours does, directly or through others of ours."""
    if name == COSTLY:
        return True
    own = ROOT / name.removeprefix("cairn/")
    if not name.startswith("cairn/") or own in seen or not own.exists():
        return False
    seen.add(own)
    return any(includes_costly(included, seen) for _, included, _ in includes(own))


class Compiler:
    """Compiles headers alone, in a folder that may be written to."""

    def __init__(self, build, scratch):
        self.flags, self.scratch = flags_of_runtime(build), pathlib.Path(scratch)

    def run(self, name, *options):
        return subprocess.run([*self.flags, "-O0", "-g0", "-Werror", *options, name], cwd=self.scratch, capture_output=True, text=True)

    def precompile(self):
        (self.scratch / "costly.hpp").write_text(f"#include <{COSTLY}>\n", encoding="utf-8")
        done = self.run("costly.hpp", "-x", "c++-header")
        return [] if done.returncode == 0 else [f"{COSTLY} does not compile\n{done.stderr}"]

    def fault_of(self, name):
        unit = self.scratch / (name.replace("/", "_") + ".cpp")
        unit.write_text(f"#include <cairn/{name}>\n#include <cairn/{name}>\n", encoding="utf-8")
        first = ["-include", "costly.hpp"] if includes_costly(f"cairn/{name}", set()) else []
        done = self.run(unit.name, *first, "-fsyntax-only")
        return None if done.returncode == 0 else f"{name}: does not compile alone\n{done.stderr}"


def main():
    headers = [name for name in public_headers() if not name.startswith("tests/")]  # those are included after doctest's
    with tempfile.TemporaryDirectory() as scratch:
        compiler = Compiler(pathlib.Path(sys.argv[1]).resolve(), scratch)
        faults = compiler.precompile()
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            faults += [fault for fault in pool.map(compiler.fault_of, headers) if fault]
    finish("headers", faults, len(headers))


if __name__ == "__main__":
    main()
