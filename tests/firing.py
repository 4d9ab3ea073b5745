"""A driver that fires triggers and runs what they start, on a clock that the test moves.

It asks `next_fire` itself what is due, apart from the schedule stage. All else goes through the
store's own steps, in pages, as a scheduler and a worker take them.
"""

import heapq
import itertools
from collections import Counter
from dataclasses import dataclass, field

from qinglong_sql.cron_fire import next_fire
from qinglong_sql.limits import PAGE_SIZE
from qinglong_sql.stage import STAGES, Stage
from qinglong_sql.store import Store
from tests import acting
from tests.acting import Held, Row
from tests.stores import FakeClock

OFFERS = 64


@dataclass(slots=True)
class Driver:
    """Fires the active triggers of a store; `fired` has (trigger, time) in the order of firing."""

    store: Store
    clock: FakeClock
    fired: list[tuple[str, int]] = field(default_factory=list)
    triggers: dict[str, Row] = field(default_factory=dict)
    names: "itertools.count[int]" = field(default_factory=itertools.count)

    def pass_time(self, until_ms: int, *, every_ms: int) -> None:
        """Let the clock pass until just before `until_ms`, and now and then do all that is due."""
        rows = self.store.read("trigger_state", state="active")
        self.triggers = {row["trigger_key"]: row for row in rows}
        due: list[tuple[int, str]] = []
        for key in self.triggers:
            self._put_next(due, key, self.clock.now_ms - 1)
        acting.register(self.store)
        while True:
            while due and due[0][0] <= self.clock.now_ms:
                at_ms, key = heapq.heappop(due)
                assert self.fire(key, at_ms)["outcome"] == "created"
                self.fired.append((key, at_ms))
                self._put_next(due, key, at_ms)
            self.settle()
            if self.clock.now_ms == until_ms - 1:
                return
            self.clock.set(min(self.clock.now_ms + every_ms, until_ms - 1))

    def fire(self, key: str, at_ms: int) -> Row:
        """Start the run of a trigger at a scheduled time; the same run when it is repeated."""
        trigger = self.triggers[key]
        return self.store.call(
            "start_run",
            p_package_key=trigger["package_key"],
            p_kind=trigger["kind"],
            p_target_key=trigger["target_key"],
            p_run_key=f"cron {key} {at_ms}",
            p_input="{}",
        )[0]

    def settle(self) -> None:
        """Drive everything that runs to its end; each command succeeds at once."""
        self._pages(STAGES["task_admission"])
        while held := self._lease():
            acting.run(self.store, *held)
            acting.report(self.store, *held)
            self._pages(STAGES["frontier"])

    def counts(self) -> Counter[str]:
        """Runs by what they run, as the store has them; all of them succeeded."""
        rows = self.store.read("run_state")
        assert {row["status"] for row in rows} <= {"succeeded"}
        return Counter(row["target_key"] for row in rows)

    def _put_next(self, due: list[tuple[int, str]], key: str, after_ms: int) -> None:
        trigger = self.triggers[key]
        if (at_ms := next_fire(trigger["cron"], trigger["tz"], after_ms)) is not None:
            heapq.heappush(due, (at_ms, key))

    def _lease(self) -> list[Held]:
        rows = acting.offer_rows(self.store, [f"o{next(self.names)}" for _ in range(OFFERS)])
        return [
            Held(row["attempt_id"], row["fence"], acting.token(row["offer_id"]), row)
            for row in rows
        ]

    def _pages(self, stage: Stage) -> None:
        while len(self.store.page(stage, acting.START, PAGE_SIZE)) == PAGE_SIZE:
            pass
