#!/usr/bin/env python3
"""Every header compiles alone: includes what it uses, guards against being included twice.

usage: check_headers.py BUILD_DIRECTORY

A header is compiled with the flags of its folder, taken from the build's compile_commands.json, without the precompiled header, which
would hide what is missing. LibTorch's headers cost seconds each: the costliest, which a third of ours include, is precompiled for those that do
include it.
"""

import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

from layers import FOLDERS, ROOT, finish, includes, relative, sources

COSTLY = "torch/types.h"


def is_foreign(build, path):
    """Whether this folder of headers is somebody else's, whose warnings are none of ours."""
    return path != "" and not any(pathlib.Path(path).is_relative_to(own) for own in (ROOT, build))


def is_own(path):
    return path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "build")


def source_of(entry):
    """What an entry compiles: of a unity build's file, which includes many of one folder, the first of them."""
    path = pathlib.Path(entry["file"])
    if path.name.startswith("unity_"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith('#include "') and is_own(pathlib.Path(line.split('"')[1])):
                return pathlib.Path(line.split('"')[1])
    return path


def flags_by_folder(build):
    """Folder -> the compiler and its flags, without input, output and precompiled header."""
    flags = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        path = source_of(entry)
        if not is_own(path):
            continue
        words = shlex.split(entry["command"])
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
        name = relative(path)
        folder = "actors/protocol" if name.startswith("actors/protocol/") else name.split("/", 1)[0]
        if name.startswith("runtime/tools/"):
            folder = "runtime/tools"
        flags.setdefault(folder, kept)
    return flags


def flags_of(header, flags):
    name = relative(header)
    folders = [folder for folder in flags if name.startswith(folder + "/")]
    return flags[max(folders, key=len)] if folders else None


def includes_costly(header, seen=None):
    """Whether it does, directly or through headers of ours."""
    seen = set() if seen is None else seen
    for _, name, _ in includes(header):
        own = ROOT / name.removeprefix("cairn/")
        if name == COSTLY:
            return True
        if name.startswith("cairn/") and own not in seen and own.exists():
            seen.add(own)
            if includes_costly(own, seen):
                return True
    return False


class Compiler:
    """Compiles headers alone, in a folder that may be written to."""

    def __init__(self, build, scratch):
        self.flags, self.scratch = flags_by_folder(build), pathlib.Path(scratch)

    def run(self, command, name, *options):
        return subprocess.run([*command, "-O0", "-g0", "-Werror", *options, name], cwd=self.scratch, capture_output=True, text=True)

    def precompile(self, headers):
        """Once for all that have the same flags."""
        costly = {tuple(flags_of(header, self.flags)) for header in headers if flags_of(header, self.flags) and includes_costly(header)}
        self.precompiled = {flags: f"costly_{number}.hpp" for number, flags in enumerate(sorted(costly))}
        for name in self.precompiled.values():
            (self.scratch / name).write_text(f"#include <{COSTLY}>\n", encoding="utf-8")
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            done = pool.map(lambda kind: self.run(*kind, "-x", "c++-header"), self.precompiled.items())
        return [f"{COSTLY} does not compile\n{one.stderr}" for one in done if one.returncode != 0]

    def fault_of(self, header):
        name, flags = relative(header), flags_of(header, self.flags)
        if flags is None:
            return f"{name}: its folder has no compiled file to take the flags from"
        unit = self.scratch / (name.replace("/", "_") + ".cpp")
        unit.write_text(f"#include <cairn/{name}>\n#include <cairn/{name}>\n", encoding="utf-8")
        first = ["-include", self.precompiled[tuple(flags)]] if includes_costly(header) else []
        done = self.run(flags, unit.name, *first, "-fsyntax-only")
        return None if done.returncode == 0 else f"{name}: does not compile alone\n{done.stderr}"


def main():
    headers = [path for folder in FOLDERS if (ROOT / folder).is_dir() for path in sources(folder, ".hpp")]
    with tempfile.TemporaryDirectory() as scratch:
        compiler = Compiler(pathlib.Path(sys.argv[1]).resolve(), scratch)
        faults = compiler.precompile(headers)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            faults += [fault for fault in pool.map(compiler.fault_of, headers) if fault]
    finish("headers", faults, len(headers))


if __name__ == "__main__":
    main()
