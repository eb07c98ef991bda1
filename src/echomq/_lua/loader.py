"""Reads the Lua files, resolves what they share, and knows where an error comes from.

A script is one transition. Its header, read by this module, is its contract::

    --- Gives an active job back.                 what it does, in a line
    --- @key wait                                 KEYS, in order; the file name ends in their number
    --- @arg token                                ARGV after the common ones, in order
    --- @arg count number                         … turned into a number
    --- @rest                                     more arguments follow: `rest` is the index of the first
    --- @use place events                         files of lib/, with what they use in turn
    --- @rare                                     in a file of lib/: seldom needed, so built at its first use
    --- @lane                                     replies are kept and answered again (docs/architecture.md)
    --- @returns now, code…

From it the loader generates the local names (no line of ours says ``KEYS[7]``), and for a ``@lane`` script the
prelude that answers a repeated call from the record of its reply. With ``@lane custom`` the script itself
looks for the record and rebuilds its reply from it.

Every script takes two common arguments first, ``base`` (``{prefix}:{queue}:``) and ``clock_given`` (milliseconds injected
by tests, else empty: the server's own time); a lane script three more, ``lane``, ``number`` and ``resent``.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

COMMON_ARGS = ("base", "clock_given")
LANE_ARGS = ("lane", "number", "resent")

_TAG = re.compile(r"^--- @(\w+)\s*(.*)$")
_AT_LINE = re.compile(r"user_script:(\d+)")
_FUNCTION = re.compile(r"(?:local )?function ((?:M\.)?\w+)\(")
_CONSTANT = re.compile(r"local (\w+) = (?:[^(){}]+|\{[^(){}]*\})(?:\s*--.*)?$")
_WORD = re.compile(r"[A-Za-z_]\w*(?:\.\w+)?")
_FIELDS = re.compile(r"^function (M\.\w+)\(|^(M\.\w+(?:, M\.\w+)*) = ", re.MULTILINE)
_NEW_TABLE = "local M = {}"

# A library costs its closures at each run of the script; a rare one costs them when a function of it is first called. All rare
# ones together cost a closure and two tables: what code calls `library.name` becomes `rare.library.name`.
_RARE_BEGIN = """\
local rare
rare = setmetatable({}, { __index = function(libraries, called_first)
local builders = {}
"""
_RARE_END = """\
setmetatable(libraries, { __index = function(_, library)
  libraries[library] = builders[library]()
  return libraries[library]
end })
return libraries[called_first]
end })
"""
_LANE_PRELUDE = """\
local kept = calls_kept.find(calls, lane, number)
if kept then return kept end
"""


@dataclass(frozen=True, slots=True)
class Script:
    """One transition, ready to be sent to a server.

    Attributes:
        name: the file's name without its ending, such as ``moveToActive-11``.
        source: the assembled Lua text.
        sha: its SHA-1, by which the server knows it.
        keys: the names of its KEYS, in order.
        args: the names of its ARGV, in order, the common ones first.
        lane: whether its replies are kept for repeated calls.
        returns: the ``@returns`` line.
    """

    name: str
    source: str
    sha: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    rest: bool
    lane: bool
    returns: str
    origin: tuple[tuple[str, int], ...] = field(repr=False)

    def locate(self, message: str) -> str:
        """Says where in our files an error message of the server points to, or ``""``.

        >>> script("moveToActive-11").locate("ERR … on @user_script:1.")
        'scripts/fetch/moveToActive-11.lua:0'
        """
        found = _AT_LINE.search(message)
        if found is None:
            return ""
        line = int(found[1])
        if not 1 <= line <= len(self.origin):
            return ""
        path, number = self.origin[line - 1]
        return f"{path}:{number}"


@dataclass(slots=True)
class _File:
    path: str
    body: list[str]
    keys: list[str] = field(default_factory=list)
    args: list[tuple[str, bool]] = field(default_factory=list)
    rest: bool = False
    uses: list[str] = field(default_factory=list)
    lane: str | None = None
    rare: bool = False
    returns: str = ""


class LuaHeaderError(Exception):
    """A Lua file's header breaks the rules above."""


def _parse(path: str, text: str) -> _File:
    parsed = _File(path, text.splitlines())
    for line in parsed.body:
        tag = _TAG.match(line)
        if tag is None:
            continue
        word, value = tag[1], tag[2].strip()
        match word:
            case "key":
                parsed.keys.append(value)
            case "arg":
                name, _, kind = value.partition(" ")
                if kind not in ("", "number"):
                    raise LuaHeaderError(f"{path}: @arg {name} has kind {kind!r}; it may be left out or 'number'")
                parsed.args.append((name, kind == "number"))
            case "rest":
                parsed.rest = True
            case "use":
                parsed.uses.extend(value.split())
            case "rare":
                parsed.rare = True
            case "lane":
                if value not in ("", "custom"):
                    raise LuaHeaderError(f"{path}: @lane {value!r}; it may be left out or 'custom'")
                parsed.lane = value or "plain"
            case "returns":
                parsed.returns = value
            case _:
                raise LuaHeaderError(f"{path}: unknown tag @{word}")
    return parsed


def _resolve(names: list[str], libs: dict[str, _File]) -> list[str]:
    """Orders libraries so that each comes after those it uses; a cycle is an error."""
    ordered: list[str] = []
    open_names: list[str] = []

    def visit(name: str, wanted_by: str) -> None:
        if name in ordered:
            return
        if name in open_names:
            raise LuaHeaderError(f"lib/{name}.lua uses itself, through {' -> '.join([*open_names, name])}")
        if name not in libs:
            raise LuaHeaderError(f"{wanted_by} uses lib/{name}.lua, which does not exist")
        open_names.append(name)
        for used in libs[name].uses:
            visit(used, f"lib/{name}.lua")
        open_names.pop()
        ordered.append(name)

    for name in names:
        visit(name, "script")
    return ordered


def _bindings(parsed: _File) -> tuple[str, tuple[str, ...]]:
    if parsed.lane and "calls" not in parsed.keys:
        raise LuaHeaderError(f"{parsed.path}: a @lane script needs @key calls")
    names = [*COMMON_ARGS, *(LANE_ARGS if parsed.lane else ()), *(name for name, _ in parsed.args)]
    numeric = {name for name, is_number in parsed.args if is_number} | {"number"}
    values = [
        f"tonumber(ARGV[{index}])" if name in numeric else f"ARGV[{index}]" for index, name in enumerate(names, start=1)
    ]
    text = ""
    if parsed.keys:
        slots = ", ".join(f"KEYS[{index}]" for index in range(1, len(parsed.keys) + 1))
        text += f"local {', '.join(parsed.keys)} = {slots}\n"
    text += f"local {', '.join(names)} = {', '.join(values)}\n"
    if parsed.rest:
        text += f"local rest = {len(names) + 1}\n"
    return text, tuple(names)


def _rare(ordered: list[str], libs: dict[str, _File], script_uses: list[str]) -> set[str]:
    """The libraries that are built at their first use: those that say so, and those that only such ones use."""
    rare: set[str] = set()
    for name in reversed(ordered):  # its users come before it
        users = [other for other in ordered if name in libs[other].uses]
        if libs[name].rare or (name not in script_uses and rare.issuperset(users)):
            rare.add(name)
    return rare


def _words(lines: Iterable[str]) -> set[str]:
    """What code names: ``word`` and ``library.word``."""
    return set(_WORD.findall("\n".join(line.partition("--")[0] for line in lines)))


@dataclass(slots=True)
class _Part:
    """A function or a constant of a library: its name, its first line and the one behind its last, and what it names."""

    name: str
    first: int
    end: int
    words: set[str]


def _parts(body: list[str]) -> list[_Part]:
    """A library's functions and constants. They begin and end in the first column."""
    found = []
    for first, line in enumerate(body):
        if (function := _FUNCTION.match(line)) is not None:
            name, last = function[1], first if line.endswith(" end") else body.index("end", first)
        elif (constant := _CONSTANT.match(line)) is not None:
            name, last = constant[1], first
        else:
            continue
        text = body[first : last + 1]
        found.append(_Part(name, first, last + 1, _words([text[0].replace(name, "", 1), *text[1:]])))
    return found


def _needed(ordered: list[str], libs: dict[str, _File], script_body: list[str]) -> dict[str, list[tuple[int, str]]]:
    """The numbered lines of the libraries, without what this script does not reach: libraries, functions and constants.

    A closure is made at each run of a script, whether it is called or not; with one job a call that counts.
    """
    left = {name: _parts(libs[name].body) for name in ordered}
    lines: dict[str, dict[int, str]] = {}  # of the libraries that are reached
    named: dict[str, set[str]] = {}  # by each of them
    everywhere = _words(script_body)

    def reach(name: str, first: int, end: int, words: set[str]) -> None:
        lines[name].update((at + 1, libs[name].body[at]) for at in range(first, end))
        named[name] |= words
        everywhere.update(words)

    before = -1
    while before != (before := sum(map(len, lines.values()))):
        for name in ordered:
            if name not in lines and any(word.partition(".")[0] == name for word in everywhere):
                lines[name], named[name] = {}, set()
                first = 0
                for part in [*left[name], _Part("", len(libs[name].body), 0, set())]:
                    reach(name, first, part.first, _words(libs[name].body[first : part.first]))
                    first = part.end
            for part in list(left[name]) if name in lines else ():
                if part.name in named[name] or (part.name.startswith("M.") and name + part.name[1:] in everywhere):
                    left[name].remove(part)
                    reach(name, part.first, part.end, {part.name, *part.words})
    return {name: sorted(lines[name].items()) for name in ordered if name in lines}


def _with_room(body: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Its table is made with room for its fields: otherwise it grows, and is rehashed, at each power of two."""
    fields = [found[0] or found[1] for found in _FIELDS.findall("\n".join(line for _, line in body))]
    names = [field.strip().removeprefix("M.") for several in fields for field in several.split(",")]
    room = "local M = { " + ", ".join(f"{name} = nil" for name in names) + " }"
    return [(0, room) if line == _NEW_TABLE and names else (number, line) for number, line in body]


def _calling(rare: set[str], body: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Code that finds the rare libraries where they are."""
    if not rare:
        return body
    names = "|".join(sorted(rare))
    for number, line in body:
        if re.match(rf"\s*local ({names})\b", line):
            raise LuaHeaderError(f"line {number}: {line.strip()!r} hides the library of this name; choose another")
    return [(number, re.sub(rf"(?<![\w.:])({names})\.(?=\w)", r"rare.\1.", line)) for number, line in body]


def assemble(name: str, parsed: _File, libs: dict[str, _File]) -> Script:
    """Joins a script with what it uses, and keeps a map from its lines to the files."""
    count = name.rpartition("-")[2]
    if count != str(len(parsed.keys)):
        raise LuaHeaderError(f"{parsed.path}: the name says {count} keys, the header has {len(parsed.keys)}")
    bindings, names = _bindings(parsed)
    uses = [*parsed.uses, *(["calls_kept"] if parsed.lane else [])]
    lines: list[str] = []
    origin: list[tuple[str, int]] = []

    def emit(numbered: Iterable[tuple[int, str]], path: str) -> None:
        for number, line in numbered:
            lines.append(line)
            origin.append((path, number))

    def generated(text: str) -> None:
        made = text.splitlines()
        lines.extend(made)
        origin.extend((parsed.path, 0) for _ in made)

    generated(bindings)
    ordered = _resolve(uses, libs)
    needed = _needed(ordered, libs, [*parsed.body, *(_LANE_PRELUDE.splitlines() if parsed.lane else [])])
    rare = _rare(list(needed), libs, uses)
    common = [lib for lib in needed if lib not in rare]
    if common:
        generated(f"local {', '.join(common)}")
    if rare:
        generated(_RARE_BEGIN)
        for lib in needed:
            if lib in rare:
                generated(f"function builders.{lib}()")
                emit(_calling(rare, _with_room(needed[lib])), libs[lib].path)
                generated("end")
        generated(_RARE_END)
    for lib in common:
        generated(f"{lib} = (function()")
        emit(_calling(rare, _with_room(needed[lib])), libs[lib].path)
        generated("end)()")
    if parsed.lane == "plain":
        generated(_LANE_PRELUDE)
    emit(_calling(rare, list(enumerate(parsed.body, start=1))), parsed.path)
    source = "\n".join(lines) + "\n"
    return Script(
        name=name,
        source=source,
        sha=hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest(),
        keys=tuple(parsed.keys),
        args=names,
        rest=parsed.rest,
        lane=parsed.lane is not None,
        returns=parsed.returns,
        origin=tuple(origin),
    )


def _lua_files(folder: Traversable) -> dict[str, Traversable]:
    found: dict[str, Traversable] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            found |= {f"{entry.name}/{path}": file for path, file in _lua_files(entry).items()}
        elif entry.name.endswith(".lua"):
            found[entry.name] = entry
    return found


@cache
def libraries() -> dict[str, _File]:
    """The files of ``lib/``, by name."""
    found = _lua_files(files(__package__) / "lib")
    return {path.removesuffix(".lua"): _parse(f"lib/{path}", file.read_text("utf-8")) for path, file in found.items()}


@cache
def _script_files() -> dict[str, tuple[str, Traversable]]:
    """Where each script stands, by its name."""
    found = _lua_files(files(__package__) / "scripts")
    return {path.rpartition("/")[2].removesuffix(".lua"): (path, found[path]) for path in sorted(found)}


@cache
def script(name: str) -> Script:
    """The script of this name."""
    path, file = _script_files()[name]
    return assemble(name, _parse(f"scripts/{path}", file.read_text("utf-8")), libraries())


def scripts() -> dict[str, Script]:
    """Every script, by name."""
    return {name: script(name) for name in _script_files()}


def main() -> None:
    """Writes every assembled script into a folder, for linters: ``python -m echomq._lua.loader --assemble DIR``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--assemble", metavar="DIR", type=Path, required=True)
    folder: Path = parser.parse_args().assemble
    folder.mkdir(parents=True, exist_ok=True)
    for made in scripts().values():
        (folder / f"{made.name}.lua").write_text(made.source, "utf-8")


if __name__ == "__main__":
    main()
