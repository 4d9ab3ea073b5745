"""What a lifecycle calls, the store over a pool, and both as they are on a real database."""

import io
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

from qinglong_sql import cadence
from qinglong_sql.control_boot import recover
from qinglong_sql.control_cycle import LOOK_S, Rounds
from qinglong_sql.control_log import SAME_AGAIN_S, Log
from qinglong_sql.errors import Conflict
from qinglong_sql.fence import Fence, trips
from qinglong_sql.limits import PAGE_SIZE
from qinglong_sql.scheduler import CLUSTER, Cycle, StageFailed, Turn, scheduler_cycle
from qinglong_sql.stage import Tally
from qinglong_sql.store.pooled import PooledStore, open_pool
from tests import acting
from tests.pgbouncer import UNNOTICED
from tests.server import Server
from tests.test_cadence import wait_until
from tests.test_control import Counted, Idle
from tests.test_fence import of_state


def rounds_of(coordinator: Callable[..., Cycle], fence: Fence, out: io.StringIO, meter: Counted,
              **more: Any) -> Rounds:  # fmt: skip
    log = Log("text", "info", out)
    return Rounds("scheduler", coordinator, Idle(), CLUSTER, fence, log, meter, str, **more)


def test_a_cycle_that_did_something_is_one_line_and_an_idle_one_none() -> None:
    tallies = iter([
        {"frontier": Tally(scanned=3, applied=2, contended=1, effects=5), "retry": Tally()},
        {"frontier": Tally(scanned=9, blocked=8, contended=1)},
        {"expiry": Tally(scanned=1, faulted=1)},
    ])  # fmt: skip
    out, meter = io.StringIO(), Counted()
    rounds = rounds_of(lambda *_: Cycle(next(tallies), Turn()), Fence(), out, meter)
    assert [rounds(), rounds(), rounds()] == [True, False, False]
    first, second = out.getvalue().splitlines()
    assert re.fullmatch(r"\S+ \S+ scheduler: frontier 2 \(5 effects\) in \d\.\d{3}s", first)
    assert "warning: scheduler: expiry 0 (1 FAULTED, see `qinglong-sql status`)" in second
    assert meter.told == [("scheduler", None)] * 3


def test_a_failed_stage_is_told_once_counted_and_ends_with_words_that_it_works_again() -> None:
    turns, out, meter, fence = [], io.StringIO(), Counted(), Fence()
    fails = [True, True, False]

    def coordinator(store: Any, turn: Turn, pages: Any) -> Cycle:
        turns.append(turn.number)
        if fails.pop(0):
            done = Cycle({"expiry": Tally(scanned=1, applied=1)}, Turn(turn.number + 1))
            raise StageFailed("retry", done) from Conflict("lost")
        return Cycle({}, Turn(turn.number + 1))

    rounds = rounds_of(coordinator, fence, out, meter)
    for _ in range(2):
        with pytest.raises(StageFailed) as raised:
            rounds()
        rounds.failed(raised.value)
    assert rounds() is False
    assert turns == [0, 1, 2], "the next turn is the failed cycle's"
    assert meter.told == [("scheduler", "retry")] * 2 + [("scheduler", None)]
    lines = [line.partition("+0000 ")[2] or line for line in out.getvalue().splitlines()]
    assert [line for line in lines if "stage retry" in line or "again" in line] == lines[1:2] + (
        lines[3:]
    )
    assert len(lines) == 4 and "works again" in lines[3] and fence.state == "starting"


def test_a_stage_that_lost_the_database_trips_the_fence_and_no_cycle_begins() -> None:
    out, meter, asked, ran = io.StringIO(), Counted(), [], []

    def coordinator(*_: Any) -> Cycle:
        ran.append(1)
        raise StageFailed("expiry", Cycle({}, Turn())) from of_state("57P01")

    fence = Fence(asked.append)
    rounds = rounds_of(coordinator, fence, out, meter)
    fence.ready()
    with pytest.raises(StageFailed) as raised:
        rounds()
    rounds.failed(raised.value)
    assert asked == ["scheduler: stage expiry: stage expiry failed"]
    assert rounds() is False and ran == [1]


def test_who_counts_wrongly_keeps_nobody_from_working() -> None:
    out, meter = io.StringIO(), Counted()
    meter.cycle = lambda *_: 1 / 0  # type: ignore[method-assign]
    rounds = rounds_of(lambda *_: Cycle({"retry": Tally(1, 1)}, Turn()), Fence(), out, meter)
    assert rounds() and rounds()
    assert out.getvalue().count("error: metrics: division by zero") == 1


def test_a_clock_of_the_database_that_was_set_back_has_everything_swept() -> None:
    jumps, now, turns = [0, -3_600_000, 3_600_000], [0.0], []

    class Watch:
        def look(self) -> int:
            return jumps.pop(0)

    def coordinator(store: Any, turn: Turn, pages: Any) -> Cycle:
        turns.append(turn.whole)
        return Cycle({}, Turn(whole=len(turns) < 2))

    out = io.StringIO()
    rounds = rounds_of(coordinator, Fence(), out, Counted(), watch=Watch(), clock=lambda: now[0])
    assert rounds() is True, "the sweep goes on at once"
    for _ in range(3):
        now[0] += LOOK_S
        rounds()
        rounds()  # within the same second nobody looks
    assert turns == [True, True, False, True, False, False, False]
    said = [line.partition("of the database ")[2] for line in out.getvalue().splitlines()]
    assert [line[:32] for line in said] == ["the clock was set back by 1h: wh",
                                            "the clock was set ahead by 1h: t"]  # fmt: skip


def test_trouble_that_repeats_is_said_once_a_minute() -> None:
    now, out = [0.0], io.StringIO()
    log = Log("text", "warning", out, clock=lambda: now[0])
    for _ in range(3):
        log.trouble("a", "x")
        log.trouble("b", "x")
        now[0] += SAME_AGAIN_S / 2
    log.trouble("a", "y")
    log.say("info", "more", "is not said")
    said = [line.partition("error: ")[2] for line in out.getvalue().splitlines()]
    assert said == ["a: x", "b: x", "a: x", "b: x", "a: y"]


class Paged(Idle):
    """A store whose recovery has so many pages left."""

    def __init__(self, **outcomes: list[str]) -> None:
        self.outcomes = outcomes
        self.asked: list[str] = []

    def page(self, stage: Any, after: Any, limit: int) -> list[Any]:
        self.asked.append(stage.name)
        left = self.outcomes.get(stage.name, [])
        page, self.outcomes[stage.name] = left[:limit], left[limit:]
        return [
            {"run_id": f"r{n:06}", "due_at_ms": after[0] + 1, "outcome": outcome, "effects": 0}
            for n, outcome in enumerate(page)
        ]


def test_recovery_goes_on_until_nothing_safe_is_outstanding() -> None:
    store = Paged(expiry=["applied"] * (PAGE_SIZE * 5) + ["blocked"], retry=["applied"])
    assert recover(store, CLUSTER, threading.Event()) == "161 runs moved, in 3 passes"
    assert store.asked == [*["expiry"] * 4, "retry", *["expiry"] * 2, "retry", "expiry", "retry"]
    held = Paged(expiry=["contended"] * PAGE_SIZE + ["faulted"])
    assert recover(held, CLUSTER, threading.Event()) == "nothing outstanding"


@pytest.fixture
def pooled(postgres_dsn: str) -> Iterator[PooledStore]:
    pool = open_pool(postgres_dsn, size=2, within_s=10)
    yield PooledStore(pool)
    pool.close(timeout=5)


def test_every_call_returns_its_connection(pooled: PooledStore) -> None:
    stats = pooled._pool.get_stats
    acting.publish(pooled, {"a": []})
    run_id = acting.start(pooled)
    with pytest.raises(KeyError):
        pooled.call("no_such_step")
    with pytest.raises(Exception, match="QL404"):
        pooled.call("request_cancel", p_run_id="ru0", p_reason="user", p_actor="a")
    assert acting.run_row(pooled, run_id)["status"] == "running"
    with pytest.raises(KeyError):
        pooled.read("run_state", no_such_column=1)
    for _ in range(10):
        scheduler_cycle(pooled, Turn(whole=True))
    assert abs(pooled.clock() - time.time() * 1000) < 60_000
    found = stats()
    assert (found["pool_size"], found["pool_available"]) == (2, 2)
    assert found["connections_num"] == 2 and not found.get("connections_lost")


def test_a_connection_that_was_ended_ends_the_cycle_and_another_one_is_made(
    pooled: PooledStore, postgres_dsn: str, postgres_server: Server
) -> None:
    if postgres_server.entry:
        pytest.skip(UNNOTICED)
    with psycopg.connect(postgres_dsn, autocommit=True) as dba:
        mine = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s"
        assert len(dba.execute(mine, ["qinglong-control"]).fetchall()) == 2
    with pytest.raises(psycopg.OperationalError) as raised:
        pooled.read("run_state")
    assert trips(raised.value) and pooled.ends_cycle(raised.value)
    wait_until(lambda: _reads(pooled))
    assert not pooled.ends_cycle(of_state("23505")), "of another statement, on a good connection"


def _reads(store: PooledStore) -> bool:
    try:
        return store.read("run_state") == []
    except psycopg.OperationalError:
        return False


class Watched(PooledStore):
    """Writes down what is called and read, and can be held."""

    def __init__(self, pool: Any) -> None:
        super().__init__(pool)
        self.calls: list[tuple[float, str]] = []
        self.hold, self.held = threading.Event(), threading.Event()
        self.hold.set()

    def call(self, step: str, /, **params: object) -> list[Any]:
        if not self.hold.is_set():
            self.held.set()
            assert self.hold.wait(30)
        self.calls.append((time.monotonic(), step))
        return super().call(step, **params)


def test_the_lifecycle_of_250_ms_as_it_is_on_a_real_database(postgres_dsn: str) -> None:
    """Recovery, schedule, frontier, task admission, in this order; stop; drain."""
    pool = open_pool(postgres_dsn, size=3, within_s=10)
    with closing(pool):
        store, errors = Watched(pool), []
        log = Log("text", "error", io.StringIO())
        rounds = Rounds("scheduler", scheduler_cycle, store, CLUSTER, Fence(), log, Counted(), str)
        one = cadence.Lifecycle(rounds, name="scheduler", idle_ms=250, on_error=errors.append)
        one.start()
        wait_until(lambda: len(store.calls) >= 12 and _gap(store) >= 0.24)
        cycle = ["due_page", "retry_page", "sweep_agenda", "claim_schedule", "frontier_page",
                 "task_admission_page"]  # fmt: skip
        steps = [step for _, step in store.calls]
        whole = len(steps) // 6 * 6
        assert steps[:whole] == cycle * (whole // 6) and whole >= 12 and not errors
        wait_until(lambda: pool.get_stats()["pool_available"] == 3)  # none is kept between cycles
        store.hold.clear()
        wait_until(store.held.is_set)
        before = len(store.calls)
        assert not one.stop(0.05), "a cycle that hangs: told, not waited for"
        store.hold.set()
        assert one.stop(10), "it drains: its cycle goes on to its end"
        assert before < len(store.calls) <= before + 6, "and no other begins"
        assert len(store.calls) % 6 == 0 and pool.get_stats()["pool_available"] == 3


def _gap(store: Watched) -> float:
    """The longest time between two calls so far."""
    times = [at for at, _ in list(store.calls)]
    return max((b - a for a, b in pairwise(times)), default=0.0)


def test_the_coordinator_has_no_timer_thread_or_listener_of_its_own() -> None:
    """What a cycle leaves behind is its answer and nothing else."""
    before = {thread.name for thread in threading.enumerate()}
    cycle = scheduler_cycle(Paged(frontier=["applied"]), Turn())
    assert cycle.applied and cycle.next == Turn(1)
    assert {thread.name for thread in threading.enumerate()} == before
    import qinglong_sql.scheduler as module

    text = Path(module.__file__).read_text()
    assert not re.search(r"\b(threading|queue|socket|signal|atexit|sched|asyncio)\b", text)
