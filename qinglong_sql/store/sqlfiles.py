"""The SQL files: where they are, and the steps that SQLite's hold.

A file of `sql/sqlite` is a sequence of sections. `-- STEP     name — …` begins a step that the
store calls, `-- HELPER   name — …` one that only steps use. Inside a section these lines are more
than comments:

| Line | Means |
|---|---|
| `-- CALL     helper` | the helper's statements stand here |
| `-- WHEN     helper` | they do when its first statement, a select, finds a row |
| `-- EACH     helper` | they run for each row of temp.chosen, with `:each_run_id`, in key order |
| `-- REPEAT   helper` | they run with `:turn` 1, 2, … until one turn changes nothing |
| `-- STAGE    stage` | the value of `:p_stage`; without it the caller's, else the file's word |
| `-- CHECK    QLnnn` | what a violated constraint of a table means in this step |
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import qinglong_sql
from qinglong_sql.migrate import statements

HEADER = re.compile(r"-- (STEP|HELPER) +([a-z_]+)\b")
DIRECTIVE = re.compile(r"-- (CALL|WHEN|EACH|REPEAT|STAGE|CHECK) +(\w+)\s*")
WORDS = (
    "connection",
    "effect",
    "effect_step",
    "effect_attempt",
    "publication",
    "publication_manifest",
    "admission",
    "admission_retry",
    "schedule",
    "schedule_trigger",
    "schedule_fault",
    "agenda",
    "frontier",
    "task_admission",
    "authority",
    "dispatch_session",
    "dispatch",
    "dispatch_start",
    "dispatch_read",
    "completion",
    "recovery",
    "cancellation",
    "retention",
    "audit",
)

Kind = Literal["STATEMENT", "CALL", "WHEN", "EACH", "REPEAT"]


@dataclass(frozen=True, slots=True)
class Part:
    """A statement, or a helper's parts under a condition or in a loop; `text` is the condition."""

    kind: Kind
    text: str
    parts: tuple["Part", ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """What one call runs, in one transaction."""

    name: str
    stage: str | None  # fixed by the file; None: the caller's, else `word`
    word: str
    check_code: str  # what a violated check of a table means
    parts: tuple[Part, ...]


@dataclass(slots=True)
class Section:
    word: str
    is_step: bool
    lines: list[tuple[Kind, str]]
    stage: str | None = None
    check_code: str = "QL500"


def sql_folder() -> Path:
    """`sql` of the checkout, or the copy inside an installed package."""
    package = Path(qinglong_sql.__file__).resolve().parent
    checkout = package.parent / "sql"
    return checkout if (checkout / "sqlite.sql").exists() else package / "_sql"


@cache
def sqlite_steps(folder: Path | None = None) -> dict[str, Step]:
    """Every step by name. Raises ValueError for a file that does not keep to the rules above."""
    root = (folder or sql_folder()) / "sqlite"
    sections: dict[str, Section] = {}
    for word in WORDS:
        for name, section in _sections(word, (root / f"{word}.sql").read_text(encoding="utf-8")):
            if name in sections:
                raise ValueError(f"{word}.sql: {name} is there twice")
            sections[name] = section
    return {
        name: Step(
            name,
            section.stage,
            section.word,
            section.check_code,
            tuple(_resolve(name, sections, (name,))),
        )
        for name, section in sections.items()
        if section.is_step
    }


def manifest_text(folder: Path | None = None) -> str:
    """What `sqlite.sql` installs, as one text."""
    root = folder or sql_folder()
    lines = (root / "sqlite.sql").read_text(encoding="utf-8").splitlines()
    names = [line.split()[1] for line in lines if line.startswith(".read ")]
    return "\n".join((root / name).read_text(encoding="utf-8") for name in names)


def _sections(word: str, text: str) -> Iterator[tuple[str, Section]]:
    name, section, pending = "", Section(word, False, []), ""
    for line in [*text.splitlines(keepends=True), "-- STEP     end_of_file"]:
        header, directive = HEADER.match(line), DIRECTIVE.fullmatch(line.rstrip("\n"))
        if header or directive:
            section.lines += [("STATEMENT", statement) for statement in statements(pending)]
            pending = ""
        if header:
            if name:
                yield name, section
            elif section.lines:
                raise ValueError(f"{word}.sql: a statement before the first header")
            name, section = header[2], Section(word, header[1] == "STEP", [])
        elif directive:
            _direct(section, directive[1], directive[2])
        else:
            pending += line


def _direct(section: Section, kind: str, value: str) -> None:
    match kind:
        case "CALL" | "WHEN" | "EACH" | "REPEAT":
            section.lines.append((kind, value))
        case "STAGE":
            section.stage = value
        case "CHECK":
            section.check_code = value


def _resolve(name: str, sections: dict[str, Section], path: tuple[str, ...]) -> Iterator[Part]:
    if name not in sections:
        raise ValueError(f"{path[-2]}: no helper {name}")
    for kind, text in sections[name].lines:
        if kind == "STATEMENT":
            yield Part(kind, text)
            continue
        if text in path:
            raise ValueError(f"{name}: {text} calls itself")
        parts = tuple(_resolve(text, sections, (*path, text)))
        match kind:
            case "CALL":
                yield from parts
            case "WHEN" if not parts or not parts[0].text.startswith("select"):
                raise ValueError(f"{text}: the first statement is no select")
            case "WHEN":
                yield Part(kind, parts[0].text, parts[1:])
            case _:
                yield Part(kind, "", parts)
