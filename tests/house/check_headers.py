#!/usr/bin/env python3
"""Every header compiles alone: includes what it uses, guards against being included twice.

usage: check_headers.py BUILD_DIRECTORY

A header is compiled with the flags of its folder, taken from the build's compile_commands.json, without the precompiled header, which
would hide what is missing. LibTorch's headers cost seconds each; with ccache only the first run pays.
"""

import concurrent.futures
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

from layers import FOLDERS, ROOT, finish, relative, sources


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


def fault_of(header, flags, scratch):
    name = relative(header)
    command = flags_of(header, flags)
    if command is None:
        return f"{name}: its folder has no compiled file to take the flags from"
    # One name per header, so that ccache knows it again.
    unit = pathlib.Path(scratch) / (name.replace("/", "_") + ".cpp")
    unit.write_text(f"#include <cairn/{name}>\n#include <cairn/{name}>\n", encoding="utf-8")
    launcher = ["ccache"] if shutil.which("ccache") else []
    done = subprocess.run(launcher + command + ["-O0", "-g0", "-Werror", "-c", unit.name, "-o", unit.name + ".o"], cwd=scratch,
                          capture_output=True, text=True, env={**os.environ, "CCACHE_NOHASHDIR": "1"})
    return None if done.returncode == 0 else f"{name}: does not compile alone\n{done.stderr}"


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    flags = flags_by_folder(build)
    headers = [path for folder in FOLDERS if (ROOT / folder).is_dir() for path in sources(folder, ".hpp")]
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        faults = [fault for fault in pool.map(lambda header: fault_of(header, flags, scratch), headers) if fault]
    finish("headers", faults, len(headers))


if __name__ == "__main__":
    main()
