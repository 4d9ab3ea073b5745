"""Waiting between two looks: for a reader that went away, and a database that comes back."""

import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from qinglong_sql.cli.exits import Exit, leave, told_as, without_secrets
from qinglong_sql.cli.words import Unsaid, complain
from qinglong_sql.errors import Displaced

POLL_S = 0.2
TELL_AGAIN_S = 10.0
T = TypeVar("T")


def pause(seconds: float = POLL_S) -> None:
    """Sleep; raises BrokenPipeError when nobody reads standard output any more."""
    try:
        out = sys.stdout.fileno()
        piped = stat.S_ISFIFO(os.fstat(out).st_mode) or stat.S_ISSOCK(os.fstat(out).st_mode)
    except (OSError, ValueError, AttributeError):
        piped = False
    if not piped:
        time.sleep(seconds)
        return
    gone = select.poll()
    gone.register(out, 0)  # only that its other end is closed
    if gone.poll(seconds * 1000):
        raise BrokenPipeError


class Patience:
    """Reads that are tried again while the database is away, which is told now and then."""

    def __init__(self, dsn: str, note: Callable[[str], object] = complain) -> None:
        self.dsn = dsn
        self.note = note
        self.told, self.told_at = "", 0.0

    def of(self, read: Callable[[], T]) -> T | None:
        """What is read, or None when it could not be. Raises what is no expected error."""
        try:
            found = read()
        except Exception as error:
            known = told_as(error)
            if (
                known is None
                or known[0] is not Exit.NOT_READY
                or isinstance(error, BrokenPipeError | Unsaid | Displaced)
            ):
                raise
            if known[1] != self.told or time.monotonic() - self.told_at >= TELL_AGAIN_S:
                self.told, self.told_at = known[1], time.monotonic()
                self.note(f"trying again: {without_secrets(known[1], self.dsn)}")
            return None
        self.told = ""
        return found


@contextmanager
def until_interrupted(words: str = "") -> Iterator[None]:
    """Ctrl-C ends the looking and nothing else; exit 130."""
    try:
        yield
    except KeyboardInterrupt:
        if words:
            complain(words)
        leave(Exit.KILLED)
