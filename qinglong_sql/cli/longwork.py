"""Long or dangerous work: asked for before it begins, and how far it is while it goes on."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from qinglong_sql.cli.exits import Exit, Refused, leave
from qinglong_sql.cli.terminal import calm
from qinglong_sql.cli.words import complain

EVERY_S = 0.1


def consent(yes: bool, does: str) -> None:
    """Go on only with --yes or after a yes on a terminal; `does` says what this does.

    Raises Refused after a no. Where nobody can be asked it leaves with exit 2, and the way out.
    """
    if yes:
        return
    if not (_terminal(sys.stdin) and _terminal(sys.stderr)):
        complain(f"nothing done: this {does}; repeat with --yes")
        leave(Exit.BAD_FILE)
    if not click.confirm(calm(f"This {does}. Go on?"), err=True):
        raise Refused("nothing was done")


class Meter:
    """One line on a terminal that tells how far something is; silent elsewhere."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.shown = _terminal(sys.stderr)
        self.wide = 0
        self.next_s = 0.0

    def tell(self, words: str) -> None:
        """Show where it is, at most ten times a second."""
        if not self.shown or time.monotonic() < self.next_s:
            return
        self.next_s = time.monotonic() + EVERY_S
        line = f"{self.label}: {words}"
        click.echo("\r" + line.ljust(self.wide), err=True, nl=False)
        self.wide = len(line)

    def part(self, done: int, whole: int) -> None:
        """Show a share of a whole."""
        self.tell(f"{100 * done // max(whole, 1)} %")

    def clear(self) -> None:
        """Leave nothing on the line."""
        if self.wide:
            click.echo("\r" + " " * self.wide + "\r", err=True, nl=False)
            self.wide = 0


@contextmanager
def meter(label: str) -> Iterator[Meter]:
    """A Meter that clears its line at the end."""
    one = Meter(label)
    try:
        yield one
    finally:
        one.clear()


def size_text(size: int) -> str:
    """Bytes for people: 512 B, 14 KiB, 3.2 MiB."""
    if size < 1024:
        return f"{size} B"
    if size < 1024 * 1024:
        return f"{size // 1024} KiB"
    return f"{size / 1024 / 1024:.1f} MiB"


def count_text(count: int, thing: str, most: int | None = None) -> str:
    """`1 run`, `12 runs`; past `most`, `more than …`."""
    if most is not None and count > most:
        return f"more than {most} {thing}s"
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _terminal(stream: object) -> bool:
    isatty = getattr(stream, "isatty", None)
    return bool(isatty and isatty())
