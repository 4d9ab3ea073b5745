"""What the files below `sql/` say, read by simple patterns: tables, functions, sections, headers.

The house form is strict enough for that, and test_style keeps it so: one header before each
function or step, a closing bracket on a line of its own, columns at two spaces.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Literal

from tests.server import SQL_ROOT

Engine = Literal["postgres", "sqlite"]
MOVES = "  -- moves"
TABLE = re.compile(r"create table (?:ql\.)?([a-z_]+) \(\n(.*?)\n\)", re.DOTALL)
COLUMN = re.compile(r"  ([a-z_]+) (?:text|bigint|integer)\b")
SECTION = re.compile(r"^-- (STEP|HELPER) +(\w+)\b.*$", re.MULTILINE)
WRITE = re.compile(r"\b(?:insert into|update|delete from) (?:ql\.)?([a-z_]+)\b(?!\.)")


@dataclass(frozen=True, slots=True)
class Table:
    """Its columns in order: those that are written once, and those after the line "moves"."""

    keeps: tuple[str, ...]
    moves: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """A step or helper: the comment lines that begin it, and what follows up to the next one."""

    engine: Engine
    file: str
    kind: str  # STEP or HELPER
    name: str
    header: str
    body: str

    @property
    def where(self) -> str:
        return f"sql/{self.engine}/{self.file}.sql: {self.name}"

    def told(self, word: str) -> str:
        """What the header says after a word such as WRITES, over all its lines."""
        found = re.search(rf"^-- {word} +(.*(?:\n--  +.*)*)", self.header, re.MULTILINE)
        return re.sub(r"\n-- +", " ", found[1]) if found else ""

    @cached_property
    def statements(self) -> str:
        """The body without comments and without what stands in quotes."""
        return re.sub(r"--.*|'[^']*'", "", self.body)


def files(engine: str) -> list[Path]:
    """The files of `sql/postgres`, `sql/sqlite` or `sql/decision`."""
    return sorted((SQL_ROOT / engine).glob("*.sql"))


def tables(engine: Engine) -> dict[str, Table]:
    """Every table of table.sql."""
    text = (SQL_ROOT / engine / "table.sql").read_text()
    return {name: _table(body) for name, body in TABLE.findall(text)}


def _table(body: str) -> Table:
    keeps, _, moves = body.partition(MOVES)
    return Table(*(tuple(COLUMN.findall("\n" + part)) for part in (keeps, moves)))


def sections(engine: Engine) -> list[Section]:
    """Every step and helper of an engine, in file order."""
    found = []
    for path in files(engine):
        text = path.read_text()
        marks = [*SECTION.finditer(text)]
        for mark, after in pairwise([*marks, None]):
            lines = text[mark.start() : after.start() if after else None].splitlines()
            count = next((n for n, line in enumerate(lines) if line[:2] != "--"), len(lines))
            head, body = "\n".join(lines[:count]), "\n".join(lines[count:])
            found.append(Section(engine, path.stem, mark[1], mark[2], head, body))
    return found
