"""The text of a package file as its faults may show it: the line with a caret, and no secret.

A value below `env` may be a password, so it is hidden in every line that is shown; so is what a key
that nobody knows holds, since a slip in the indentation makes `TOKEN` a key of the task. Of a file
that could not be read to its end only lines with a known key are shown, and none that looks like a
part of an environment.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field

# PyYAML ends a line at each of these, so the shown line must as well.
LINE_END = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
WIDTH = 120
HIDDEN = "***"
CUT = "..."
NEAR = 8  # so many widths on either side of a place are looked at
Piece = tuple[int, str, bool]  # where it starts from 0, its text, whether it is hidden
# Keys that hold an environment, and what one slip of the finger makes of `env`.
ENV_KEY = re.compile(
    r"env(s|iron|[_-]?vars?)?|e\w{0,2}v\w*(iro|rio|nm)\w*|variables|vars|x-.*env.*"
    r"|.nv|e.v|en.|nv|ev|en|nev|evn|.env|e.nv|en.v|env.",
    re.IGNORECASE,
)
PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]*")
LIST_MARK = re.compile(r"[\s-]*")
KEY_OF_LINE = re.compile(r"[\s-]*(?P<key>[\"']?[\w.-]+[\"']?\s*:)(?=\s|$)")
FIELDS = (
    "package", "name", "defaults", "tasks", "workflows", "triggers", "steps", "task", "needs",
    "run", "cwd", "timeout", "retry", "idempotent", "on_lost", "queue", "attempts", "backoff",
    "max_backoff", "on", "cron", "tz", "workflow", "misfire", "overlap",
)  # fmt: skip
FIELD_WORD = re.compile(rf"(?<![\w.-])({'|'.join(FIELDS)})(?![\w.-])")
FIELD_IN_LINE = re.compile(rf"(?<![\w.-])[\"']?({'|'.join(FIELDS)})[\"']?\s*:")
WORD = re.compile(r"[\w.-]+")
# An environment, or a part of one, as far as a line by itself can tell.
ENV_IN_LINE = re.compile(
    r"(?:^\s*(?=:)"  # the colon of a name on the line before
    r"|(?<![\w.-])(?i:env\w*|e\w{0,2}v\w*nm\w*|vars)(?![\w.-])"
    r"|(?<![\w.-])[A-Z][A-Z0-9_]*[\"']?\s*[:=])[\"':\s]*"
)
# What in a command may be a secret, as far as a line by itself can tell: to its end.
SECRET_IN_LINE = re.compile(
    r"(?<![a-z])(authori[sz]ation|bearer|basic |\w*token|\w*passw|\w*secret|\w*api[_-]?key|cookie"
    r"|\w*credential)|(?<=://)[^/\s\"'@]*:[^/\s\"']*@|(?<=\s)(-u|--user)[= \"',]",
    re.IGNORECASE,
)
COMMENT = re.compile(r"(?:^|(?<=\s))#.*")


@dataclass(frozen=True, slots=True)
class Hidden:
    """A part of the file that is not shown: lines and columns from 1, the end not included."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True)
class Source:
    """A file's text; `unread` is the (line, column) behind which nothing is known of it.

    `unread_env` says whether that place is inside of an environment.
    """

    text: str = ""
    hidden: tuple[Hidden, ...] = ()
    unread: tuple[int, int] | None = None
    unread_env: bool = False
    lines: tuple[str, ...] = field(init=False, default=())
    _pieces: dict[int, list[Piece]] = field(init=False, default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", tuple(LINE_END.split(self.text)))

    def excerpt(self, line: int, column: int, width: int = WIDTH) -> tuple[str, str] | None:
        """A line and the line with the caret below it, both at most `width` columns; None: no such.

        Tabs are one blank, what does not print is an escape, wide characters count two columns.
        """
        if not 1 <= line <= len(self.lines) or not self.lines[line - 1].strip():
            return None
        if line not in self._pieces:
            self._pieces[line] = _pieces(self.lines[line - 1], self._spans(line))
        before = after = ""
        for start, text, hidden in _near(self._pieces[line], column - 1, width * NEAR):
            shown = HIDDEN if hidden else visible(text)
            if start + len(text) < column:
                before += shown
            elif start < column and not hidden:
                before += visible(text[: column - 1 - start])
                after += visible(text[column - 1 - start :])
            else:
                after += shown
        return _fitted(before, after, width)

    def _spans(self, line: int) -> list[tuple[int, int]]:
        """What is hidden of a line, as (from, to) counted from 0, in order."""
        size = len(self.lines[line - 1])
        spans = [
            (
                part.column - 1 if part.line == line else 0,
                part.end_column - 1 if part.end_line == line else size,
            )
            for part in self.hidden
            if part.line <= line <= part.end_line
        ]
        if self.unread is not None and self._may_be_env(line):
            text = self.lines[line - 1]
            found = ENV_IN_LINE.search(text) or KEY_OF_LINE.match(text) or LIST_MARK.match(text)
            rest = text[found.end() :] if found else text
            spans.append((size - len(rest.lstrip(" \t")), size))
        if self.unread is not None and (secret := SECRET_IN_LINE.search(self.lines[line - 1])):
            spans.append((secret.start(), size))
        comment = COMMENT.search(self.lines[line - 1])
        if comment and ENV_IN_LINE.search(comment[0]):
            spans.append(comment.span())
        joined: list[tuple[int, int]] = []
        for start, end in sorted(span for span in spans if span[0] < span[1]):
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((start, end))
        return joined

    def _may_be_env(self, line: int) -> bool:
        """Whether a line of an unreadable file may belong to an environment, as far as it looks."""
        here = self.lines[line - 1]
        inside = self.unread is not None and line >= self.unread[0] and self.unread_env
        if inside or ENV_IN_LINE.search(here):
            return True
        if not FIELD_IN_LINE.search(here):
            return not self._apart_from_env(line)
        indent = _indent(here)
        for text in reversed(self.lines[: line - 1]):
            if ENV_IN_LINE.search(text) and text.count("{") > text.count("}"):
                return True
            if not text.strip() or text.lstrip().startswith("#") or _indent(text) >= indent:
                continue
            key = KEY_OF_LINE.match(text)
            word = key["key"].strip("\"': \t") if key else ""
            if ENV_KEY.fullmatch(word) or word.startswith("x-"):
                return True
            indent = _indent(text)
        return False

    def _apart_from_env(self, line: int) -> bool:
        """Whether no environment reaches down to a line in which no key is to be seen.

        That is so when none stands above it, or when it was closed: by its braces, or by a line
        that is indented less.
        """
        here = self.lines[line - 1]
        near = next((n for n in range(line, 0, -1) if _like_env(self.lines[n - 1])), 0)
        if "=" in here or near == line:
            return False
        if not near:
            return True
        top, *rest = self.lines[near - 1 : line]
        between = "".join([top, *rest[:-1]])
        if not FIELD_WORD.search(here) or between.count("{") != between.count("}"):
            return False
        return "{" in top or any(one.strip() and _indent(one) < _indent(top) for one in rest)


def _like_env(text: str) -> bool:
    """Whether a line may begin an environment or be a part of one, misspelt ones included."""
    return bool(ENV_IN_LINE.search(text)) or any(
        ENV_KEY.fullmatch(word) or word.startswith("x-") for word in WORD.findall(text)
    )


def visible(text: str) -> str:
    """The text with tabs as one blank, and escapes for what does not print or could mislead."""
    return "".join(c if c.isprintable() else " " if c == "\t" else f"\\u{ord(c):04x}" for c in text)


def name_shown(key: str) -> str:
    """As much of a key in an environment as cannot be a value: `TOKEN...` of `TOKEN=secret`."""
    name = PLAIN_NAME.match(key)
    return key if name and name[0] == key else f"{name[0] if name else ''}..."


def file_shown(key: str) -> str:
    """The same inside of a variable, where only `file` has a place and all else may be a value."""
    return key if key == "file" else CUT


def columns(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(_width(c) for c in text)


def _width(c: str) -> int:
    return 0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip(" \t"))


def _near(pieces: list[Piece], place: int, far: int) -> Iterator[Piece]:
    """Of the pieces what is no further from a place: a line may be as long as a file."""
    low, high = max(0, place - far), place + far
    for start, text, hidden in pieces:
        if start + len(text) < low or start > high:
            continue
        if hidden:
            yield start, text, hidden
        else:
            first = max(start, low)
            yield first, text[first - start : high - start], hidden


def _pieces(line: str, spans: list[tuple[int, int]]) -> list[Piece]:
    """The line's pieces, in order."""
    pieces = []
    done = 0
    for start, end in spans:
        if start > done:
            pieces.append((done, line[done:start], False))
        pieces.append((start, line[start:end], True))
        done = end
    if done < len(line):
        pieces.append((done, line[done:], False))
    return pieces


def _fitted(before: str, after: str, width: int) -> tuple[str, str]:
    """The line and its caret, shortened around the caret."""
    if columns(before) + columns(after) > width:
        room = width // 2 - len(CUT)
        if columns(before) > width // 2:
            before = CUT + _first(before[::-1], room)[::-1]
        room = width - columns(before)
        if columns(after) > room:
            after = _first(after, room - len(CUT)) + CUT
    return before + after, " " * columns(before) + "^"


def _first(text: str, room: int) -> str:
    """As much of the beginning as fits into `room` columns."""
    used = 0
    for index, c in enumerate(text):
        used += _width(c)
        if used > room:
            return text[:index]
    return text
