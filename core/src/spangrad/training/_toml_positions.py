"""Where in a TOML file each key stands, so that an error can name its line.

tomllib keeps no positions. This scanner reads only what it needs: table headers and the keys before an equals sign; it is
never used to read values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

_HEADER = re.compile(r"^\s*\[\[?\s*(?P<name>[^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(
    r"^\s*(?P<key>(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*="
)
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PART = re.compile(r"[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'")

KeyPath = tuple[str, ...]


def dotted(key: Sequence[object]) -> str:
    """A key as it is written in TOML; names that have to be are in quotes."""
    return ".".join(str(part) if _BARE.fullmatch(str(part)) else json.dumps(str(part)) for part in key)


def key_lines(text: str) -> Mapping[KeyPath, int]:
    """The 1-based line of every table header and key of a TOML document; elements of arrays of tables go by their number."""
    lines: dict[KeyPath, int] = {}
    elements: dict[KeyPath, int] = {}
    """Array of tables -> the number of its latest element."""
    table: KeyPath = ()
    multiline: str | None = None
    # Not splitlines(): TOML strings may hold the other characters that it takes for the end of a line.
    for number, line in enumerate(text.split("\n"), start=1):
        if multiline is not None:
            if multiline in line:
                multiline = None
            continue
        if header := _HEADER.match(line):
            table = _element_of(_parts(header["name"]), elements)
            lines.setdefault(table, number)
            if line.lstrip().startswith("[["):
                elements[table] = elements.get(table, -1) + 1
                table = (*table, str(elements[table]))
                lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault(table + _parts(key["key"]), number)
            multiline = _opened(line)
    return lines


def line_of(lines: Mapping[KeyPath, int], path: Sequence[object]) -> int | None:
    """The line of the key at `path`, or of the nearest table around it that has one."""
    names = tuple(str(part) for part in path)
    for length in range(len(names), 0, -1):
        if names[:length] in lines:
            return lines[names[:length]]
    return None


def _element_of(path: KeyPath, elements: Mapping[KeyPath, int]) -> KeyPath:
    """The path with the number of the latest element behind each array of tables it leads through."""
    found: KeyPath = ()
    for part in path[:-1]:
        found = (*found, part)
        if found in elements:
            found = (*found, str(elements[found]))
    return (*found, path[-1])


def _parts(dotted: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))


def _opened(line: str) -> str | None:
    """The quotes of a multi-line string that begins on this line and does not end on it."""
    for quotes in ('"""', "'''"):
        if line.count(quotes) % 2:
            return quotes
    return None
