"""Scripts that take runs through every step there is, act by act, for tests that break each act.

`LIFE` is that of test_replay; `LATE` adds what it lacks: two steps that wait at once, a page of
deadlines, and the purge.
"""

import json
from collections.abc import Iterator

from qinglong_sql.canonical import canonical
from qinglong_sql.store import Call
from tests import acting
from tests.acting import GRACE_MS, Row
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
    lease,
    named,
    on_page,
    on_run,
)

WIDE = acting.model(
    {"work": acting.task()},
    {
        "flow": acting.workflow({"a": [], "b": []}),
        "timed": acting.workflow({"a": []}, timeout_ms=HOUR_MS),
    },
)
FAR_MS = 4_000_000_000_000


def session(name: str, *, generation: int) -> Act:
    return named(
        "register_worker", {"generation": generation}, p_worker_id="w1", p_session_id=name,
        p_queues='["default"]', p_slots=8, p_self_fencing=1, p_grace_ms=GRACE_MS,
    )  # fmt: skip


LATE: tuple[Act, ...] = (
    named(
        "publish_package", {"outcome": "published"}, **PUBLISHED | {"p_manifest": canonical(WIDE)}
    ),
    session("s2", generation=2),
    session("s1", generation=3),
    # two wait, and one is leased
    begin("flow"),
    on_run("admit_tasks", "applied"),
    lease(1),
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
