#!/usr/bin/env python3
"""Reads the plants of this folder: bugs that the tests must find. Run by itself, it checks that each plant applies.

plants/<folder>.toml has a table [[plant]] for each bug in a folder of the product: `id`; `breaks`, one sentence on what a user
would see; `file`; `original`, a text that occurs in the file exactly once; and `mutant`, the text that replaces it, in which
PLANTED is true while the plant is active. A plant that changes several places has a table [[plant.also]] for each further one.
"""

import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLANTS_MIN = 80
FOLDERS = ["base", "planning", "messages", "tracing", "formats", "storage", "actors", "state", "runtime", "training", "tools"]
HEADER = "tests/mutations/planted.hpp"


class Plant:
    def __init__(self, folder, table):
        self.folder = folder
        self.id = table["id"]
        self.breaks = table["breaks"]
        self.edits = [(edit["file"], edit["original"], edit["mutant"]) for edit in [table, *table.get("also", [])]]


def read_plants():
    plants = []
    for path in sorted(pathlib.Path(__file__).with_name("plants").glob("*.toml")):
        with open(path, "rb") as file:
            plants += [Plant(path.stem, table) for table in tomllib.load(file)["plant"]]
    return plants


def faults_of(plants, root=ROOT):
    """What keeps plants from being applied, one line each."""
    faults = []
    ids = [plant.id for plant in plants]
    faults += [f"the id {name} is used twice" for name in sorted(set(ids)) if ids.count(name) > 1]
    texts = {}
    for plant in plants:
        if not re.fullmatch(r"[a-z0-9_]+", plant.id) or not plant.breaks.endswith("."):
            faults.append(f"{plant.id}: an id has lower-case letters, digits and '_'; `breaks` is a sentence")
        for name, original, _ in plant.edits:
            path = root / name
            if name.partition("/")[0] != plant.folder or not path.is_file():
                faults.append(f"{plant.id}: there is no {name} in {plant.folder}/")
                continue
            text = texts.setdefault(name, path.read_text(encoding="utf-8"))
            if text.count(original) != 1:
                faults.append(f"{plant.id}: {name} has its original text {text.count(original)} times, not once: {original!r}")
        if not any("PLANTED" in mutant for _, _, mutant in plant.edits):
            faults.append(f"{plant.id}: its mutant never asks whether it is PLANTED")
    return faults


def applied(plants, name, text):
    """The text of file `name` with all plants in it, each behind its switch. Two that overlap are an error."""
    edits = []
    for plant in plants:
        for file, original, mutant in plant.edits:
            if file == name:
                begin = text.index(original)
                switch = f'::cairn::planted::is_on("{plant.id}")'
                edits.append((begin, begin + len(original), mutant.replace("PLANTED", switch), plant.id))
    edits.sort(reverse=True)
    for later, earlier in zip(edits, edits[1:]):
        if earlier[1] > later[0]:
            raise SystemExit(f"{name}: the plants {earlier[3]} and {later[3]} overlap")
    for begin, end, mutant, _ in edits:
        text = text[:begin] + mutant + text[end:]
    return f"#include <cairn/{HEADER}>\n#line 1\n{text}" if edits else text


def main():
    plants = read_plants()
    faults = faults_of(plants)
    if not faults:
        for name in sorted({edit[0] for plant in plants for edit in plant.edits}):
            applied(plants, name, (ROOT / name).read_text(encoding="utf-8"))
    faults += [f"there is no plant in {folder}/" for folder in FOLDERS if folder not in {plant.folder for plant in plants}]
    if len(plants) < PLANTS_MIN:
        faults.append(f"there are {len(plants)} plants, and {PLANTS_MIN} are needed")
    for fault in faults:
        print(fault)
    print(f"{len(plants)} plants, {len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
