#!/usr/bin/env python3
"""The mutation matrix: which test finds which planted bug.

usage: run.py [--build DIR] [--plants REGEX] [--tests REGEX] [--first] [--jobs N] [--timeout SECONDS] [--dry-run] [CMAKE_OPTION…]

Copies the tree to DIR/source (default: build/mutations), puts all plants into the copy, each behind a switch, and builds its
tests once. Then runs them for each plant, with CAIRN_PLANT naming it: the programs of its own folder, the simulation and the other
unit tests, and the tests with rank processes for plants that still live. Prints plant x test. Ends with 1 if a plant lives, or if
one does not apply. Results stay in DIR/results.jsonl: a run that is started again does only what is missing, or has changed.

  --plants REGEX   only plants whose ids match
  --tests REGEX    only tests of CTest whose names match
  --first          stops at the first test that finds a plant
  --jobs N         tests that run at the same time (default: the number of cores)
  --timeout S      the longest time of one test; at most ten times that without a plant (default: 900)
  --dry-run        configures and builds, and lists what would run
CMAKE_OPTION: such as -DCMAKE_BUILD_TYPE=Debug; the default is a Release of unity batches.
"""

import argparse
import concurrent.futures
import contextlib
import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

from plants import ROOT, applied, faults_of, read_plants

SKIPPED = 77
SPARE_SECONDS = 30
# Folders whose tests cover another one's sources first; others are covered by tests of their own name.
OWN_TESTS = {"actors": "actors|protocol", "formats": "state|storage", "state": "state|storage", "storage": "storage|runtime|s3"}
LEFT_OUT = re.compile(r"house|install|large|gpu|pytorch")


class Test:
    """An entry of CTest."""

    def __init__(self, entry):
        properties = {each["name"]: each["value"] for each in entry.get("properties", [])}
        self.name = entry["name"]
        self.command = entry.get("command", [])
        self.labels = properties.get("LABELS", [])
        self.environment = dict(pair.split("=", 1) for pair in properties.get("ENVIRONMENT", []))
        self.directory = properties.get("WORKING_DIRECTORY")
        self.has_fixtures = "FIXTURES_REQUIRED" in properties
        self.is_process = "process" in self.labels
        program = pathlib.Path(self.command[0]).name if self.command else ""
        self.is_doctest = re.fullmatch(r"cairn_\w+_tests", program) is not None

    def is_of(self, folder):
        return re.match(rf"({OWN_TESTS.get(folder, folder)})(_|\.|$)", self.name) is not None

    def rank_for(self, plant):
        return (self.is_process, not self.is_of(plant.folder), "simulation" not in self.labels, self.name)


def say(*text):
    print(*text, flush=True)


def output_of(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def write_if_changed(path, content):
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def copy_tree(source, plants):
    """Copies the tree with all plants in it. Files that have not changed keep their times, so that little is built again."""
    listed = output_of(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard", "-z"])
    names = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    planted = {edit[0] for plant in plants for edit in plant.edits}
    for name in sorted(names):
        content = (ROOT / name).read_bytes()
        if name in planted:
            content = applied(plants, name, content.decode()).encode()
        write_if_changed(source / name, content)
        (source / name).chmod((ROOT / name).stat().st_mode)
    for path in source.rglob("*"):
        if path.is_file() and path.relative_to(source).as_posix() not in names and "__pycache__" not in path.parts:
            path.unlink()


def build(source, binary, options, jobs, wanted):
    defaults = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_UNITY_BUILD=ON", "-DCAIRN_BUILD_BENCHMARKS=OFF",
                "-DCAIRN_BUILD_EXAMPLES=OFF"]
    subprocess.run(["cmake", "-S", source, "-B", binary, "-G", "Ninja", *defaults, *options], check=True, stdout=subprocess.DEVNULL)
    names = {test.name for test in tests_of(binary, wanted)}
    files = output_of(["ninja", "-C", binary, "-t", "targets", "all"])
    programs = set(re.findall(r"^(bin/[\w-]+):", files, re.MULTILINE))
    text = "\n".join(path.read_text() for path in binary.rglob("CTestTestfile.cmake"))
    used = set()
    for name, command in re.findall(r"^add_test\(\[=*\[([^\]]+)\]=*\] (.*)\)$", text, re.MULTILINE):
        if name in names:
            used |= {program for program in programs if f"/{program}\"" in command}
    subprocess.run(["ninja", "-C", binary, "-j", str(jobs), *sorted(used)], check=True)


def tests_of(binary, wanted):
    listed = output_of(["ctest", "--test-dir", binary, "--show-only=json-v1"])
    tests = [Test(entry) for entry in json.loads(listed)["tests"]]
    return [test for test in tests if wanted(test.name) and not any(LEFT_OUT.search(label) for label in test.labels)]


class Matrix:
    def __init__(self, binary, results, options):
        self.binary, self.results, self.options = binary, results, options
        self.known = {}
        self.lock = threading.Lock()
        self.fixtures_lock = threading.Lock()  # they have a place in the build folder
        self.digests = {}
        if results.is_file():
            for line in results.read_text().splitlines():
                it = json.loads(line)
                self.known[it["key"]] = it

    def digest(self, path):
        if path not in self.digests:
            with open(path, "rb") as file:
                self.digests[path] = hashlib.file_digest(file, "sha256").hexdigest()
        return self.digests[path]

    def key(self, plant, test):
        """Changes if a program or script that the test runs has changed."""
        text = [plant.id if plant else "", *test.command]
        text += [self.digest(word) for word in test.command if os.path.isfile(word) and not word.startswith("/usr/")]
        return hashlib.sha256("\0".join(text).encode()).hexdigest()[:24]

    def result(self, plant, test, bound):
        """A dict with `outcome`: passed, failed, crashed, timeout or skipped; and `cases`, those of doctest that failed."""
        key = self.key(plant, test)
        with self.lock:
            if key in self.known:
                return self.known[key]
        with self.fixtures_lock if test.has_fixtures else contextlib.nullcontext():
            begin = time.monotonic()
            outcome, cases = self.run(plant, test, bound)
        it = {"key": key, "plant": plant.id if plant else "", "test": test.name, "outcome": outcome, "cases": cases,
              "seconds": round(time.monotonic() - begin, 1)}
        with self.lock:
            self.known[key] = it
            with open(self.results, "a", encoding="utf-8") as file:
                file.write(json.dumps(it) + "\n")
        return it

    def run(self, plant, test, bound):
        environment = {**os.environ, "CAIRN_PLANT": plant.id if plant else "", "PYTHONDONTWRITEBYTECODE": "1", **test.environment}
        command = test.command
        if test.has_fixtures:
            command = ["ctest", "--test-dir", self.binary, "-R", f"^{re.escape(test.name)}$", "--timeout", str(int(bound))]
        with tempfile.TemporaryDirectory() as directory:
            os.chmod(directory, 0o755)  # some cases look as another user
            report = pathlib.Path(directory) / "report.xml"
            if test.is_doctest and not test.has_fixtures:
                command = [*command, "--reporters=xml", f"--out={report}"]
            process = subprocess.Popen(command, cwd=test.directory or self.binary, env={**environment, "TMPDIR": directory},
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                       start_new_session=True)
            try:
                code = process.wait(bound)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # rank processes, too
                process.wait()
            cases = failed_cases(report.read_text(errors="replace")) if report.is_file() else []
        if code is None:
            return "timeout", cases
        if code in (0, SKIPPED):
            return ("skipped" if code else "passed"), cases
        return ("crashed" if code < 0 else "failed"), cases


def failed_cases(report):
    """Of a report of doctest's, which may be cut off. A case that has not ended is the one that crashed or hung."""
    cases = []
    for name, body in re.findall(r'<TestCase name="([^"]*)"(.*?)(?=<TestCase |\Z)', report, re.DOTALL):
        if 'skipped="true"' not in body and 'test_case_success="true"' not in body:
            cases.append(name)
    return cases


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "mutations")
    parser.add_argument("--plants", type=re.compile, default=re.compile(""))
    parser.add_argument("--tests", type=re.compile, default=re.compile(""))
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("--dry-run", action="store_true")
    options, for_cmake = parser.parse_known_args()
    plants = read_plants()
    if faults := faults_of(plants):
        say("\n".join(faults))
        return 1
    home = options.build.resolve()
    source, binary = home / "source", home / "binary"
    copy_tree(source, plants)
    build(source, binary, for_cmake, options.jobs, options.tests.search)
    matrix = Matrix(binary, home / "results.jsonl", options)
    plants = [plant for plant in plants if options.plants.search(plant.id)]
    tests = [test for test in tests_of(binary, options.tests.search) if test.command]
    if options.dry_run:
        say("\n".join(f"{test.name}: {' '.join(test.command)}" for test in tests))
        return 0

    say(f"=== without a plant: {len(tests)} tests")
    bounds = {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for test, it in zip(tests, pool.map(lambda each: matrix.result(None, each, options.timeout), tests)):
            say(f"{it['seconds']:7.1f} s  {it['outcome']:8}{test.name}")
            if it["outcome"] == "passed":
                bounds[test.name] = min(options.timeout, 10 * it["seconds"] + SPARE_SECONDS)
    tests = [test for test in tests if test.name in bounds]  # the others say nothing about plants

    found = {}

    def judge(plant):
        finders = []
        for test in sorted(tests, key=lambda each: each.rank_for(plant)):
            if finders and (options.first or test.is_process):
                break
            it = matrix.result(plant, test, bounds[test.name])
            if it["outcome"] not in ("passed", "skipped"):
                finders.append(test)
                cases = f": {'; '.join(it['cases'][:3])}{' …' if len(it['cases']) > 3 else ''}" if it["cases"] else ""
                say(f"{plant.id}  {it['outcome']} in {test.name}{cases}")
        if not finders:
            say(f"{plant.id}  LIVES: {plant.breaks}")
        found[plant.id] = finders

    say(f"=== {len(plants)} plants")
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(judge, plants))
    say("=== plant x test")
    lives = elsewhere = 0
    for plant in plants:
        finders = found[plant.id]
        own = any(test.is_of(plant.folder) or "simulation" in test.labels for test in finders)
        lives += not finders
        elsewhere += bool(finders) and not own
        mark = "" if own else "  (not by its own folder or the simulation)" if finders else "LIVES"
        say(f"{plant.folder:9} {plant.id:64} {' '.join(test.name for test in finders)}{mark}")
    say(f"{len(plants)} plants, {lives} live, {elsewhere} found by other folders only")
    return 1 if lives else 0


if __name__ == "__main__":
    sys.exit(main())
