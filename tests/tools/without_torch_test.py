#!/usr/bin/env python3
"""The core's headers compile, and `cairn` links and runs, where there is no LibTorch: in a mount namespace that hides it.

Usage: without_torch_test.py CAIRN BUILD SOURCE LIBTORCH_LIBRARY INCLUDE_DIRECTORY...
"""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

SKIPPED = 77
CORE = ("base", "planning", "messages", "tracing", "formats", "storage", "actors")
HEADERS_OF_TORCH = ("torch", "ATen", "c10", "caffe2")


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def hide(library, includes):
    """Hides LibTorch from this process, which has a mount namespace of its own."""
    for name in (pathlib.Path(include) / part for include in includes for part in HEADERS_OF_TORCH):
        if name.is_dir():
            subprocess.run(["mount", "-t", "tmpfs", "none", name], check=True)
    for pattern in ("libtorch*.so*", "libc10*.so*"):
        for name in pathlib.Path(library).parent.glob(pattern):
            if name.is_file() and not name.is_symlink():
                subprocess.run(["mount", "--bind", "/dev/null", name], check=True)


def compiler_of(build, folder):
    """The command that compiles a source of a folder, without its source and output."""
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        words = shlex.split(entry.get("command", ""))
        if f"cairn_{folder}.dir" in entry.get("command", "") and entry["file"].endswith((".cpp", ".cxx")):
            first = 1 if words[0].endswith("ccache") else 0
            without = {i for i, word in enumerate(words) if word in ("-o", "-c")}
            return [word for i, word in enumerate(words) if i >= first and i not in without and i - 1 not in without]
    sys.exit(f"no command in {build}/compile_commands.json compiles {folder}")


def compiles(compiler, text):
    return run([*compiler, "-fsyntax-only", "-x", "c++", "-"], input=text)


def check(cairn, build, source):
    compiler = compiler_of(build, "actors")
    assert compiles(compiler_of(build, "state"), "#include <c10/core/ScalarType.h>\n").returncode != 0, "LibTorch is not hidden"
    headers = sorted(path.relative_to(source) for folder in CORE for path in (source / folder).rglob("*.hpp"))
    done = compiles(compiler, "".join(f"#include <cairn/{header}>\n" for header in headers))
    assert done.returncode == 0, done.stderr[-4000:]
    print(f"{len(headers)} headers compile")
    loaded = re.sub(r"\(0x\w+\)", "", run(["ldd", cairn]).stdout)  # an address may have c10 in it
    assert not re.search(r"torch|c10", loaded), loaded
    link = run(["ninja", "-C", build, "-t", "commands", "-s", "cairn_command"]).stdout
    if link:
        with tempfile.TemporaryDirectory() as directory:
            made = pathlib.Path(directory) / "cairn"
            done = run(["sh", "-c", link.replace("-o bin/cairn", f"-o {made}")], cwd=build)
            assert done.returncode == 0, done.stderr[-4000:]
            cairn = made
            check_runs(cairn)
    check_runs(cairn)


def check_runs(cairn):
    done = run([cairn, "cat", "--help"])
    assert done.returncode == 0 and "--slice" in done.stdout, done.stderr


def main():
    cairn, build, source, library, *includes = sys.argv[1:]
    if os.environ.get("CAIRN_TORCH_HIDDEN") != "yes":
        if run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]).returncode != 0:
            print("skipped: this needs the right to mount")
            return SKIPPED
        return subprocess.run(["unshare", "-m", sys.executable, *sys.argv], env={**os.environ, "CAIRN_TORCH_HIDDEN": "yes"},
                              check=False).returncode
    hide(library, includes)
    check(cairn, pathlib.Path(build), pathlib.Path(source))
    return 0


if __name__ == "__main__":
    sys.exit(main())
