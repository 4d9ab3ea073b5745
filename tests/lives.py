"""Scripts that take runs through every step there is, act by act, for tests that break each act.

`LIFE` is the script of test_replay; `LATE` adds what it lacks: a page of deadlines, and the purge.
"""

import json
from collections.abc import Iterator

from qinglong_sql.store import Call
from tests.acting import Row
from tests.stores import FakeClock
from tests.test_replay import (
    HOUR_MS,
    LIFE,
    PUBLISHED,
    Act,
    Actor,
    begin,
    converge,
    learn,
    named,
    on_page,
)

FAR_MS = 4_000_000_000_000
LATE: tuple[Act, ...] = (
    named("publish_package", {"outcome": "published"}, **PUBLISHED),
    begin("timed"),
    on_page("deadline_page", "applied", wait_ms=HOUR_MS),
    converge("timed", "settled"),
    named("purge_runs", p_before_ms=FAR_MS, p_limit=32),
)


class Lived:
    """One actor on its way through acts; `calls` are what to do now, `learn` takes the answer."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.actor = Actor("one")

    def acts(self) -> Iterator[tuple[Act, Call]]:
        """Each act with its call. The caller does it and hands the rows to `learn`."""
        for act in LIFE:
            self.clock.advance(act.wait_ms)
            yield act, (act.step, texts(act.of(self.actor)))
        self.actor = Actor("late")
        for act in LATE:
            self.clock.advance(act.wait_ms)
            yield act, (act.step, texts(act.of(self.actor)))

    def learn(self, act: Act, rows: list[Row]) -> None:
        """Take an answer into the next commands. Raises AssertionError when it is not the act's."""
        told = [rows[0].get(key) for key in act.expect] if rows else []
        assert told == list(act.expect.values()), f"{act.step}: {rows}, not {act.expect}"
        learn(self.actor, act, rows)


def texts(params: Row) -> Row:
    """Batches as JSON, which is how they are sent."""
    return {
        name: json.dumps(value) if isinstance(value, list) else value
        for name, value in params.items()
    }


def title(act: Act) -> str:
    """`report_attempts applied failed`: a step, and what it answers."""
    return " ".join([act.step, *map(str, act.expect.values())])
