#!/usr/bin/env python3
"""Every header of the product compiles alone: includes what it uses, guards against being included twice. Every header that the
users' documents name is public.

usage: check_headers.py BUILD_DIRECTORY [REGEX] [--rest]

REGEX: only headers whose path matches. --rest: of the folders without LibTorch, only headers that no source of their name includes first.
The others are checked where each source is compiled alone, since nothing is precompiled for them. Here a header is compiled with the flags of
runtime/, taken from the build's compile_commands.json, and without a precompiled header, which would hide what is missing. tests/builds.sh
runs this.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

from layers import FOLDERS, FORBIDDEN_LIBRARIES, ROOT, TORCH, finish, includes, own_part, public_headers, relative, sources

NAMED = re.compile(r"(?<![\w./-])(?:cairn/)?((?:\w+/)+\w+\.hpp)")
OF_THE_SOURCE = {"architecture.md", "protocol.md"}  # documents for those who change Cairn


def is_foreign(build, path):
    """Whether this folder of headers is somebody else's, whose warnings are none of ours."""
    return path != "" and not any(pathlib.Path(path).is_relative_to(own) for own in (ROOT, build))


def flags_of_runtime(build):
    """The compiler and its flags, without input, output and precompiled header."""
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    words = shlex.split(next(entry["command"] for entry in entries if "/cairn_runtime.dir/" in entry["command"]))
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


def is_first_in_source(name):
    """Whether the source of its name, which includes no header of LibTorch, begins with this header."""
    source = (ROOT / name).with_suffix(".cpp")
    return (TORCH in FORBIDDEN_LIBRARIES.get(own_part(name), []) and source.is_file()
            and next(includes(source), (0, "", False))[1] == f"cairn/{name}")


def fault_of(name, flags, scratch):
    unit = pathlib.Path(scratch, name.replace("/", "_") + ".cpp")
    unit.write_text(f"#include <cairn/{name}>\n#include <cairn/{name}>\n", encoding="utf-8")
    done = subprocess.run([*flags, "-O0", "-g0", "-Werror", "-fsyntax-only", unit], capture_output=True, text=True, errors="replace")
    return None if done.returncode == 0 else f"{name}: does not compile alone\n{done.stderr}"


def faults_of_documents(public):
    """The headers that users are sent to, and cannot include."""
    faults = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        if path.name in OF_THE_SOURCE:
            continue
        for name in sorted(set(NAMED.findall(path.read_text(encoding="utf-8")))):
            if name not in public and not name.startswith("examples/"):
                faults.append(f"{path.relative_to(ROOT)}: names {name}, which is not in cmake/CairnPublicHeaders.cmake")
    return faults


def main():
    words = [word for word in sys.argv[1:] if word != "--rest"]
    build, wanted = pathlib.Path(words[0]).resolve(), re.compile(words[1] if len(words) > 1 else "")
    headers = [relative(path) for folder in FOLDERS for path in sources(folder, ".hpp") if wanted.search(relative(path))]
    if "--rest" in sys.argv:
        headers = [name for name in headers if not is_first_in_source(name)]
    flags = flags_of_runtime(build)
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        faults = [fault for fault in pool.map(lambda name: fault_of(name, flags, scratch), headers) if fault]
    faults += faults_of_documents(set(public_headers()))
    finish("headers", faults, len(headers))


if __name__ == "__main__":
    main()
