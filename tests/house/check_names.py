#!/usr/bin/env python3
"""Finds names that are apart only by the luck of the batches: a unity build compiles many sources of one library as one file.

A name that one source has for itself (in an unnamed namespace, `static`, a constant, a type, an alias or a macro) must be no other name of its
namespace in the sources of its library, nor in the headers that they may include. Overloads count as equal names: with them, the call that is
meant depends on the batch. Aliases of the same thing are no fault.
"""

import collections
import dataclasses
import re
import sys

from layers import FOLDERS, finish, own_part, relative, sources

# The parts of folders that are libraries of their own.
LIBRARIES = ["actors/protocol"]

PREPROCESSOR = re.compile(r"^[ \t]*#(?:\\.|//[^\n]*|[^\n\\])*", re.MULTILINE | re.DOTALL)
MACRO = re.compile(r"^[ \t]*#[ \t]*(define|undef)[ \t]+(\w+)", re.MULTILINE)
TOKEN = re.compile(
    r"""//(?:\\.|[^\n\\])*|/\*.*?\*/"""
    r"""|(?P<text>(?:u8|[uUL])?R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)"|(?:u8|[uUL])?"(?:\\.|[^"\\])*"|(?:u8|[uUL])?'(?:\\.|[^'\\])*')"""
    r"""|(?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)"""
    r"""|(?P<word>[A-Za-z_]\w*|::|\S)""",
    re.DOTALL,
)
CLOSING = {"(": ")", "{": "}", "[": "]"}
TYPES = {"class", "struct", "union", "enum"}
SPECIFIERS = {"inline", "static", "constexpr", "const", "thread_local", "extern", "typedef"}
# The brackets after these are no parameters.
WITH_ARGUMENT = re.compile(r"decltype|alignas|noexcept|explicit|__attribute__|[A-Z][A-Z0-9_]+")


@dataclasses.dataclass(frozen=True)
class Name:
    """A name at namespace scope. `own`: the source that gives it has it for itself. `target`: of an alias."""

    space: str
    name: str
    line: int
    own: bool
    target: str = ""


def tokens_of(text):
    """Pairs (token, line), without comments and preprocessor lines. Literals become one token each."""
    text = PREPROCESSOR.sub(lambda match: "\n" * match[0].count("\n"), text)
    line, last, tokens = 1, 0, []
    for match in TOKEN.finditer(text):
        line += text.count("\n", last, match.start())
        last = match.start()
        if match.lastgroup is not None:
            tokens.append((match["word"] or "0", line))
    return tokens


class Reader:
    """Reads the declarations at namespace scope of one file."""

    def __init__(self, path):
        self.path, self.is_source = path, path.suffix == ".cpp"
        text = path.read_text(encoding="utf-8")
        self.tokens, self.at = tokens_of(text), 0
        self.names, self.opened = [], []  # opened: pairs (namespace, another that is looked into there)
        undefined = {match[2] for match in MACRO.finditer(text) if match[1] == "undef"}
        for match in MACRO.finditer(text):
            if self.is_source and match[2] not in undefined:
                self.names.append(Name("#", match[2], text.count("\n", 0, match.start()) + 1, True))
        if self.read_names(""):
            self.give_up()

    def give_up(self):
        sys.exit(f"{relative(self.path)}: this check reads it wrongly near line {self.tokens[min(self.at, len(self.tokens)) - 1][1]}")

    def peek(self, ahead=0):
        return self.tokens[self.at + ahead][0] if self.at + ahead < len(self.tokens) else ""

    def skip_brackets(self):
        """Goes past the bracket here and its partner."""
        open_brackets = []
        while self.peek():
            if self.peek() in CLOSING:
                open_brackets.append(CLOSING[self.peek()])
            elif self.peek() in CLOSING.values() and self.peek() != open_brackets.pop():
                self.give_up()
            self.at += 1
            if not open_brackets:
                return
        self.give_up()

    def skip_angles(self):
        """Goes past the template parameters or arguments here. Returns whether there are any."""
        depth, begin = 0, self.at
        while self.peek():
            if self.peek() in CLOSING:
                self.skip_brackets()
                continue
            depth += (self.peek() == "<") - (self.peek() == ">" and self.tokens[self.at - 1][0] != "-")
            self.at += 1
            if depth == 0:
                return self.at - begin > 2
        self.give_up()

    def read_names(self, space, unnamed=False):
        """Reads to the end of a namespace. Returns whether a bracket ends it."""
        while self.peek() not in ("", "}"):
            if self.peek() == "inline" and self.peek(1) == "namespace":
                self.at += 1
            if self.peek() == "namespace":
                self.read_namespace(space, unnamed)
            elif self.peek() == "extern" and self.peek(1) == "0" and self.peek(2) == "{":
                self.at += 3
                self.read_names(space, unnamed)
                self.at += 1
            else:
                self.read_declaration(space, unnamed)
        return self.peek() == "}"

    def read_namespace(self, space, unnamed):
        line, words = self.tokens[self.at][1], []
        while self.peek() not in ("{", ";", ""):
            self.at += 1
            words.append(self.peek())
        self.at += 1
        words = words[:-1]
        if "=" in words:
            self.names.append(Name(space, words[0], line, self.is_source, "".join(words[2:])))
            return
        if not self.read_names("::".join(filter(None, [space, *(word for word in words if word != "::")])), unnamed or not words):
            self.give_up()
        self.at += 1

    def read_declaration(self, space, unnamed):
        """Goes past one declaration, and notes its name. `words`: those outside of brackets, up to the name's own brackets or value."""
        line, words, others, begins, value_at = self.tokens[self.at][1], [], [], None, 0
        is_whole = is_function = is_special = is_initialising = False
        while self.peek() not in ("", "}"):
            token = self.peek()
            if token == ";":
                begins = begins or ";"
                break
            if token == "template" and self.peek(1) == "<":
                self.at += 1
                is_special = not self.skip_angles() or is_special
            elif token == "operator" and begins is None:
                words.append(token)
                self.at += 3 if self.peek(1) == "(" else 2
                while self.peek() not in ("(", ""):
                    self.at += 1
            elif token == "<" and begins is None:
                self.skip_angles()
            elif token == "[" and self.peek(1) == "[":
                self.skip_brackets()
            elif token == "(" and begins is None and words and WITH_ARGUMENT.fullmatch(words[-1]):
                self.skip_brackets()
                words.pop()
                if not words:  # a macro, such as TEST_CASE, which may make a whole declaration
                    is_whole = True
                    break
            elif token in CLOSING:
                # A function ends with its body, which follows parameters and, in a constructor, initialisers.
                is_body = token == "{" and is_function and not (is_initialising and re.fullmatch(r"\w+|>", self.tokens[self.at - 1][0]))
                if is_body:
                    break
                if begins is None:
                    begins, is_function = token, token == "("
                    words += [self.peek(2)] if self.peek(1) == "*" else []  # a pointer to a function
                opening = self.at
                self.skip_brackets()
                if words[:1] == ["enum"] and words[1] not in TYPES:  # its values are names beside it
                    body = [word for word, _ in self.tokens[opening : self.at]]
                    others += [[word] for before, word in zip(body, body[1:]) if before in "{," and word != "}"]
            else:
                if token == "=":
                    value_at = value_at or self.at
                    is_function = is_function and self.peek(1) in ("default", "delete", "0")
                    begins = begins or token
                elif begins is None:
                    words.append(token)
                elif is_function:
                    is_initialising = is_initialising or token == ":"
                elif token == "," and words[:1] != ["using"] and self.peek(2) in ("=", "{", "[", ",", ";"):
                    others.append([self.peek(1)])
                self.at += 1
        if self.peek() == "{":
            self.skip_brackets()
        elif self.peek() == ";":
            self.at += 1
        elif words:
            self.give_up()
        value = "".join(token for token, _ in self.tokens[value_at : self.at]) if value_at else ""
        if not is_whole and not is_special:
            for name in (words[-1:], *others):
                self.note(space, unnamed, line, [*words[:-1], *name], begins, value)

    def note(self, space, unnamed, line, words, begins, value):
        plain, target = [word for word in words if word not in SPECIFIERS], ""
        own = unnamed or "static" in words or "typedef" in words
        if not plain or plain[0] in ("static_assert", "friend") or "operator" in plain:
            return
        if plain[0] == "using":
            if plain[1] == "namespace":
                self.opened.append((space, "".join(plain[2:])))
                return
            if begins != "=":
                return
            name, own, target = plain[1], True, value
        elif plain[0] in TYPES and begins in ("{", ";"):
            plain = [word for word in plain if word not in TYPES and word != "final"]
            plain = plain[: plain.index(":")] if ":" in plain else plain
            if begins == ";" and len(plain) == 1 or "::" in plain or not plain:
                return
            name, own = plain[-1], own or begins == "{"
        elif begins == "(" and len(plain) == 1:
            return
        else:
            name = plain[-1]
            own = own or ("constexpr" in words or "const" in words) and begins != "("
            if "::" in plain[-2:-1] or "~" in plain:
                return
        if re.fullmatch(r"[A-Za-z_]\w*", name):
            self.names.append(Name(space, name, line, own and self.is_source, target))


def library_of(name):
    return next((library for library in LIBRARIES if name.startswith(f"{library}/")), own_part(name))


def lies_within_reach(header, library):
    """Whether the sources of a library may include a header, directly or through others."""
    return FOLDERS.index(own_part(header)) <= FOLDERS.index(own_part(library)) and (library_of(header) == library or library not in LIBRARIES)


def faults_of(library, of_sources, of_headers):
    """The equal names of one library. Both arguments map files to what was read in them."""
    places = collections.defaultdict(list)
    opened = {pair for read in of_sources.values() for pair in read.opened}
    for file, read in [*of_sources.items(), *((file, read) for file, read in of_headers.items() if lies_within_reach(file, library))]:
        for name in read.names:
            places[name.space, name.name].append((file, name))
            for space, other in opened:
                if name.space in (other, f"{space}::{other}"):
                    places[space, name.name].append((file, name))
    for (space, name), found in sorted(places.items()):
        if len({file for file, _ in found}) > 1 and any(one.own for _, one in found) and len({one.target for _, one in found} | {""}) != 2:
            where = ", ".join(f"{file}:{one.line}" for file, one in dict(found).items())
            yield f"{library}: `{name}` of namespace {space or 'global'} is in {where}: make them one, or rename all but one"


def main():
    read = {relative(path): Reader(path) for folder in FOLDERS for path in sources(folder, ".hpp", ".cpp")}
    libraries = collections.defaultdict(dict)
    for file, names in read.items():
        if names.is_source:
            libraries[library_of(file)][file] = names
    headers = {file: names for file, names in read.items() if not names.is_source}
    faults = [fault for library, names in libraries.items() for fault in faults_of(library, names, headers)]
    finish("names", faults, sum(len(names.names) for names in read.values()))


if __name__ == "__main__":
    main()
