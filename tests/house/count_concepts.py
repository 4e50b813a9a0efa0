#!/usr/bin/env python3
"""Prints how many records hold one fact, and how far a save travels.

    tests/house/count_concepts.py [--trace DIR] [--coverage BUILD] [--list]

- Records: structs and classes of the product whose fields include the failures of a call (an outcome), or an
  element type and a box (an item).
- Hops: what a trace shows of one save on one rank (the last save, rank 1): messages sent, messages received from
  other ranks, and tasks handed to the trainer's thread. `cairn-launch -n 2 --trace DIR -- PROGRAM` writes traces.
- Files: product sources with executed lines, from the .gcda files of a build with --coverage, of the rank and the
  save that the program ran last. To count one save, reset the counters of gcov between two saves:
  __gcov_reset() before it, __gcov_dump() and _exit() after it.
"""
import argparse
import gzip
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRODUCT = ["base", "planning", "messages", "tracing", "formats", "state", "storage", "actors", "runtime", "training", "tools"]
FAILURES = re.compile(r"\bFailureMap\b|vector<(protocol::)?FailureGroup>|vector<TracedFailure>")
DTYPE = re.compile(r"\b(DType|TensorProperties|ScalarType)\b")
BOX = re.compile(r"\b(Box|Extents)\b")


def sources():
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.[ch]pp")):
            text = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.S)
            yield path.relative_to(ROOT), re.sub(r'"(\\.|[^"\\\n])*"', '""', text)


def records(text):
    """Yields the name and the fields of each struct and class, nested ones on their own."""
    for found in re.finditer(r"\b(?:struct|class)\s+(?:CAIRN_\w+(?:\([^)]*\))?\s+)?(\w+)(?:\s+final)?\s*(?::[^;{}]*)?\{", text):
        depth, field, fields = 1, "", []
        for letter in text[found.end():]:
            if letter == "{":
                depth += 1
            elif letter == "}":
                depth -= 1
                if depth == 0:
                    break
                # A body ends a function or a nested type; an initialiser ends at its semicolon.
                if depth == 1 and re.search(r"\)|\b(struct|class|enum|union)\b", field):
                    field = ""
            elif depth == 1:
                field += letter
                if letter == ";":
                    if not re.search(r"\b(using|static|friend|typedef|return)\b|\)\s*(const|noexcept|override|= 0)?\s*;", field):
                        fields.append(" ".join(field.split()))
                    field = ""
        yield found.group(1), fields


def count_records():
    outcomes, items = [], []
    for path, text in sources():
        for name, fields in records(text):
            if any(FAILURES.search(field) for field in fields):
                outcomes.append(f"{path}: {name}")
            if any(DTYPE.search(field) for field in fields) and any(BOX.search(field) for field in fields):
                items.append(f"{path}: {name}")
    return outcomes, items


def count_hops(command, directory):
    def ask(*question):
        return json.loads(subprocess.run([command, "trace", *question, "--json"], check=True, stdout=subprocess.PIPE).stdout)
    save = [call for call in ask("list", directory) if call["operation"] == "save"][-1]["save_id"]
    events = ask("messages", directory, "--attempt", save, "--rank", "1")
    sent = sum(event["kind"] == "sent" for event in events)
    received = sum(event["kind"] == "handled" and "peer" in event for event in events)
    posted = sum(event["kind"] == "handled" and event["actor"] in ("planner", "storage") for event in events)
    return sent + received + posted


def count_files(build):
    executed = set()
    with tempfile.TemporaryDirectory() as place:
        for data in sorted(pathlib.Path(build).resolve().rglob("*.gcda")):
            subprocess.run(["gcov", "--json-format", str(data)], cwd=place, check=True, stdout=subprocess.DEVNULL)
        for told in pathlib.Path(place).glob("*.json.gz"):
            for file in json.loads(gzip.decompress(told.read_bytes()))["files"]:
                path = pathlib.Path(file["file"]).resolve()
                if any(line["count"] for line in file["lines"]) and ROOT in path.parents:
                    path = path.relative_to(ROOT)
                    if path.parts[0] in PRODUCT:
                        executed.add(path)
    return sorted(executed)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", help="a directory with the traces of a job of at least two ranks")
    parser.add_argument("--coverage", help="a build whose programs have left .gcda files")
    parser.add_argument("--cairn", default=str(ROOT / "build/release/bin/cairn"), help="the command that reads traces")
    parser.add_argument("--list", action="store_true", help="list the records and files")
    asked = parser.parse_args()
    outcomes, items = count_records()
    counts = [("records that hold an outcome", outcomes), ("records that hold an item", items)]
    if asked.coverage:
        counts.append(("files on the way", count_files(asked.coverage)))
    for what, found in counts:
        print(f"{what}: {len(found)}")
        if asked.list:
            print("".join(f"  {entry}\n" for entry in found), end="")
    if asked.trace:
        print(f"hops of one save on rank 1: {count_hops(asked.cairn, asked.trace)}")


if __name__ == "__main__":
    sys.exit(main())
