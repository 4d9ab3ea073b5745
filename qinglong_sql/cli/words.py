"""How times, durations and states look, and how rows are printed."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import click

from qinglong_sql.duration import write_duration

COLOURS = {
    "succeeded": "green",
    "failed": "red",
    "timed_out": "red",
    "lost": "red",
    "cancelled": "yellow",
    "skipped": "yellow",
    "retry_wait": "yellow",
    "running": "cyan",
    "ready": "blue",
}
Row = dict[str, Any]


def say(words: str, *, end: bool = True) -> None:
    """Print to standard output; signs that it does not take are written as escapes.

    Raises BrokenPipeError when nobody reads any more.
    """
    if sys.stdout is not None:
        click.echo(_writable(words, sys.stdout.encoding), nl=end)


def complain(words: str) -> None:
    """Print to standard error, if it is there."""
    if sys.stderr is not None:
        with suppress(OSError):
            click.echo(_writable(words, sys.stderr.encoding), err=True)


def hush() -> None:
    """Nobody reads standard output any more: what is still written to it is thrown away."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def plain_signs() -> bool:
    """Whether pictures are drawn with ASCII signs: the locale or the stream takes no others."""
    wanted = next((os.environ[n] for n in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(n)), "")
    if wanted in ("C", "POSIX") or sys.stdout is None:
        return True
    try:
        "✔│├─▶".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def _writable(words: str, encoding: str | None) -> str:
    # click would write UTF-8 to a stream that says it is ASCII
    encoding = encoding or "ascii"
    return words.encode(encoding, "backslashreplace").decode(encoding)


def print_json(value: object) -> None:
    """One JSON document on one line, in ASCII where nothing else can be written."""
    encoding = (sys.stdout.encoding if sys.stdout is not None else "") or "ascii"
    utf8 = encoding.lower().replace("-", "").startswith("utf")
    say(json.dumps(value, ensure_ascii=not utf8))


def clock(at_ms: int | None, *, utc: bool = False) -> str:
    """Epoch milliseconds as a local time with its offset; `-` for none."""
    if at_ms is None:
        return "-"
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return (at if utc else at.astimezone()).strftime("%Y-%m-%d %H:%M:%S%z")


def span(start_ms: int | None, end_ms: int | None) -> str:
    """The time between two instants in the package file's own notation; `-` when unknown."""
    if start_ms is None or end_ms is None:
        return "-"
    ms = max(0, end_ms - start_ms)
    if ms < 10_000:
        return f"{ms / 1000:.1f}s"
    return write_duration(ms // 1000 * 1000)


def coloured(status: str) -> str:
    return click.style(status, fg=COLOURS.get(status))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns of plain text, as wide as they need to be; a state's colour only on terminals."""
    from rich.cells import cell_len

    lines = [list(head), *(["" if cell is None else str(cell) for cell in row] for row in rows)]
    wide = [max(cell_len(line[i]) for line in lines) for i in range(len(head))]

    def padded(line: Sequence[str], first: bool) -> str:
        cells = []
        for i, cell in enumerate(line):
            shown = cell if first or cell not in COLOURS else coloured(cell)
            cells.append(shown + " " * (wide[i] - cell_len(cell)))
        return "  ".join(cells).rstrip()

    return "\n".join(padded(line, n == 0) for n, line in enumerate(lines))


def print_rows(rows: list[Row], columns: Sequence[tuple[str, str]], empty: str) -> None:
    """Rows as a table under the given (title, column) pairs; `empty` says what none means."""
    if not rows:
        say(empty)
        return
    say(
        table(
            [title for title, _ in columns],
            [[cell(row[name]) for _, name in columns] for row in rows],
        )
    )


def cell(value: object) -> str:
    return "-" if value is None or value == "" else str(value)
