"""How times, durations and states look, and how rows are printed."""

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import IO, Any

import click

from qinglong_sql.cli import cells
from qinglong_sql.cli.terminal import calm
from qinglong_sql.duration import ORDER, UNIT_MS, write_duration
from qinglong_sql.graph import LOOKS, OTHER_LOOK

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
LINE_CHARS = 2_000


class Unsaid(OSError):
    """Standard output takes no more: its disk is full, or fails. What a command did is done."""


def say(words: str, *, end: bool = True) -> None:
    """Print to standard output; signs that it does not take are written as escapes.

    Raises BrokenPipeError when nobody reads any more, Unsaid.
    """
    if sys.stdout is not None:
        with _telling():
            shown = calm(words) if sys.stdout.isatty() else words
            click.echo(_writable(shown, sys.stdout.encoding), nl=end)


def say_bytes(raw: bytes, *, flush: bool = True) -> None:
    """Write to standard output as it is. Raises BrokenPipeError, Unsaid."""
    if sys.stdout is not None:
        with _telling():
            sys.stdout.buffer.write(raw)
            if flush:
                sys.stdout.buffer.flush()


@contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        hush()
        raise Unsaid(error.errno, error.strerror) from error


def say_wrapped(text: str, wide: int, hang: int = 0, **style: Any) -> None:
    """Print a text in lines of a width, where lines after the first are indented by `hang`."""
    first, *rest = cells.wrapped(text, wide)
    lines = [first, *(cells.wrapped(" ".join(rest), wide, " " * hang) if rest else [])]
    for line in lines:
        say(click.style(line, **style))


def complain(words: str) -> None:
    """Print to standard error, if it is there; of a line as long as an argument, its beginning."""
    if sys.stderr is not None:
        if len(words) > LINE_CHARS:
            lines = words.split("\n")
            cut = [f"{one[:LINE_CHARS]} …" if len(one) > LINE_CHARS else one for one in lines]
            words = "\n".join(cut)
        try:
            click.echo(_writable(calm(words), sys.stderr.encoding), err=True)
        except OSError:  # else Python tries again at its end, and changes the exit code
            _hush(sys.stderr)


def hush() -> None:
    """Nobody reads standard output any more: what is still written to it is thrown away."""
    _hush(sys.stdout)


def _hush(stream: IO[str]) -> None:
    with suppress(OSError, ValueError, AttributeError):
        fd = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, fd)
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


def sign_of(status: str, *, plain: bool | None = None) -> str:
    """The sign of a state: what colour says is said without it as well."""
    plain = plain_signs() if plain is None else plain
    return LOOKS.get(status, OTHER_LOOK)[1 if plain else 0]


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


def age(ms: int) -> str:
    """A time span in its two largest units, for what nobody counts in seconds: 3d4h, 12m5s."""
    ms = max(0, ms)
    if ms < 10_000:
        return f"{ms / 1000:.1f}s"
    unit = next(UNIT_MS[one] for one in ORDER if ms >= UNIT_MS[one])
    smaller = max((one for one in UNIT_MS.values() if one < unit), default=1)
    return write_duration(ms // max(smaller, 1_000) * max(smaller, 1_000))


def now_ms() -> int:
    """What screens take for now, in epoch milliseconds."""
    return int(time.time() * 1000)


def moment(at_ms: int | None, now: int, *, utc: bool = False, offset: bool = False) -> str:
    """A time of today as HH:MM:SS, any other with its date; `-` for none. `zone` says of where.

    One whose offset is not that of `now` has it behind it, and so has every one with `offset`.
    """
    if at_ms is None:
        return "-"
    at, today = _local(at_ms, utc), _local(now, utc)
    words = at.strftime("%H:%M:%S" if at.date() == today.date() else "%Y-%m-%d %H:%M:%S")
    other = offset or at.utcoffset() != today.utcoffset()
    return words + (at.strftime("%z")[:3] + ":" + at.strftime("%z")[3:5]) * other


def one_zone(times: Iterable[int | None], *, utc: bool = False) -> bool:
    """Whether times share one offset, so that it can be told once for all of them."""
    return len({zone(at_ms, utc=utc) for at_ms in times if at_ms is not None}) < 2


def zone(at_ms: int, *, utc: bool = False) -> str:
    """The zone of the times of a screen, told once: `UTC`, or `UTC+08:00`."""
    said = _local(at_ms, utc).strftime("%z")
    return "UTC" if utc or said == "+0000" else f"UTC{said[:3]}:{said[3:]}"


def _local(at_ms: int, utc: bool) -> datetime:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at if utc else at.astimezone()


def coloured(status: str, words: str = "") -> str:
    """A state, or words for it, in its colour."""
    return click.style(words or status, fg=COLOURS.get(status))


def settle_colour(ctx: click.Context, off: bool = False) -> None:
    """Colours on terminals alone, unless the caller or the environment wants it otherwise.

    `--no-color`, then NO_COLOR, then FORCE_COLOR, then TERM=dumb. Nothing is told by colour alone.
    """
    if off or os.environ.get("NO_COLOR"):
        ctx.color = False
    elif os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        ctx.color = True
    elif os.environ.get("TERM") == "dumb":
        ctx.color = False


def _no_color(ctx: click.Context, param: click.Parameter, off: bool) -> None:
    if off:
        settle_colour(ctx, off)


with_color = click.option(
    "--no-color",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_no_color,
    help="No colours; also NO_COLOR in the environment.",
)
with_utc = click.option("--utc", is_flag=True, help="Times in UTC.")


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    wide: int | None = None,
    drop: Sequence[str] = (),
    right: Sequence[str] = (),
) -> str:
    """Columns of plain text, as wide as they need to be; a state's colour only on terminals.

    `wide` and `drop` as in cells.grid.
    """
    said = (["" if cell is None else str(cell) for cell in row] for row in rows)
    return "\n".join(cells.grid(head, said, wide=wide, drop=drop, right=right, paint=_painted))


def _painted(cell: str) -> str:
    status = cell.strip().rpartition(" ")[2]
    return coloured(status, cell) if status in COLOURS else cell


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
