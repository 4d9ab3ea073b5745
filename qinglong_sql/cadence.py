"""One non-overlapping timer: coalesce, back off, drain, stop (DESIGN §7).

A cycle that applied something is followed by the next at once; idle ones back off from
IDLE_FIRST_MS by a quarter each time up to the cadence. The local loop needs only `next_delay`; a
`Lifecycle` owns a thread with such a timer.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from qinglong_sql.limits import IDLE_FIRST_MS, IDLE_GROWTH


def next_delay(previous_ms: float, *, applied: bool, idle_ms: float) -> float:
    """Milliseconds to wait after a cycle; `previous_ms` is what was waited before it."""
    if applied:
        return 0.0
    return min(max(float(IDLE_FIRST_MS), previous_ms * IDLE_GROWTH), float(idle_ms))


def drain(
    cycle: Callable[[], bool],
    *,
    cycles: int,
    within_ms: float,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Repeat `cycle` until it applies nothing; True when that came within both bounds.

    `clock` counts seconds. What a cycle raises is raised.
    """
    end = clock() + within_ms / 1000
    for _ in range(cycles):
        if not cycle():
            return True
        if clock() >= end:
            break
    return False


class Lifecycle:
    """The owner of one timer: a thread that runs `cycle` and never two of it at once.

    `cycle` says whether it applied something. What it raises goes to `on_error`, which cannot stop
    the timer, and counts as idle. `clock` counts seconds; `sleep` waits on the condition it is
    given, for at most so many seconds, and may return early.
    """

    def __init__(
        self,
        cycle: Callable[[], bool],
        *,
        name: str,
        idle_ms: float,
        on_error: Callable[[Exception], object],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[threading.Condition, float], object] = threading.Condition.wait,
    ) -> None:
        self._cycle = cycle
        self._idle_ms = idle_ms
        self._on_error = on_error
        self._clock = clock
        self._sleep = sleep
        self._changed = threading.Condition()
        self._asked = self._running = self._stopping = False
        self._finished = 0
        self._outcome: bool | Exception = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def start(self) -> None:
        """Run the first cycle at once. Raises RuntimeError when started twice."""
        self._thread.start()

    def ask(self, within_s: float) -> bool:
        """Join the cycle that runs, or have one run now; True when it applied something.

        Raises what the cycle raised, TimeoutError, and RuntimeError once it was asked to stop.
        """
        with self._changed:
            if self._stopping:
                raise RuntimeError("this lifecycle has stopped")
            wanted = self._finished + 1
            if not self._running:
                self._asked = True
                self._changed.notify_all()
            ended = self._changed.wait_for(
                lambda: self._finished >= wanted or (self._stopping and not self._running), within_s
            )
            if not ended:
                raise TimeoutError("the cycle did not end in time")
            if self._finished < wanted:
                raise RuntimeError("this lifecycle has stopped")
            if isinstance(self._outcome, Exception):
                raise self._outcome
            return self._outcome

    def stop(self, within_s: float) -> bool:
        """Begin no other cycle; True when the one that runs has ended in time. May be repeated."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(within_s)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        delay_ms = 0.0
        while self._turn(delay_ms):
            try:
                outcome: bool | Exception = self._cycle()
            except Exception as error:
                outcome = error
            with self._changed:
                self._running = False
                self._finished += 1
                self._outcome = outcome
                self._changed.notify_all()
            if isinstance(outcome, Exception):
                with suppress(Exception):
                    self._on_error(outcome)
            delay_ms = next_delay(delay_ms, applied=outcome is True, idle_ms=self._idle_ms)

    def _turn(self, delay_ms: float) -> bool:
        """Wait until the delay is over or somebody asks; False when it is time to stop."""
        with self._changed:
            end = self._clock() + delay_ms / 1000
            while not (self._asked or self._stopping):
                left = end - self._clock()
                if left <= 0:
                    break
                self._sleep(self._changed, left)
            self._running = not self._stopping
            self._asked = False
            return self._running
