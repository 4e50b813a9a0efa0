#!/usr/bin/env python3
"""Each folder, and each part of one, includes only those below it, and only the libraries that it may know; tools/ includes public headers;
none changes the environment. A file implements the header of its name, and no such pair includes itself through others. No folder holds
more than a fifth of the product.
"""

import collections
import graphlib
import re

from layers import FOLDERS, FORBIDDEN_FOLDERS, FORBIDDEN_IN_PUBLIC, FORBIDDEN_LIBRARIES, INTERNAL_FOR_TOOLS, NEEDS_DOCTEST, PARTS, ROOT
from layers import finish, includes, own_part, public_headers, relative, sources

# The one header of `actors` that its parts share with users: plain numbers.
SHARED_WITH_PARTS = {"actors/options.hpp"}
# The facades of folders: in its own folder, only its source includes one.
FACADES = {"actors/rank_runtime.hpp"}


def rules_for(name, table):
    """The entry of the deepest folder that holds `name` and has one."""
    folders = [folder for folder in table if name.startswith(folder + "/")]
    return table[max(folders, key=len)] if folders else []


def part_of(name):
    """The part of its folder that holds this file."""
    words = name.split("/")
    return words[1] if len(words) > 2 else ""


def lies_above(other, name):
    """Whether a file lies in a folder, or in a part of the same folder, above that of another."""
    theirs, own = own_part(other), own_part(name)
    if theirs != own:
        return FOLDERS.index(theirs) > FOLDERS.index(own)
    order = [] if other in SHARED_WITH_PARTS else PARTS.get(own, [])
    parts = part_of(other), part_of(name)
    return all(part in order for part in parts) and order.index(parts[0]) > order.index(parts[1])


def place_faults(paths):
    """Each part has its place in the order, each source the header of its name. No folder, without those in it, outgrows the others."""
    lines = collections.Counter()
    for path in paths:
        name = relative(path)
        if part_of(name) not in PARTS.get(own_part(name), [part_of(name)]):
            yield f"{name}: PARTS in layers.py does not list its folder"
        header = name.removesuffix(".cpp") + ".hpp"
        if (path.suffix == ".cpp" and path.with_suffix(".hpp").is_file() and header not in NEEDS_DOCTEST
                and f"cairn/{header}" not in [included for _, included, _ in includes(path)]):
            yield f"{name}: does not include the header of its name"
        lines[relative(path.parent)] += len(path.read_text(encoding="utf-8").splitlines())
    for folder, count in lines.items():
        if count * 5 > lines.total():
            yield f"{folder}/ has {count} of {lines.total()} lines, more than a fifth: split it"


def circle_faults(paths):
    """A header and the source of its name are one thing to read. What it includes lies below it, so nothing there includes it."""
    below = {}
    for path in paths:
        one = relative(path.with_suffix(""))
        others = (included.removeprefix("cairn/") for _, included, _ in includes(path))
        below.setdefault(one, []).extend(other[:-4] for other in others if other.endswith(".hpp") and other[:-4] != one)
    while True:
        try:
            graphlib.TopologicalSorter(below).prepare()
            return
        except graphlib.CycleError as error:
            circle = error.args[1]
            yield "a circle: " + " includes ".join(reversed(circle))
            # Goes on without one of its arrows, to find the next circle.
            below[circle[1]] = [other for other in below[circle[1]] if other != circle[0]]


def faults_of(path):
    name = relative(path)
    folder = own_part(name)
    for line, included, quoted in includes(path):
        where = f"{name}:{line}: includes {included}"
        if quoted:
            yield f'{where} in quotes: write <cairn/folder/file.hpp>'
        if included.startswith("cairn/"):
            target = re.sub(r"\.pb\.h$", ".proto", included[len("cairn/"):])  # generated from it
            other = own_part(target)
            if not (ROOT / target).is_file():
                yield f"{where}, which is not there"
            elif other not in FOLDERS:
                yield f"{where}, which is no part of the library"
            elif target in FACADES and other == folder and not target.startswith(name.rpartition(".")[0] + "."):
                yield f"{where}, the facade of {folder}/"
            elif lies_above(target, name):
                yield f"{where}: {target.rpartition('/')[0]}/ lies above {name.rpartition('/')[0]}/"
            elif any(target.startswith(f"{forbidden}/") for forbidden in rules_for(name, FORBIDDEN_FOLDERS)):
                yield f"{where}: this part must not know {target.rpartition('/')[0]}/"
        for pattern in rules_for(name, FORBIDDEN_LIBRARIES):
            if re.match(pattern, included):
                yield f"{where}: a library that {folder}/ must not know here"


def public_faults(names):
    """Public headers include public headers only, and none of the libraries that users never meet."""
    for name in names:
        path = ROOT / name
        if not path.is_file():
            yield f"cmake/CairnPublicHeaders.cmake: {name} is not there"
            continue
        for line, included, _ in includes(path):
            if included.startswith("cairn/") and included[len("cairn/"):] not in names:
                yield f"{name}:{line}: a public header includes {included}, which is internal"
            if any(re.match(pattern, included) for pattern in FORBIDDEN_IN_PUBLIC):
                yield f"{name}:{line}: a public header includes {included}"
            if included.startswith("doctest/") and name not in NEEDS_DOCTEST:
                yield f"{name}:{line}: a public header includes {included}"


def tools_faults(public):
    """`tools` includes what users may include, its own headers, and a short list, of which each entry is needed."""
    unused = set(INTERNAL_FOR_TOOLS)
    for path in sources("tools", ".hpp", ".cpp"):
        for line, included, _ in includes(path):
            target = included.removeprefix("cairn/")
            unused.discard(target)
            if included != target and own_part(target) != "tools" and target not in public and target not in INTERNAL_FOR_TOOLS:
                yield f"{relative(path)}:{line}: includes {target}, which is internal: use a public header"
    yield from (f"tests/house/layers.py: tools/ does not include {name} any more" for name in sorted(unused))


def environment_faults(path):
    """The environment is the trainer's: other threads read it, and other libraries obey it."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        found = re.search(r"\b(setenv|unsetenv|putenv|clearenv)\s*\(", line.split("//", 1)[0])
        if found:
            yield f"{relative(path)}:{number}: calls {found[1]}: the library must not change the environment"


def main():
    paths = [path for folder in FOLDERS if (ROOT / folder).is_dir() for path in sources(folder, ".hpp", ".cpp")]
    faults = list(place_faults(paths))
    faults += circle_faults(paths)
    faults += [fault for path in paths for fault in faults_of(path)]
    faults += [fault for path in paths for fault in environment_faults(path)]
    faults += public_faults(public_headers())
    faults += tools_faults(public_headers())
    finish("layers", faults, len(paths))


if __name__ == "__main__":
    main()
