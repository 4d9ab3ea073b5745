"""Whether the wall clock was set while a process ran: it, and CLOCK_BOOTTIME, count the same time.

What waits stands in the database by the wall clock. A device without a clock of its own begins with
an old time and is set right later; a person, or NTP, may set one back.
"""

import time
from collections.abc import Callable

from qinglong_sql.duration import write_duration
from qinglong_sql.execution import boottime_ms

JUMP_MS = 1_000  # less is what NTP does all day
STEADY_MS = 50  # both clocks were read within that, or the difference says nothing
TRIES = 3


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class ClockWatch:
    """Compares the clocks at each look; the first one was when it was made."""

    def __init__(
        self, wall: Callable[[], int] = wall_ms, steady: Callable[[], int] = boottime_ms
    ) -> None:
        self._wall, self._steady = wall, steady
        self._apart_ms = self._apart()

    def look(self) -> int:
        """Milliseconds by which the wall clock was set ahead since the last look, or back (< 0)."""
        apart_ms = self._apart()
        if apart_ms is None:
            return 0
        before_ms, self._apart_ms = self._apart_ms, apart_ms
        jump_ms = 0 if before_ms is None else apart_ms - before_ms
        return jump_ms if abs(jump_ms) >= JUMP_MS else 0

    def _apart(self) -> int | None:
        for _ in range(TRIES):
            began_ms, now_ms = self._steady(), self._wall()
            if self._steady() - began_ms <= STEADY_MS:
                return now_ms - began_ms
        return None


def words_of_jump(jump_ms: int) -> str:
    """What a person reads of it, and what it does to work that waits."""
    by = write_duration(abs(round(jump_ms, -3)))
    if jump_ms > 0:
        return f"the clock was set ahead by {by}: timeouts, leases and back-offs count it"
    return f"the clock was set back by {by}: what it had put off is due now, deadlines come later"
