"""What is wrong with a package file: faults with their places, told together."""

import json
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

# PyYAML ends a line at each of these, so the shown line must as well.
LINE_END = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
PLAIN_KEY = re.compile(r"[A-Za-z0-9_.-]+")
SHOWN_CHARS = 80
SOURCE_CHARS = 120
SUGGESTIONS = 100


class Placed(Protocol):
    """Anything with a place in the file: line and column, both from 1."""

    @property
    def line(self) -> int: ...
    @property
    def column(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its code, the path of keys to it, line and column from 1, and words for people."""

    code: str
    where: str
    line: int
    column: int
    message: str
    hint: str = ""

    def as_json(self) -> dict[str, str | int]:
        """The fault as `check --json` prints it, the hint at the end of the message."""
        return {
            "code": self.code,
            "where": self.where,
            "line": self.line,
            "column": self.column,
            "message": self.words(),
        }

    def words(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def render(self, filename: str, lines: tuple[str, ...] = ()) -> str:
        """`file:line:column: code: message`, then the line of the file with a caret below."""
        where = f" [{self.where}]" if self.where else ""
        head = f"{filename}:{self.line}:{self.column}: {self.code}: {self.words()}{where}"
        if not 1 <= self.line <= len(lines) or not lines[self.line - 1].strip():
            return head
        source = lines[self.line - 1]
        start = max(0, self.column - SOURCE_CHARS // 2) if len(source) > SOURCE_CHARS else 0
        before = visible(source[start : self.column - 1])
        shown = visible(source[start : start + SOURCE_CHARS])
        return f"{head}\n    {shown}\n    {' ' * _columns(before)}^"


class PackageFaults(Exception):
    """All faults of one package file, in the order of the file."""

    def __init__(self, faults: Iterable[Fault], filename: str, source: str = "") -> None:
        self.faults = tuple(faults)
        self.filename = filename
        self.lines = tuple(LINE_END.split(source))
        super().__init__(self.faults, filename)

    def __str__(self) -> str:
        return "\n".join(fault.render(self.filename, self.lines) for fault in self.faults)


@dataclass(slots=True)
class Faults:
    """Collects the faults and warnings of one file."""

    found: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)
    suggested: int = 0

    def add(self, code: str, where: str, at: Placed, message: str, hint: str = "") -> None:
        self.found.append(Fault(code, where, at.line, at.column, message, hint))

    def warn(self, code: str, where: str, at: Placed, message: str) -> None:
        self.warnings.append(Fault(code, where, at.line, at.column, message))

    def near(self, word: str, options: Iterable[str]) -> str:
        """`did you mean …?` for a misspelt word, or nothing; bounded, since it is slow."""
        if self.suggested >= SUGGESTIONS:
            return ""
        import difflib

        self.suggested += 1
        by_lower = {option.lower(): option for option in options}
        close = difflib.get_close_matches(word.lower()[:200], by_lower, n=1)
        return f"did you mean {by_lower[close[0]]}?" if close else ""

    def in_order(self) -> tuple[Fault, ...]:
        return in_order(self.found)


def in_order(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """Once each, by their place in the file."""
    return tuple(sorted(set(faults), key=lambda f: (f.line, f.column, f.code, f.where, f.message)))


def path(where: str, key: str) -> str:
    """The path one key further in: `tasks.load`, or `tasks["a b"]` for a key that is no word."""
    if not PLAIN_KEY.fullmatch(key) or len(key) > SHOWN_CHARS:
        return f"{where}[{shown(key)}]"
    return f"{where}.{key}" if where else key


def shown(text: str) -> str:
    """Text from the file inside a message: quoted, on one line, and never too long."""
    if len(text) > SHOWN_CHARS:
        text = text[: SHOWN_CHARS - 3] + "..."
    return visible(json.dumps(text, ensure_ascii=False))


def visible(text: str) -> str:
    """The text with tabs as one blank, and escapes for what does not print or could mislead."""
    return "".join(c if c.isprintable() else " " if c == "\t" else f"\\u{ord(c):04x}" for c in text)


def _columns(text: str) -> int:
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
