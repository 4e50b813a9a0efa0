"""Which tests run: the entries of CTest, the cases that test programs list with the options that CTest gives them, and the tests
that unittest finds in the scripts that CTest starts."""

import ast
import fnmatch
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from layers import ROOT

PARTS = ["CAIRN_WITH_S3", "CAIRN_WITH_TRAINING", "CAIRN_WITH_ZSTD", "CAIRN_BUILD_EXAMPLES", "CAIRN_BUILD_TESTS"]
ADD_TEST = re.compile(r"^add_test\(\[=*\[(.+?)\]=*\] (.*)\)$", re.MULTILINE)
WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')
PROGRAM = re.compile(r"cairn_(\w+)_tests")

# The text of C++ without comments: a match is a comment, or a literal that may look like one.
COMMENT_OR_LITERAL = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', re.DOTALL)
CASE = re.compile(r'TEST_CASE(?:_FIXTURE\(\s*\w+,\s*|_TEMPLATE\(|\()\s*"((?:[^"\\]|\\.)*)"([^{;]*)\{\s*(\w*)')
NOT_RUN = re.compile(r"skip|may_fail|should_fail|expected_failures")
SUITE_NOT_RUN = re.compile(r"TEST_SUITE(?:_BEGIN)?\([^)]*\bskip")

# Imports a script of tests, and prints each test that would run, and each class of which all would.
LIST_PYTHON = """
import importlib.util, json, os, sys, unittest
path = sys.argv[1]
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(path))
spec = importlib.util.spec_from_file_location("listed", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
loader = unittest.TestLoader()
loader.testNamePatterns = ["*" + b + "*" for a, b in zip(sys.argv, sys.argv[1:]) if a == "-k"] or None
def each(suite):
    for test in suite:
        yield from each(test) if isinstance(test, unittest.TestSuite) else [test]
classes = [word for word in sys.argv[1:] if isinstance(getattr(module, word, None), type)]
tests = [t for t in each(loader.loadTestsFromModule(module)) if not classes or type(t).__name__ in classes]
skipped = lambda t: any(getattr(x, "__unittest_skip__", False) for x in (type(t), getattr(t, t._testMethodName)))
print(json.dumps([[type(t).__name__, t._testMethodName, skipped(t)] for t in tests]))
"""


def output_of(command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=300, **options)
    return done.returncode, done.stdout, done.stderr


def without_comments(text):
    return COMMENT_OR_LITERAL.sub(lambda found: found[0] if found[0][0] in "\"'R" else " ", text)


@functools.lru_cache(maxsize=None)
def cases_in(path):
    """The cases of a C++ file that doctest would run, without a look at conditions of the preprocessor: none within one counts."""
    depth, lines = 0, []
    for line in without_comments(path.read_text(encoding="utf-8")).splitlines():
        directive = re.match(r"\s*#\s*(if|endif)", line)
        if directive:
            depth += 1 if directive[1] == "if" else -1
        elif depth == 0:
            lines.append(line)
    text = "\n".join(lines)
    if SUITE_NOT_RUN.search(text):
        return []
    return [name for name, decorators, begin in CASE.findall(text)
            if not NOT_RUN.search(decorators) and begin not in ("return", "skip_case")]


def matches(name, patterns):
    """As doctest compares: patterns separated by commas, without regard to case."""
    return any(fnmatch.fnmatchcase(name.lower(), re.sub(r"\[", "[[]", pattern.lower())) for pattern in patterns.split(","))


def chosen(cases, options):
    for option, value in (option.partition("=")[::2] for option in options):
        if option == "-tc":
            cases = {case for case in cases if matches(case, value)}
        elif option == "-tce":
            cases = {case for case in cases if not matches(case, value)}
    return cases


def ends_at_once(node):
    """Whether a function of Python does nothing but skip or return."""
    body = [each for each in node.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
    if not body or isinstance(body[0], (ast.Return, ast.Pass)):
        return True
    return isinstance(body[0], (ast.Raise, ast.Expr)) and re.search(r"skipTest|SkipTest", ast.unparse(body[0])) is not None


class RunningTests:
    """`names`: the tests of each folder. `entries`: those of CTest. `faults`: what does not say which tests it has. `why_not`: why
    this build cannot tell, or ""."""

    def __init__(self, build=None):
        self.names, self.entries, self.faults, self.why_not = {}, set(), [], ""
        if build:
            self.look(pathlib.Path(build), built=True)
            return
        with tempfile.TemporaryDirectory() as directory:
            code, _, errors = output_of(["cmake", "-S", ROOT, "-B", directory, "-G", "Ninja", "-DCMAKE_UNITY_BUILD=OFF"])
            if code != 0:
                self.faults.append("the tree cannot be configured, to see which tests run: " + errors.strip()[-500:])
            else:
                self.look(pathlib.Path(directory), built=False)

    def look(self, build, built):
        cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
        parts = [part for part in PARTS if re.search(rf"^{part}:\w+=(ON|TRUE|1)$", cache, re.MULTILINE) is None]
        if parts or not re.search(r"^CAIRN_SANITIZE:\w+=$", cache, re.MULTILINE):
            self.why_not = "this build leaves out tests (" + (", ".join(parts) or "CAIRN_SANITIZE") + ")"
            return
        _, listed, _ = output_of(["ctest", "--test-dir", build, "--show-only=json-v1"])
        properties = {entry["name"]: {each["name"]: each["value"] for each in entry.get("properties", [])}
                      for entry in json.loads(listed)["tests"]}
        commands = {}
        for path in build.rglob("CTestTestfile.cmake"):
            for name, words in ADD_TEST.findall(path.read_text(encoding="utf-8")):
                commands[name] = [re.sub(r"\\(.)", r"\1", word) for word in WORD.findall(words)]
        sources = {} if built else self.sources_of(build)
        for name, of_entry in properties.items():
            if of_entry.get("DISABLED") or name not in commands:
                continue
            self.entries.add(name)
            self.add(commands[name], of_entry, sources if not built else None)

    @staticmethod
    def sources_of(build):
        """The sources of each test program."""
        sources = {}
        for unit in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
            program = re.search(r"/(cairn_\w+_tests)\.dir/", unit["command"])
            if program:
                sources.setdefault(program[1], set()).add(pathlib.Path(unit["file"]))
        return sources

    def add(self, words, properties, sources):
        environment = {**os.environ, **dict(pair.split("=", 1) for pair in properties.get("ENVIRONMENT", []))}
        by_script = False
        for at, word in enumerate(words):
            if word.endswith("_test.py"):
                by_script = True  # which gives test programs options of its own
                self.add_python(pathlib.Path(word), words[at + 1:], environment)
            elif program := PROGRAM.fullmatch(pathlib.Path(word).name):
                options = [] if by_script else [option for option in words[at + 1:] if option.startswith("-")]
                folder = self.names.setdefault(program[1], set())
                if sources is None:
                    folder.update(chosen(self.listed_by(word), options))
                else:
                    cases = {case for path in sources.get(program[0], []) for case in cases_in(path)}
                    folder.update(chosen({case.replace('\\"', '"') for case in cases}, options))

    @functools.lru_cache(maxsize=None)  # a program with LibTorch starts slowly
    def listed_by(self, program):
        command = [program, "-ltc", "--no-colors=true"]
        try:
            code, text, _ = output_of(command)
        except OSError as error:
            code, text = -1, str(error)
        found = re.search(r"listing all test case names\n=+\n(.*?)^=+\n.*unskipped test cases", text, re.MULTILINE | re.DOTALL)
        if code != 0 or not found:
            self.faults.append(f"{' '.join(command)} does not list its test cases: it ended with {code}")
            return set()
        names = found[1].splitlines()
        return {*names, *(re.sub(r"<[^<]*>$", "", name) for name in names)}  # a case of a template is named after its type, too

    def add_python(self, script, words, environment):
        code, text, errors = output_of([sys.executable, "-c", LIST_PYTHON, script, *words], env=environment)
        if code != 0 or not text.startswith("["):
            self.faults.append(f"{script} does not list its tests: {(errors.strip().splitlines() or ['no output'])[-1]}")
            return
        tree = ast.parse(script.read_text(encoding="utf-8"))
        dead = {(group.name, each.name) for group in ast.walk(tree) if isinstance(group, ast.ClassDef)
                for each in group.body if isinstance(each, ast.FunctionDef) and ends_at_once(each)}
        folder = self.names.setdefault(script.parent.name, set())
        weak = set()
        for group, test, skipped in json.loads(text):
            runs = not skipped and not {(group, test), (group, "setUp"), (group, "setUpClass")} & dead
            if runs:
                folder.add(test)
            else:
                weak.add(group)
        folder.update({group for group, _, _ in json.loads(text)} - weak)
