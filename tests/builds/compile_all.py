#!/usr/bin/env python3
"""Compiles all that a configured build folder would compile, without making objects. Warnings are errors, and each file that fails is shown.

usage: compile_all.py BUILD_DIRECTORY [--only REGEX | --none] [--seen FILE] [--times]

--only   only files whose path below the source tree, or whose target, matches
--none   only makes the headers and sources that the build generates, without that of LibTorch
--seen   a file that lists what has compiled before, in other build folders, too. The same file with the same flags is not compiled again.
--times  shows how long each file took

Headers and sources that the build generates are made first, and the precompiled header of LibTorch if a file needs it. Files that include
no header of LibTorch are compiled without it.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "house"))
sys.dont_write_bytecode = True
from layers import TORCH, includes  # noqa: E402

GENERATED = re.compile(r"^(messages/cairn/\S+\.pb\.h|tools/trace_page_template\.cpp|\S+/cmake_pch\.hxx\.[gp]ch): ", re.MULTILINE)


def uses_torch(path, seen):
    """Whether a file includes a header of LibTorch, directly or through others of ours."""
    seen.add(path)
    for _, name, _ in includes(path):
        own = next((one for one in (path.parent / name, ROOT / name.removeprefix("cairn/")) if one.is_file()), None)
        if re.match(TORCH, name) or own and own not in seen and uses_torch(own, seen):
            return True
    return False


def ninja(build, *words):
    return subprocess.run(["ninja", "-t", *words], cwd=build, capture_output=True, text=True, check=True).stdout


def generate(build, precompile):
    """Runs the commands that make headers and sources. Ninja itself would build the libraries before them."""
    for target in dict.fromkeys(GENERATED.findall(ninja(build, "targets", "all"))):
        if precompile or not target.endswith("ch"):
            subprocess.run(ninja(build, "commands", "-s", target), cwd=build, shell=True, check=True)


class Unit:
    """One compilation of the build."""

    def __init__(self, entry, build):
        self.path, self.directory, words = pathlib.Path(entry["file"]), entry["directory"], shlex.split(entry["command"])
        self.target = re.search(r"CMakeFiles/(\w+)\.dir/", words[words.index("-o") + 1])[1]
        self.is_made = self.path.is_relative_to(build)
        self.name = f"{self.target}/{self.path.name}" if self.is_made else self.path.relative_to(ROOT).as_posix()
        without = {"-o": 2, "-c": 1}
        if not self.is_made and not uses_torch(self.path, set()):  # the precompiled header costs two seconds
            words = [word for word in words if word != "-Xclang"]
            without.update({"-Winvalid-pch": 1, "-include": 2, "-include-pch": 2})
        self.words = []
        while words:
            count = without.get(words[0], 0)
            self.words += words[:1] if count == 0 else []
            del words[: max(count, 1)]
        self.words += ["-Werror", "-fsyntax-only"]
        text = self.path.read_text(encoding="utf-8") if "Unity" in self.path.parts else ""
        self.digest = hashlib.sha256(f"{self.words}{text}".replace(str(build), "").encode()).hexdigest()

    def compile(self):
        """Returns how long it took, and the errors or None."""
        begun = time.monotonic()
        done = subprocess.run(self.words, cwd=self.directory, capture_output=True, text=True, errors="replace")
        return time.monotonic() - begun, None if done.returncode == 0 else done.stderr


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--only", type=re.compile, default=re.compile(""))
    parser.add_argument("--none", action="store_true")
    parser.add_argument("--seen", type=pathlib.Path)
    parser.add_argument("--times", action="store_true")
    given = parser.parse_args()

    entries = [] if given.none else json.loads((given.build / "compile_commands.json").read_text(encoding="utf-8"))
    units = [unit for unit in (Unit(entry, given.build) for entry in entries) if given.only.search(unit.name) or given.only.search(unit.target)]
    generate(given.build, precompile=any("cmake_pch" in word for unit in units for word in unit.words))
    if given.none:
        return
    seen = set(given.seen.read_text().split()) if given.seen and given.seen.exists() else set()
    units = list({unit.digest: unit for unit in units if unit.path.is_file()}.values())
    new = [unit for unit in units if unit.digest not in seen]
    faults = 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for unit, (seconds, errors) in zip(new, pool.map(Unit.compile, new)):
            if given.times:
                print(f"{seconds:6.1f} s  {unit.name}", flush=True)
            if errors is None:
                seen.add(unit.digest)
            else:
                faults += 1
                print(f"FAILED: {unit.name} of {unit.target}\n{errors}", flush=True)
    if given.seen:
        given.seen.write_text("\n".join(sorted(seen)))
    print(f"{len(units)} files; {len(new)} compiled, the others before; {faults} faults")
    sys.exit(1 if faults or not units else 0)


if __name__ == "__main__":
    main()
