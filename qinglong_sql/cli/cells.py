"""Text in columns: how wide signs are, wrapping, and tables that fit a terminal."""

import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence

PIPE_COLUMNS = 120  # what is piped is cut nowhere; pictures still need a width
LEAST_COLUMNS = 20
GAP = "  "
TAIL_COLUMNS = 24
INDENT = "    "
_OF_NO_WIDTH = ("Mn", "Me", "Cf", "Cc")


def room() -> int:
    """Columns that a screen has: COLUMNS, else the terminal's; PIPE_COLUMNS when it is none."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said) > 0:
        return max(LEAST_COLUMNS, int(said))
    if sys.stdout is None or not sys.stdout.isatty():
        return PIPE_COLUMNS
    return max(LEAST_COLUMNS, shutil.get_terminal_size((80, 24)).columns)


def cells(text: str) -> int:
    """Columns that a text takes on a terminal: wide signs of East Asia take two."""
    if text.isascii():
        return len(text)
    return sum(_cells_of(sign) for sign in text)


def _cells_of(sign: str) -> int:
    if unicodedata.category(sign) in _OF_NO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def padded(text: str, wide: int, *, right: bool = False) -> str:
    """The text with spaces up to a width in columns; `right` puts it at the right side."""
    space = " " * (wide - cells(text))
    return space + text if right else text + space


def cut(text: str, wide: int, mark: str = "…") -> str:
    """The text, or its beginning and a mark when it is wider."""
    if cells(text) <= wide:
        return text
    left, kept = wide - cells(mark), ""
    for sign in text:
        left -= _cells_of(sign)
        if left < 0:
            break
        kept += sign
    return kept + mark


def wrapped(text: str, wide: int, indent: str = "") -> list[str]:
    """Lines of at most `wide` columns, broken between words and between wide signs.

    A word that is longer, such as an id that somebody copies, stays whole.
    """
    lines, line = [], ""
    for word in _words(text):
        if line and cells(indent + line + word.rstrip()) > wide:
            lines.append(indent + line.rstrip())
            line = ""
        line += word
    return [*lines, indent + line.rstrip()] if line.strip() or not lines else lines


def _words(text: str) -> Iterable[str]:
    """Words with the space behind them; a wide sign is a word of its own."""
    word = ""
    for sign in text:
        if _cells_of(sign) == 2:
            if word:
                yield word
            yield sign
            word = ""
        elif sign == " ":
            yield word + sign
            word = ""
        else:
            word += sign
    if word:
        yield word


def grid(
    head: Sequence[str],
    rows: Iterable[Sequence[str | None]],
    *,
    wide: int | None = None,
    drop: Sequence[str] = (),
    right: Collection[str] = (),
    paint: Callable[[str], str] = str,
) -> list[str]:
    """Lines of a table: a title line, then the rows, as wide as their cells are.

    When it is wider than `wide`, the last column is wrapped; when that does not do, the columns
    named in `drop` go, in that order. `right` are columns of numbers; `paint` colours a cell.
    """
    lines = [list(head), *(["" if cell is None else cell for cell in row] for row in rows)]
    wides = [max(cells(line[i]) for line in lines) for i in range(len(head))]
    kept = [i for i in range(len(head)) if i == 0 or any(line[i] for line in lines[1:])]
    kept = kept if len(lines) > 1 else list(range(len(head)))
    for title in drop:
        least = [*wides[:-1], min(wides[-1], TAIL_COLUMNS)]  # the last one can be wrapped
        if wide is None or _sum(least, kept) <= wide:
            break
        kept = [i for i in kept if head[i] != title]
    front, last = kept[:-1], kept[-1]
    left = None if wide is None else wide - sum(wides[i] + len(GAP) for i in front)
    if not front or left is None or wides[last] <= left:
        front, left = kept, None
    told = []
    for n, line in enumerate(lines):
        shown = [padded(line[i], wides[i], right=head[i] in right) for i in front]
        if left is None or left < TAIL_COLUMNS:  # nothing follows: no space is painted there
            shown[-1] = shown[-1].rstrip()
        if n:
            shown = [paint(cell) for cell in shown]
        if left is None or wide is None:
            told.append(GAP.join(shown).rstrip())
        elif left >= TAIL_COLUMNS:
            lead = " " * (wide - left)
            tail = wrapped(line[last], left) if line[last] else [""]
            told.append((GAP.join(shown) + GAP + tail[0]).rstrip())
            told += [lead + more for more in tail[1:]]
        else:
            told.append(GAP.join(shown).rstrip())
            if n and line[last]:
                told += wrapped(line[last], wide, INDENT)
    return told


def _sum(wides: Sequence[int], kept: Sequence[int]) -> int:
    return sum(wides[i] for i in kept) + len(GAP) * (len(kept) - 1)
