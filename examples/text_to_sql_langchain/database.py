"""SQLite databases of the example: reading them safely, and making the small ones it ships no files for."""

from __future__ import annotations

import random
import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HOME = Path(__file__).parent / "databases"
"""Where the example's own databases are made: HOME/NAME/NAME.sqlite, as Spider lays out its."""
LONGEST_SHOWN = 48
MOST_ROWS = 10_000
MOST_STEPS = 20_000_000
"""Instructions of SQLite's virtual machine a query may take."""
READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


@dataclass(frozen=True, slots=True)
class Table:
    """One table, which is all a database of the example holds."""

    name: str
    plural: str
    key: str
    """The column that names a row."""
    category: str
    """A text column with few values."""
    numbers: tuple[str, str]


TRAINED = (
    Table("singer", "singers", "name", "country", ("age", "songs")),
    Table("car", "cars", "model", "maker", ("year", "price")),
    Table("book", "books", "title", "author", ("pages", "year")),
    Table("city", "cities", "name", "country", ("people", "area")),
    Table("player", "players", "name", "team", ("age", "goals")),
    Table("film", "films", "title", "director", ("year", "length")),
    Table("dog", "dogs", "name", "breed", ("age", "weight")),
    Table("shop", "shops", "name", "owner", ("staff", "rent")),
    Table("river", "rivers", "name", "country", ("length", "depth")),
    Table("student", "students", "name", "school", ("age", "grade")),
)
HELDOUT = (
    Table("teacher", "teachers", "name", "school", ("age", "salary")),
    Table("ship", "ships", "name", "port", ("year", "speed")),
    Table("garden", "gardens", "name", "city", ("trees", "area")),
    Table("phone", "phones", "model", "maker", ("year", "price")),
    Table("hotel", "hotels", "name", "city", ("rooms", "stars")),
    Table("horse", "horses", "name", "breed", ("age", "wins")),
)
WORDS = ("Ada", "Bell", "Cole", "Dune", "Elm", "Fox", "Gold", "Hill", "Iris", "Jade", "King", "Lake")
CATEGORIES = ("North", "South", "East", "West")
ROWS = 8


def path_of(name: str) -> Path:
    """The file of a database; a path ending in .sqlite is taken as it is, anything else is one of the example's own."""
    if name.endswith(".sqlite"):
        return Path(name)
    return make(next(table for table in (*TRAINED, *HELDOUT) if table.name == name))


def rows_of(table: Table) -> list[tuple[str, str, int, int]]:
    """Its rows, always the same; no two rows share a name or a number, so that wrong queries seldom give right rows."""
    rng = random.Random(table.name)
    names = rng.sample(WORDS, ROWS)
    first, second = rng.sample(range(10, 60), ROWS), rng.sample(range(60, 99), ROWS)
    return [(name, rng.choice(CATEGORIES), a, b) for name, a, b in zip(names, first, second, strict=True)]


@cache
def make(table: Table) -> Path:
    """The table's database file, made if it is not there; safe beside other processes that do the same."""
    path = HOME / table.name / f"{table.name}.sqlite"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        draft = Path(folder) / path.name
        with closing(sqlite3.connect(draft)) as connection:
            columns = f"{table.key} TEXT, {table.category} TEXT, {table.numbers[0]} INTEGER, {table.numbers[1]} INTEGER"
            connection.execute(f"CREATE TABLE {table.name} ({columns})")
            connection.executemany(f"INSERT INTO {table.name} VALUES (?, ?, ?, ?)", rows_of(table))  # noqa: S608 - own names
            connection.commit()
        draft.replace(path)
    return path


def schema(path: Path) -> str:
    """The tables and their columns in short: `singer(name, country, age, songs)`, one per line."""
    with reading(path) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        found = {name: [row[1] for row in connection.execute(f'PRAGMA table_info("{name}")')] for name in names}
    return "\n".join(
        f"{name}({', '.join(columns)})" for name, columns in found.items() if not name.startswith("sqlite_")
    )


def run(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """The rows of a query.

    Raises:
        sqlite3.Error: it is no query, fails, writes, takes too long or gives too many rows.
    """
    with reading(path) as connection:
        rows = connection.execute(sql).fetchmany(MOST_ROWS + 1)
    if len(rows) > MOST_ROWS:
        raise sqlite3.OperationalError("too many rows")
    return rows


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that can only read, and not for ever."""
    if not path.is_file():
        raise sqlite3.OperationalError(f"there is no database {path}")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        connection.text_factory = lambda data: data.decode(errors="replace")
        connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY)
        connection.set_progress_handler(lambda: 1, MOST_STEPS)
        yield connection


def outcome(path: Path, sql: str) -> str:
    """What a query gave, in one short line, or why it failed."""
    try:
        rows = run(path, sql)
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:  # ValueError: a null character in the query
        return f"error: {error}"[:LONGEST_SHOWN]
    shown = ", ".join(str(row[0]) if len(row) == 1 else str(row) for row in rows)
    return f"{len(rows)} rows: {shown}"[:LONGEST_SHOWN]


def same_rows(path: Path, sql: str, reference: str) -> bool:
    """Whether a query gives the reference's rows, in its order if the reference asks for one, else in any.

    Raises:
        sqlite3.Error: the reference itself fails.
    """
    wanted = run(path, reference)
    try:
        found = run(path, sql)
    except (sqlite3.Error, sqlite3.Warning, ValueError):
        return False
    if re.search(r"\border\s+by\b", reference, re.IGNORECASE):
        return found == wanted
    return Counter(found) == Counter(wanted)
