#!/usr/bin/env python3
"""Checks the columns of C++ and Protobuf files, and how their comments are written.

- A line of code has at most 132 columns, one that is only a comment 100.
- A comment does not begin with a free relative ("What is written", "Who waits"). Say "The bytes
  that are written", "The rank that waits". A comment on lines of its own does not begin with a bare
  genitive ("Of the call") either.
"""

import re

from layers import FOLDERS, check_files, relative, sources

COMMENT_COLUMNS_MAX = 100
CODE_COLUMNS_MAX = 132
FOLDERS_WITH_COMMENTS = [*FOLDERS, "benchmarks", "examples", "tests"]

WHOLE_LINE = re.compile(r"^\s*//")
COMMENT = re.compile(r"(?:^|\s)//+\s*(.*)$")
RELATIVE = re.compile(r"(?:what(?:ever)?|who(?:ever|se)?|which(?:ever)?|where(?:ver)?|that which|those (?:who|that|which))\b",
                      re.IGNORECASE)
GENITIVE = re.compile(r"Of\b")


def faults_of(path):
    faults, checked, follows_comment = [], 0, False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        is_whole_line = bool(WHOLE_LINE.match(line))
        comment = COMMENT.search(line)
        if comment:
            checked += 1
        if len(line) > (columns_max := COMMENT_COLUMNS_MAX if is_whole_line else CODE_COLUMNS_MAX):
            faults.append(f"{relative(path)}:{number}: {len(line)} columns: at most {columns_max}")
        opens = comment and not (is_whole_line and follows_comment)
        if opens and (RELATIVE.match(comment.group(1)) or (is_whole_line and GENITIVE.match(comment.group(1)))):
            faults.append(f"{relative(path)}:{number}: the comment begins with a relative or a genitive: '{comment.group(1)[:60]}'")
        follows_comment = is_whole_line and comment.group(1) != ""
    return faults, checked


if __name__ == "__main__":
    check_files("comments", [path for folder in FOLDERS_WITH_COMMENTS for path in sources(folder, ".hpp", ".cpp", ".proto")], faults_of)
