"""Who is not answered as asked, and how that is told: to the client, and in the log."""

import threading
import time
from collections.abc import Callable
from typing import Final

import psycopg

from qinglong_sql.control_log import Level, Log
from qinglong_sql.errors import (
    Conflict,
    Fenced,
    Malformed,
    NotReady,
    QinglongError,
    Unknown,
    Violated,
)
from qinglong_sql.store import Contended

LINES_A_SECOND: Final = 10
RETRY_S: Final = 1
STATUS: Final[dict[type[QinglongError], int]] = {
    Malformed: 400, Unknown: 404, Conflict: 409, Fenced: 410,
}  # fmt: skip
AWAY: Final = "the database does not answer now; ask again"
# connection, resources, a server that ends or cannot be written to, input and output
AWAY_CLASSES: Final = frozenset({"08", "53", "57", "58"})
READ_ONLY: Final = "25006"


class Refusal(Exception):
    """An answer that is not 200: what the client gets, and the reason that is counted.

    `after_s` is when to ask again. A connection that `closes` serves nobody any more.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        reason: str,
        *,
        after_s: int | None = None,
        closes: bool = False,
        allow: str = "",
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.reason = status, code, message, reason
        self.after_s, self.closes, self.allow = after_s, closes, allow


def busy(message: str) -> Refusal:
    """Too much at once."""
    return Refusal(503, "busy", message, "busy", after_s=RETRY_S)


def away() -> Refusal:
    """The database cannot be asked."""
    return Refusal(503, NotReady.code, AWAY, "database", after_s=RETRY_S)


def refusal_of(error: Exception, told: Callable[[Exception], object]) -> Refusal:
    """What an error of a call is to the client. `told` gets what is a fault of ours."""
    match error:
        case Refusal():
            return error
        case Contended():
            words = "somebody else held it; nothing changed, ask again"
            return Refusal(503, "contended", words, "contended", after_s=RETRY_S)
        case NotReady():
            told(error)
            return Refusal(503, error.code, "not ready; the log of the ingress says why",
                           "database", after_s=RETRY_S)  # fmt: skip
        case QinglongError() if type(error) in STATUS:
            return Refusal(STATUS[type(error)], error.code, error.message, "step")
        case psycopg.Error() if is_away(error):
            return away()
    told(error)
    return Refusal(500, Violated.code, "a fault of the ingress; its log says more", "fault")


def is_away(error: Exception) -> bool:
    """Whether it is the database, or the way to it, and no fault of a call."""
    code = getattr(error, "sqlstate", None)
    if code is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return str(code)[:2] in AWAY_CLASSES or code == READ_ONLY


class Told:
    """Lines of the log about refusals, at most LINES_A_SECOND; the others are counted.

    Nothing of a body or a header stands in them, but what a certificate says and where it is from.
    """

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._lock = threading.Lock()
        self._second, self._said, self._more = -1, 0, 0

    def say(self, level: Level, words: str, **more: object) -> None:
        """One line, if there is room for it."""
        with self._lock:
            second = int(self._clock())
            if second != self._second:
                self._second, self._said = second, 0
            if self._said >= LINES_A_SECOND:
                self._more += 1
                return
            self._said += 1
            untold, self._more = self._more, 0
        if untold:
            words = f"{words} ({untold} others before it are not told)"
        self._log.say(level, "refused", words, untold=untold, **more)
