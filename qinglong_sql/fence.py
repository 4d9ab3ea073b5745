"""Whether this control process may work: one way from starting to stopped (DOMAIN §7, DESIGN §7).

The database going away trips the fence once. Nothing leads back: a new process comes up through all
gates of the boot. What one statement ran into never trips it.
"""

import threading
from collections.abc import Callable
from typing import Final, Literal

import psycopg

State = Literal["starting", "ready", "unavailable", "stopped"]
ORDER: Final[tuple[State, ...]] = ("starting", "ready", "unavailable", "stopped")
# connection class, read-only, and the server ending a backend: shutdown, crash, start, dropped
TRIPPING_CLASS: Final = "08"
READ_ONLY: Final = "25006"
TRIPPING: Final = frozenset({READ_ONLY, "57P01", "57P02", "57P03", "57P04"})


def trips(error: BaseException | None) -> bool:
    """Whether an error says that the database, or the way to it, is gone.

    True for SQLSTATE class 08, 25006 and 57P01 to 57P04, and for errors of the network, which have
    none; False for all else, such as a lost race, a lock that was waited for, or a cancelled
    statement. What a stage raised is looked for behind the StageFailed.
    """
    while error is not None:
        code = getattr(error, "sqlstate", None)
        if code is not None:
            return str(code)[:2] == TRIPPING_CLASS or code in TRIPPING
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError):
            return True
        error = error.__cause__
    return False


class Fence:
    """The one place that says whether work may begin. May be used by all threads.

    `on_trip` is called once, by the thread that trips it, after the state has changed.
    """

    def __init__(self, on_trip: Callable[[str], object] = lambda reason: None) -> None:
        self._on_trip = on_trip
        self._lock = threading.Lock()
        self._state: State = "starting"
        self._reason = "starting"
        self._tripped = ""

    @property
    def state(self) -> State:
        return self._state

    @property
    def shut(self) -> bool:
        """Whether no work may begin any more."""
        return self._state in ("unavailable", "stopped")

    @property
    def tripped(self) -> str:
        """Why the database counts as gone; empty while it does not."""
        return self._tripped

    def refusal(self) -> str | None:
        """Why this process is not ready, for people; None when it is."""
        return None if self._state == "ready" else self._reason

    def starting(self, reason: str) -> None:
        """Say what the boot waits for; later it says nothing any more."""
        with self._lock:
            if self._state == "starting":
                self._reason = reason

    def ready(self) -> bool:
        """Open. False when it is too late for that."""
        return self._to("ready", "")

    def trip(self, reason: str) -> bool:
        """Close for good because the database is gone; True for the first who says so."""
        with self._lock:
            if self._tripped or self._state == "stopped":
                return False
            self._tripped = reason
            if self._state != "unavailable":  # else a stop came first, and its words stay
                self._state, self._reason = "unavailable", reason
        self._on_trip(reason)
        return True

    def withdraw(self, reason: str) -> bool:
        """Close because this process is to stop."""
        return self._to("unavailable", reason)

    def stopped(self) -> bool:
        """Say that all has ended."""
        return self._to("stopped", "stopped")

    def _to(self, state: State, reason: str) -> bool:
        with self._lock:
            if ORDER.index(state) <= ORDER.index(self._state):
                return False
            self._state, self._reason = state, reason
            return True
