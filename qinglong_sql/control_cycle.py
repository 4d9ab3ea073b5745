"""The cycles of one lifecycle of a control process: the coordinator's, and who hears of them.

The coordinator keeps nothing; what one cycle leaves to the next, and whether the database's clock
was set meanwhile, is kept here. The timer is the Lifecycle's.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from qinglong_sql.clock_watch import ClockWatch, words_of_jump
from qinglong_sql.control_log import Log
from qinglong_sql.fence import Fence, trips
from qinglong_sql.scheduler import Cycle, Pages, StageFailed, Turn
from qinglong_sql.store import Store

LOOK_S = 1.0  # how often the database's clock is looked at, at most
STALLED_S = 60.0  # since a cycle came through, besides what an idle one waits

Coordinator = Callable[[Store, Turn, Pages], Cycle]
Words = Callable[[BaseException], str]


class Meter(Protocol):
    """What counts; qinglong_sql.metrics.Metrics is one."""

    def cycle(
        self, lifecycle: str, cycle: Cycle, seconds: dict[str, float], failed: str | None
    ) -> object:
        """A cycle that ended, or that a stage ended."""

    def fault(self, lifecycle: str) -> object:
        """A cycle that raised outside its stages."""

    def ready(self, reason: str | None) -> object:
        """What /readyz says: None, or the reason why not."""

    def sample(self, store: Any) -> Exception | None:
        """Look at what is due; what kept it from that."""

    def pool(self, stats: Mapping[str, int]) -> object:
        """How the pool is used."""

    def text(self) -> bytes:
        """What /metrics answers."""


class Rounds:
    """One cycle a call, True when it moved something or another one should follow at once.

    Raises what the coordinator raises; `failed` is the lifecycle's sink for that, and trips the
    fence when the database is gone. Once the fence is shut no cycle begins.
    """

    def __init__(
        self,
        name: str,
        coordinator: Coordinator,
        store: Store,
        pages: Pages,
        fence: Fence,
        log: Log,
        meter: Meter,
        words: Words,
        *,
        watch: ClockWatch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._coordinator, self._store, self._pages = coordinator, store, pages
        self._fence, self._log, self._meter, self._words = fence, log, meter, words
        self._watch, self._clock = watch, clock
        self._looked = self._came = clock()
        self._turn = Turn(whole=watch is not None)

    def __call__(self) -> bool:
        if self._fence.shut:
            return False
        self._look()
        began = self._clock()
        try:
            cycle = self._coordinator(self._store, self._turn, self._pages)
        except StageFailed as error:
            self._turn = error.cycle.next
            self._log.cycle(self.name, error.cycle, self._clock() - began)
            self._count(error.cycle, error.stage)
            raise
        self._turn, self._came = cycle.next, self._clock()
        self._log.cycle(self.name, cycle, self._came - began)
        self._log.well(self.name)
        self._count(cycle, None)
        return cycle.applied or cycle.next.whole

    def stalled(self, idle_s: float) -> str | None:
        """That no cycle came through for long, as when the database hangs; None when one did."""
        age_s = self._clock() - self._came
        if age_s < STALLED_S + idle_s:
            return None
        return f"no cycle of {self.name} came through for {age_s:.0f}s"

    def failed(self, error: Exception) -> None:
        """Tell of a cycle that failed; never raises."""
        stage = f"stage {error.stage}: " if isinstance(error, StageFailed) else ""
        words = stage + self._words(error)
        if not stage:
            self._counting(lambda: self._meter.fault(self.name))
        if trips(error):
            self._fence.trip(f"{self.name}: {words}")
        else:
            self._log.trouble(self.name, words)

    def _look(self) -> None:
        """Have all runs swept when the database's clock was set back (DESIGN §5)."""
        if self._watch is None or self._clock() - self._looked < LOOK_S:
            return
        self._looked = self._clock()
        jump_ms = self._watch.look()
        if jump_ms < 0:
            self._turn = replace(self._turn, swept="", whole=True)
        if jump_ms:
            words = f"of the database {words_of_jump(jump_ms)}"
            self._log.say("warning", "clock", words, jump_ms=jump_ms)

    def _count(self, cycle: Cycle, failed: str | None) -> None:
        self._counting(lambda: self._meter.cycle(self.name, cycle, cycle.seconds, failed))

    def _counting(self, count: Callable[[], object]) -> None:
        try:
            count()
        except Exception as error:  # who counts wrongly keeps nobody from working
            self._log.trouble("metrics", self._words(error))
