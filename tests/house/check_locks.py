#!/usr/bin/env python3
"""Checks that Clang's thread-safety analysis can see the locks of the product.

- Mutexes and condition variables are those of base/mutex.hpp and base/shared_mutex.hpp, which are annotated. Those of the standard
  library are not.
- Each mutex is named in an annotation of its file, such as CAIRN_GUARDED_BY(mutex_), or a comment beside it says why it is held.
"""

import re

from layers import FOLDERS, check_files, relative, sources

WRAPPERS = {"base/mutex.hpp", "base/shared_mutex.hpp"}

OF_STANDARD_LIBRARY = re.compile(r"\bstd::(?:(?:recursive_|timed_|shared_)*mutex|condition_variable(?:_any)?)\b")
DECLARATION = re.compile(r"^\s*(?:mutable |static )*(?:Shared)?Mutex (\w+);(\s*//)?")
ANNOTATION = r"\bCAIRN_(?:GUARDED_BY|REQUIRES(?:_SHARED)?)\([^()]*\b{}\)"


def faults_of(path):
    name = relative(path)
    if name in WRAPPERS:
        return [], 0
    text = path.read_text(encoding="utf-8")
    faults, checked = [], 0
    for number, line in enumerate(text.splitlines(), 1):
        code = line.partition("//")[0]
        if OF_STANDARD_LIBRARY.search(code):
            faults.append(f"{name}:{number}: take Mutex, SharedMutex or CondVar of base/, which Clang's analysis knows")
        declared = DECLARATION.match(line)
        if not declared:
            continue
        checked += 1
        if not declared.group(2) and not re.search(ANNOTATION.format(declared.group(1)), text):
            faults.append(f"{name}:{number}: annotate the members that `{declared.group(1)}` guards, or say in a comment why it is held")
    return faults, checked


if __name__ == "__main__":
    check_files("locks", [path for folder in FOLDERS for path in sources(folder, ".hpp", ".cpp")], faults_of)
