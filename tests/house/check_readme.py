#!/usr/bin/env python3
"""Checks that the documents are true where that can be checked.

- Code that names the file it is from is in that file.
- Files, functions and links to which a document refers exist.
- promises.toml names a test for each guarantee of the README, each row of its table of stores, each row
  of the table of failures, each launcher, error and setting of docs/launching.md, and each row of the
  tables of docs/building.md; and these tests run. So does a test for each row of behaviours.
- Rules for alerts name metrics that exist, and do what alerts.yml says, according to promtool if it is installed.
- README, the glossary and the command stay short.

usage: check_readme.py [BUILD]      BUILD: a build folder, whose tests are asked which of their cases run. Without one, a new folder
is configured, and the sources of the tests are read.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

from layers import ROOT, finish, sources
from running_tests import RunningTests

README_LINES_MAX = 180
GLOSSARY_ENTRIES_MAX = 40
TOOLS_LINES_MAX = 8500

BLOCK = re.compile(r"^```(?:cpp|python)\n(?://|#) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Text in backquotes that looks like a file of the tree, perhaps with a name that is in it:
# `actors/rank_supervisor.cpp` or `actors/rank_supervisor.cpp: RankSupervisor`.
REFERENCE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:hpp|cpp|md|sh|py|proto|toml))(?::\s([\w:~]+))?`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
COMMENT = re.compile(r"//.*$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

PROMISES = "tests/house/promises.toml"
GUARANTEES = re.compile(r"^## Guarantees$(.*?)^## ", re.MULTILINE | re.DOTALL)
GUARANTEE = re.compile(r"^- (?:\*\*(.+?)\.\*\*)?(.*)$", re.MULTILINE)
FAILURES = re.compile(r"^## What happens when …$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
STORES = re.compile(r"^## Stores and formats$(.*?)^## ", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| (.+?) \|.*\n(?!\|-)", re.MULTILINE)
ITEM = re.compile(r"^- ((?!\*\*).*)$", re.MULTILINE)

ALERTS = re.compile(r"^```yaml\n(groups:.*?)^```$", re.MULTILINE | re.DOTALL)
ALERT = re.compile(r"- alert: (\w+)\n +expr: (\S.*)")
METRIC = re.compile(r"cairn_\w+")


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def documents():
    names = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").glob("*.md"))]
    return ["README.md", "CONTRIBUTING.md", "storage/FORMAT.md", *names]


def without_indent(text):
    return "\n".join(line.strip() for line in text.strip().splitlines())


def anchors_of(name):
    """The anchors that GitHub gives to headings."""
    headings = HEADING.findall(FENCED.sub("", text_of(name)))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def found(document, name):
    """The path of a file that a document names from the root or from its own folder, or None."""
    for path in (ROOT / name, (ROOT / document).parent / name):
        if path.is_file():
            return path
    return None


def code_of(path):
    return COMMENT.sub("", path.read_text(encoding="utf-8"))


def document_faults(document):
    """The faults of one document, and how many things in it were checked."""
    text, faults, checked = text_of(document), [], 0
    for name, code in BLOCK.findall(text):
        checked += 1
        if not (ROOT / name).is_file():
            faults.append(f"{document}: {name}, from which code is shown, does not exist")
        elif without_indent(code) not in without_indent(text_of(name)):
            faults.append(f"{document}: the code from {name} differs from the code there")
    for name, symbol in REFERENCE.findall(text):
        checked += 1
        path = found(document, name)
        if path is None:
            faults.append(f"{document}: {name} does not exist")
        elif symbol and not re.search(rf"(?<![\w:]){re.escape(symbol)}(?!\w)", code_of(path)):
            faults.append(f"{document}: {name} does not contain {symbol}")
    for link in LINK.findall(FENCED.sub("", text)):
        if "://" in link:
            continue
        checked += 1
        name, _, anchor = link.partition("#")
        target = ((ROOT / document).parent / name).resolve() if name else ROOT / document
        if not target.is_file():
            faults.append(f"{document}: the link to {link} leads nowhere")
        elif anchor and anchor not in anchors_of(target.relative_to(ROOT)):
            faults.append(f"{document}: {link} names a section that does not exist")
    return faults, checked


def guarantees():
    """The bold words of each guarantee, or its first line if none are bold."""
    section = GUARANTEES.search(text_of("README.md"))
    return [bold or line for bold, line in GUARANTEE.findall(section.group(1))] if section else []


def failure_rows():
    section = FAILURES.search(text_of("docs/failures.md"))
    return ROW.findall(section.group(1)) if section else []


def store_rows():
    section = STORES.search(text_of("README.md"))
    return ROW.findall(section.group(1)) if section else []


def cases_of(document):
    """The first cells of all tables, and the items of lists but those with a bold beginning."""
    text = text_of(document)
    return ROW.findall(text) + ITEM.findall(text)


def promise_faults(running):
    """What is wrong with the promised tests, and how many tests were looked for."""
    faults, named = list(running.faults), 0
    scripts = {path.relative_to(ROOT / "tests").as_posix() for path in sources("tests", ".sh", ".py")}
    tests_of = {**running.names, "ctest": running.entries, "scripts": scripts}
    with open(ROOT / PROMISES, "rb") as file:
        promises = tomllib.load(file)
    rows = [f"{group}.{row}" for group, count in promises.pop("behaviours").items() for row in range(1, count + 1)]
    if running.why_not:
        print(f"which of the promised tests run is not asked: {running.why_not}")
    else:
        every = " ".join(name for names in running.names.values() for name in names)
        faults += [f"{PROMISES}: no test that runs has row {row} of behaviours in its name" for row in rows
                   if not re.search(rf"\b{re.escape(row)}\b", every)]
    for kind, document, names in (("guarantees", "README.md", guarantees()),
                                  ("stores", "README.md", store_rows()),
                                  ("failures", "docs/failures.md", failure_rows()),
                                  ("launching", "docs/launching.md", cases_of("docs/launching.md")),
                                  ("building", "docs/building.md", cases_of("docs/building.md"))):
        tests_by_name = promises.pop(kind, {})
        if not names:
            faults.append(f"{document}: no {kind} were found")
        for name in names:
            tests = tests_by_name.pop(name, {})
            if not any(tests.values()):
                faults.append(f"{document}: {PROMISES} has no test for '{name}'")
            for folder, cases in tests.items():
                named += len(cases)
                faults += [f"{PROMISES}: no test '{case}' of tests/{folder} runs, which should stand for '{name}'" for case in cases
                           if case not in tests_of.get(folder, ()) and not (running.why_not and folder != "scripts")]
        faults += [f"{PROMISES}: {document} has no '{name}' among its {kind}" for name in tests_by_name]
    faults += [f"{PROMISES}: '{kind}' is unknown" for kind in promises]
    return faults, named


def alert_faults():
    """What is wrong with the rules for alerts, and how many there are."""
    document, faults = "docs/operations.md", []
    (rules,) = ALERTS.findall(text_of(document))
    metrics = text_of("runtime/observation/metrics.hpp")
    alerts = ALERT.findall(rules)
    if len(alerts) < 2 or len(alerts) != rules.count("alert:"):
        faults.append(f"{document}: {len(alerts)} of {rules.count('alert:')} alerts have an expression, and two are needed")
    for name, expression in alerts:
        faults += [f"{document}: {name}: there is no metric {metric}" for metric in METRIC.findall(expression) if metric not in metrics]
    if promtool := shutil.which("promtool"):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "rules.yml").write_text(rules, encoding="utf-8")
            shutil.copy(ROOT / "tests" / "house" / "alerts.yml", folder)
            for command in (["check", "rules", "rules.yml"], ["test", "rules", "alerts.yml"]):
                done = subprocess.run([promtool, *command], cwd=folder, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    faults.append(f"{document}: promtool: {done.stdout.strip()} {done.stderr.strip()}")
    return faults, len(alerts)


def length_faults():
    lines = len([line for line in text_of("README.md").splitlines() if not line.startswith("<!-- ")])
    entries = len([line for line in text_of("docs/glossary.md").splitlines() if line.startswith("| ")]) - 1
    faults = []
    if lines > README_LINES_MAX:
        faults.append(f"README.md has {lines} lines: at most {README_LINES_MAX}. Move details to docs/")
    if entries > GLOSSARY_ENTRIES_MAX:
        faults.append(f"docs/glossary.md has {entries} entries: at most {GLOSSARY_ENTRIES_MAX}. Use the field's terms")
    tools = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sources("tools", ".cpp", ".hpp"))
    if tools > TOOLS_LINES_MAX:
        faults.append(f"tools/ has {tools} lines of C++: at most {TOOLS_LINES_MAX}. The command shall get better, not larger")
    return faults


def main():
    faults, checked = [], 0
    for document in documents():
        more, count = document_faults(document)
        faults += more
        checked += count
    more, named = promise_faults(RunningTests(*sys.argv[1:]))
    wrong, alerts = alert_faults()
    finish("readme", faults + more + wrong + length_faults(), checked + named + alerts)


if __name__ == "__main__":
    main()
