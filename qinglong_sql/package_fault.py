"""What is wrong with a package file: faults with their places, told together."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from qinglong_sql.package_source import HIDDEN, WIDTH, Hidden, Source, visible

PLAIN_KEY = re.compile(r"[A-Za-z0-9_.-]+")
SHOWN_CHARS = 80
SUGGESTIONS = 100
ALIASES_SHOWN = 3
FAULTS_TOLD = 500
WHY_HIDDEN = f"({HIDDEN} hides what may be a secret)"
Paint = Callable[[str, str], str]


def plain(text: str, part: str) -> str:
    """How the parts of a rendered fault look without colours."""
    return text


class Placed(Protocol):
    """Anything with a place in the file: line and column, both from 1."""

    @property
    def line(self) -> int: ...
    @property
    def column(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its code, the path of keys to it, line and column from 1, and words for people.

    Below an alias, line and column are the text's own, where its anchor is; `aliases` are the
    (line, column) of the aliases that brought it to where it is wrong.
    """

    code: str
    where: str
    line: int
    column: int
    message: str
    hint: str = ""
    aliases: tuple[tuple[int, int], ...] = ()

    def as_json(self) -> dict[str, object]:
        """The fault as `check --json` prints it; `aliases` only when there are some."""
        found: dict[str, object] = {
            "code": self.code,
            "key": self.where,
            "line": self.line,
            "column": self.column,
            "message": self.message,
            "hint": self.hint,
        }
        if self.aliases:
            found["aliases"] = [{"line": line, "column": column} for line, column in self.aliases]
        return found

    def words(self) -> str:
        """Message and hint, and by which aliases it came here."""
        words = f"{self.message}; {self.hint}" if self.hint else self.message
        if self.aliases:
            lines = list(dict.fromkeys(line for line, _ in self.aliases))
            some = ", ".join(map(str, lines[:ALIASES_SHOWN]))
            more = f" and {len(lines) - ALIASES_SHOWN} more" if len(lines) > ALIASES_SHOWN else ""
            words += f" (through the alias on line {some}{more})"
        return words

    def render(
        self, filename: str, source: Source | None = None, paint: Paint = plain, width: int = WIDTH
    ) -> str:
        """`file:line:column: key: message (code)`, the line of the file, and a caret below."""
        key = f"{self.where}: " if self.where else ""
        head = paint(f"{filename}:{self.line}:{self.column}:", "place")
        head += f" {key}{self.words()} {paint(f'({self.code})', 'code')}"
        shown = source.excerpt(self.line, self.column, width) if source else None
        if shown is None:
            return head
        line, caret = shown
        return f"{head}\n    {line}\n    {paint(caret, 'caret')}"


class PackageFaults(Exception):
    """All faults of one package file, in the order of the file."""

    def __init__(
        self, faults: Iterable[Fault], filename: str, source: Source | None = None
    ) -> None:
        self.faults = tuple(faults)
        self.filename = filename
        self.source = source or Source()
        super().__init__(self.faults, filename)

    def __str__(self) -> str:
        return self.render()

    def render(self, paint: Paint = plain, width: int = WIDTH) -> str:
        """Every fault, up to FAULTS_TOLD, with its line, `paint` giving the parts their colours."""
        told = [
            fault.render(self.filename, self.source, paint, width)
            for fault in self.faults[:FAULTS_TOLD]
        ]
        if len(self.faults) > FAULTS_TOLD:
            told.append(f"and {len(self.faults) - FAULTS_TOLD} more faults; --json tells all")
        if any(HIDDEN in one for one in told):
            told.append(WHY_HIDDEN)
        return "\n".join(told)


@dataclass(slots=True)
class Faults:
    """Collects the faults and warnings of one file, and what of it must not be shown."""

    found: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)
    suggested: int = 0
    hidden: list[Hidden] = field(default_factory=list)
    unread: tuple[int, int] | None = None
    unread_env: bool = False

    def add(self, code: str, where: str, at: Placed, message: str, hint: str = "") -> None:
        self.found.append(_fault(code, where, at, message, hint))

    def warn(self, code: str, where: str, at: Placed, message: str) -> None:
        self.warnings.append(_fault(code, where, at, message, ""))

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

    def source(self, text: str) -> Source:
        """The file's text as these faults may show it."""
        return Source(text, tuple(self.hidden), self.unread, self.unread_env)


def in_order(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """Once each, by their place in the file.

    One text that aliases bring to several places is one fault: at its own place when it is wrong
    there too, with all the aliases otherwise.
    """
    ordered = sorted(set(faults), key=_order)
    own = [fault for fault in ordered if not fault.aliases]
    known = {_same(fault) for fault in own}
    through: dict[tuple[object, ...], Fault] = {}
    for fault in ordered:
        if fault.aliases and _same(fault) not in known:
            first = through.setdefault(_same(fault), fault)
            aliases = tuple(sorted({*first.aliases, *fault.aliases}))
            through[_same(fault)] = replace(first, aliases=aliases)
    return tuple(sorted([*own, *through.values()], key=_order))


def _same(fault: Fault) -> tuple[object, ...]:
    return (fault.line, fault.column, fault.code, fault.message, fault.hint)


def _order(fault: Fault) -> tuple[object, ...]:
    return (fault.line, fault.column, fault.code, fault.aliases, fault.where, fault.message)


def _fault(code: str, where: str, at: Placed, message: str, hint: str) -> Fault:
    via = getattr(at, "via", None)
    aliases = ((via.line, via.column),) if via is not None else ()
    return Fault(code, where, at.line, at.column, message, hint, aliases)


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
