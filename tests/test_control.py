"""The control process: orders of boot and stop, the fence, the two lifecycles, the real thing.

DESIGN §7, DOMAIN §7. Recorded traces use parts of the test's own; `Process` is the command itself.
"""

import io
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import psycopg_pool
import pytest

from qinglong_sql import cadence
from qinglong_sql.control import Control, Ending, Parts
from qinglong_sql.control_boot import BootFailed, recover
from qinglong_sql.control_cycle import LOOK_S, Rounds
from qinglong_sql.control_log import SAME_AGAIN_S, Log
from qinglong_sql.errors import Conflict, NotReady, Violated
from qinglong_sql.fence import Fence, trips
from qinglong_sql.health import Health
from qinglong_sql.limits import PAGE_SIZE
from qinglong_sql.scheduler import CLUSTER, Cycle, StageFailed, Turn, scheduler_cycle
from qinglong_sql.settings import ControlSettings, load
from qinglong_sql.stage import Tally
from qinglong_sql.store import Contended, open_store
from qinglong_sql.store.pooled import PooledStore, open_pool
from tests import acting, server
from tests.binaries import default
from tests.controls import GROUPS, LOGIN, Process, login_of, page
from tests.server import Server
from tests.shell import Shell
from tests.test_cadence import in_thread, wait_until

BOOT = ["listener", "pool", "readiness", "recovery", "door", "scheduler", "cancellation"]
STOP = ["cancellation", "scheduler", "door", "pool", "listener"]
SETTINGS = {"dsn": "postgresql://ql@db/ql", "boot_timeout": "300ms", "recovery_timeout": "300ms",
            "drain_timeout": "200ms", "stop_timeout": "100ms"}  # fmt: skip


# --- orders, as recorded traces


class Traced:
    """Parts that write down when they begin and end; `fails` and `hangs` name some of them."""

    def __init__(self, *, fails: str = "", hangs: str = "", late: str = "") -> None:
        self.trace: list[str] = []
        self.fails, self.hangs, self.late = fails, hangs, late
        self.free = threading.Event()
        self.reasons: dict[str, str | None] = {}
        self.control: Control | None = None

    def begin(self, name: str) -> None:
        if self.control:
            self.reasons[name] = self.control.fence.refusal()
        if name == self.hangs:
            self.free.wait(10)
        if name == self.fails:
            raise NotReady(f"{name} is broken")
        self.trace.append(name)

    def end(self, name: str, within_s: float) -> bool:
        if self.control:
            self.reasons[f"-{name}"] = self.control.fence.refusal()
        self.trace.append(f"-{name}")
        if name == self.fails:
            raise ValueError("it does not want to")
        if name == self.late:
            return self.free.wait(within_s)
        return True

    def part(self, name: str) -> Any:
        traced = self

        class Part:
            port = 8271

            def __init__(self, *_: Any, **said: Any) -> None:
                self.name = said.get("name", name)

            def start(self) -> str:
                traced.begin(self.name)
                return "there"

            def stop(self, within_s: float) -> bool:
                return traced.end(self.name, within_s)

            def close(self, timeout: float) -> None:
                traced.end(self.name, timeout)

            def get_stats(self) -> dict[str, int]:
                return {}

        return Part

    def pool(self) -> Any:
        self.begin("pool")
        return self.part("pool")()

    def readiness(self, pool: Any) -> str:
        self.begin("readiness")
        return "as shipped"

    def store(self, pool: Any) -> "Idle":
        self.begin("recovery")
        return Idle()

    def parts(self) -> Parts:
        return Parts(
            listener=self.part("listener"),
            pool=self.pool,
            readiness=self.readiness,
            store=self.store,
            meter=Counted(),
            applications=(self.part("door")(),),
            lifecycle=self.part("lifecycle"),
        )


class Idle:
    """A store with nothing to do."""

    def page(self, *_: Any) -> list[Any]:
        return []

    def call(self, *_: Any, **__: Any) -> list[Any]:
        return []

    def close(self) -> None:
        pass


class Counted:
    """A meter that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def cycle(self, lifecycle: str, cycle: Cycle, seconds: dict[str, float],
              failed: str | None) -> None:  # fmt: skip
        self.told.append((lifecycle, failed))

    def fault(self, lifecycle: str) -> None:
        self.told.append((lifecycle, "fault"))

    def ready(self, reason: str | None) -> None:
        self.told.append(("ready", reason))

    def sample(self, store: Any) -> Exception | None:
        self.told.append(("sample", store))
        return None

    def pool(self, stats: Any) -> None:
        self.told.append(("pool", stats))

    def text(self) -> bytes:
        return b"text"


def settings_of(**said: object) -> ControlSettings:
    return load(None, SETTINGS | said, {})[0]


def control_of(traced: Traced, log: Log | None = None, **said: object) -> Control:
    made = log or Log("text", "info", io.StringIO())
    one = Control(settings_of(**said), traced.parts(), made, str)
    traced.control = one
    MADE.append((one, traced))
    return one


MADE: list[tuple[Control, Traced]] = []


@pytest.fixture(autouse=True)
def all_of_them_end() -> Iterator[None]:
    """A test that fails leaves no thread that keeps everything from its end."""
    yield
    while MADE:
        one, traced = MADE.pop()
        traced.free.set()
        one.ask("the test is over")


def serving(one: Control) -> tuple[threading.Thread, list[Any]]:
    thread, results = in_thread(one.run)
    wait_until(lambda: one.fence.state != "starting")
    return thread, results


def test_boot_and_stop_keep_their_order_and_tell_why_it_is_not_ready() -> None:
    traced, out = Traced(), io.StringIO()
    one = control_of(traced, Log("json", "info", out))
    thread, results = serving(one)
    assert one.fence.refusal() is None
    one.ask("asked to stop")
    assert one.fence.refusal() == "asked to stop", "from the first moment of the stop"
    thread.join(5)
    assert results == [Ending("", ())]
    assert traced.trace == [*BOOT, *(f"-{name}" for name in STOP)]
    # listener and lifecycles begin when their step has begun; all of them say which it is
    assert [traced.reasons[name] for name in BOOT] == [f"starting: {name}" for name in BOOT]
    assert {traced.reasons[f"-{name}"] for name in STOP} == {"asked to stop"}
    assert one.fence.state == "stopped" and one.fence.refusal() == "stopped"
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["part"] for line in told if "part" in line] == [*BOOT, *STOP]
    assert [line["event"] for line in told] == ["boot"] * 7 + ["ready"] + ["stop"] * 6


@pytest.mark.parametrize("name", BOOT)
def test_a_step_of_the_boot_that_fails_stops_what_had_begun_and_nothing_else(name: str) -> None:
    traced = Traced(fails=name)
    one = control_of(traced)
    with pytest.raises(BootFailed) as raised:
        one.run()
    assert (raised.value.step, str(raised.value.__cause__)) == (name, f"QL503 {name} is broken")
    began = BOOT[: BOOT.index(name)]
    assert traced.trace == [*began, *(f"-{part}" for part in STOP if part in began)]
    assert one.fence.state == "stopped"


@pytest.mark.parametrize("name", BOOT)
def test_a_step_of_the_boot_that_hangs_ends_it_in_its_time(name: str) -> None:
    traced = Traced(hangs=name)
    one = control_of(traced)
    began = time.monotonic()
    with pytest.raises(BootFailed) as raised:
        one.run()
    assert time.monotonic() - began < 2
    setting = "recovery_timeout" if name == "recovery" else "boot_timeout"
    said = f"QL503 it took longer than 0.3s, see {setting} in the settings"
    assert (raised.value.step, str(raised.value.__cause__)) == (name, said)
    traced.free.set()


def test_a_stop_while_it_boots_ends_it_at_once() -> None:
    traced = Traced(hangs="readiness")
    one = control_of(traced, boot_timeout="1m")
    thread, results = in_thread(one.run)
    wait_until(lambda: one.fence.refusal() == "starting: readiness")
    one.ask("asked to stop")
    thread.join(2)
    assert results == [Ending("", ())]
    assert traced.trace == ["listener", "pool", "-pool", "-listener"]
    traced.free.set()


@pytest.mark.parametrize("name", STOP)
def test_a_part_that_does_not_end_is_told_and_the_rest_still_stops(name: str) -> None:
    traced, out = Traced(late=name), io.StringIO()
    one = control_of(traced, Log("text", "info", out))
    if name == "pool":  # it says nothing; a close that raises is as late
        traced.fails = name
        traced.begin = lambda name: traced.trace.append(name)  # type: ignore[method-assign]
    thread, results = serving(one)
    one.ask("asked to stop")
    thread.join(5)
    assert results == [Ending("", (name,))]
    assert traced.trace[len(BOOT) :] == [f"-{part}" for part in STOP]
    within = "0.2s" if name in ("scheduler", "cancellation") else "0.1s"
    trouble = "could not be stopped: it does not want to" if name == "pool" else (
        f"did not end within {within}"
    )  # fmt: skip
    assert f"error: stopping: {name} {trouble}; going on\n" in out.getvalue()


def test_stops_at_the_same_time_share_one() -> None:
    traced = Traced(late="scheduler")
    one = control_of(traced, drain_timeout="1m")
    thread, results = serving(one)
    others = [in_thread(one.stop) for _ in range(3)]
    wait_until(lambda: "-scheduler" in traced.trace)
    one.ask("asked to stop as well")
    time.sleep(0.05)
    assert traced.trace[len(BOOT) :] == ["-cancellation", "-scheduler"]
    assert not any(found for _, found in others)
    traced.free.set()
    for other, _ in [(thread, results), *others]:
        other.join(5)
    assert [found for _, found in [(thread, results), *others]] == [[Ending("", ())]] * 4
    assert traced.trace[len(BOOT) :] == [f"-{part}" for part in STOP], "each of them once"


def test_when_the_database_is_gone_it_is_not_ready_and_stops_by_itself() -> None:
    traced, out = Traced(), io.StringIO()
    one = control_of(traced, Log("text", "info", out))
    thread, results = serving(one)
    assert one.fence.trip("scheduler: no connection")
    assert not one.fence.trip("cancellation: no connection"), "once"
    assert one.fence.refusal() == "scheduler: no connection"
    thread.join(5)
    assert results == [Ending("scheduler: no connection", ())]
    assert traced.trace[len(BOOT) :] == [f"-{part}" for part in STOP]
    assert out.getvalue().count("the database is gone, stopping for the supervisor") == 1


def test_the_pages_say_why_it_is_not_ready_from_the_listener_to_the_end() -> None:
    traced, made = Traced(hangs="readiness", late="scheduler"), []

    def listener(ready: Any, text: Any) -> Health:
        made.append(Health(("127.0.0.1", 0), ready, text))
        return made[0]

    one = Control(
        settings_of(boot_timeout="1m", drain_timeout="1m", stop_timeout="5s"),
        replace(traced.parts(), listener=listener),
        Log("text", "info", io.StringIO()),
        str,
    )
    MADE.append((one, traced))
    thread, results = in_thread(one.run)
    wait_until(lambda: one.fence.refusal() == "starting: readiness")
    port = made[0].port
    assert page(port, "/livez")[0] == 200
    assert page(port, "/readyz") == (503, "starting: readiness\n")
    traced.free.set()
    wait_until(lambda: one.fence.state == "ready")
    assert page(port, "/readyz")[0] == 200 and page(port, "/metrics") == (200, "text")
    traced.free.clear()
    one.ask("asked to stop")
    wait_until(lambda: "-scheduler" in traced.trace)
    assert page(port, "/livez")[0] == 200
    assert page(port, "/readyz") == (503, "asked to stop\n")
    traced.free.set()
    thread.join(10)
    assert results == [Ending("", ())] and page(port, "/livez")[0] == 0


# --- the fence

GONE = [
    "08000", "08001", "08003", "08004", "08006", "08P01", "25006",
    "57P01", "57P02", "57P03", "57P04",
]  # fmt: skip
NOT_GONE = [
    "23505", "23503", "23514", "40001", "40P01", "40002", "55P03", "57014", "57P05", "42501",
    "42883", "0A000", "22023", "53100", "25P02", "P0001", "QL409", "QL503",
]  # fmt: skip


def of_state(code: str) -> psycopg.Error:
    kind = psycopg.errors.lookup(code) if not code.startswith("QL") else psycopg.DatabaseError
    error = kind("in words")
    error.sqlstate = code
    return error


@pytest.mark.parametrize("code", GONE)
def test_an_error_of_the_connection_trips_the_fence(code: str) -> None:
    assert trips(of_state(code))
    assert trips(behind(of_state(code))), "as a stage raises it"


@pytest.mark.parametrize("code", NOT_GONE)
def test_an_error_of_a_statement_does_not_trip_the_fence(code: str) -> None:
    assert not trips(of_state(code)) and not trips(behind(of_state(code)))


@pytest.mark.parametrize(
    "error",
    [psycopg.OperationalError("server closed the connection"), psycopg_pool.PoolTimeout("in 5 s"),
     psycopg.InterfaceError("the connection is closed"), ConnectionResetError(104, "reset"),
     TimeoutError("timed out"), BrokenPipeError(32, "broken pipe")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_an_error_of_the_network_trips_the_fence(error: Exception) -> None:
    assert trips(error) and trips(behind(error))


@pytest.mark.parametrize(
    "error",
    [Contended("held"), Conflict("lost"), Violated("broken"), NotReady("isolation"),
     ValueError("a bug"), psycopg.ProgrammingError("a bug"), psycopg.DataError("odd")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_refusal_does_not_trip_the_fence(error: Exception) -> None:
    assert not trips(error) and not trips(behind(error))


def behind(error: BaseException) -> StageFailed:
    failed = StageFailed("frontier", Cycle({}, Turn()))
    failed.__cause__ = error
    return failed


def test_the_fence_goes_one_way() -> None:
    told: list[str] = []
    fence = Fence(told.append)
    assert (fence.state, fence.refusal(), fence.shut) == ("starting", "starting", False)
    assert fence.ready() and not fence.ready()
    assert (fence.state, fence.refusal(), fence.shut) == ("ready", None, False)
    fence.starting("never again")
    assert fence.withdraw("stopping") and not fence.ready() and not fence.withdraw("again")
    assert (fence.state, fence.refusal(), fence.shut) == ("unavailable", "stopping", True)
    assert fence.trip("gone") and told == ["gone"] and fence.refusal() == "stopping"
    assert fence.stopped() and not fence.withdraw("x") and not fence.ready()
    assert not fence.trip("late") and (told, fence.tripped) == (["gone"], "gone")
    early = Fence()
    assert early.withdraw("no") and not early.ready() and early.shut, "a stop while it starts"


# --- what a lifecycle calls


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


# --- the store over a pool, and the real lifecycle


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
        pytest.skip("a pgbouncer takes another backend for one that is gone, and nobody notices")
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


# --- the real thing


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def begun(stack: ExitStack, dsn: str, folder: Path, *words: str, **env: str) -> Process:
    return stack.enter_context(closing(Process(dsn, folder, *words, **env)))


def publish_ticking(store: Any) -> None:
    trigger = {"cron": "* * * * * *", "kind": "task", "misfire": "fire_once", "overlap": "allow",
               "target": "work", "tz": "Europe/Berlin"}  # fmt: skip
    model = acting.model({"work": acting.task(), "tick": acting.task(queue="far")},
                         {"flow": acting.workflow({"a": [], "b": ["a"]})})  # fmt: skip
    triggers = {"ticking": trigger | {"target": "tick"}}
    acting.publish_model(store, model | {"triggers": triggers})


def test_a_process_admits_fires_is_watched_executes_nothing_and_stops(
    postgres_dsn: str, postgres_server: Server, stack: ExitStack, tmp_path: Path
) -> None:
    store = stack.enter_context(closing(open_store(postgres_dsn)))
    publish_ticking(store)
    one = begun(stack, stack.enter_context(login_of(postgres_dsn)), tmp_path).ready()
    assert one.parts("boot") == [name for name in BOOT if name != "door"]
    assert one.get("/livez")[0] == one.get("/readyz")[0] == 200
    run_id = acting.start(store)
    claimed = lambda: store.read("attempt_state", run_id=run_id, status="claimed")  # noqa: E731
    one.until(claimed, "an attempt is admitted", 5)

    def work() -> bool:
        """As a worker that asks again when a cycle had the run, which it passes over."""
        acting.finish(store, run_id)
        return acting.statuses(store, run_id)["a"] == "succeeded"

    one.until(work, "step a is done")
    one.until(lambda: acting.statuses(store, run_id) == {"a": "succeeded", "b": "ready"} and
              claimed(), "the frontier has moved on", 5)  # fmt: skip
    one.until(lambda: len(store.read("run_state", target_key="tick")) >= 2, "it fires", 10)
    times = [row["scheduled_at_ms"] for row in store.read("run_state", target_key="tick")]
    assert len(set(times)) == len(times) and all(at % 1000 == 0 for at in times)
    assert {row["status"] for row in store.read("attempt_state", step_key="main")} == {"claimed"}
    status, text = one.get("/metrics")
    assert status == 200 and "qinglong_sql_ready 1.0" in text
    assert re.search(r'qinglong_sql_cycles_total\{lifecycle="scheduler",outcome="applied"\} [1-9]',
                     text), text  # fmt: skip
    assert "qinglong_sql_sample_success 1.0" in text and "qinglong_sql_pool_connections 4.0" in text
    with psycopg.connect(postgres_dsn) as dba:
        who = (
            "select usename, count(*) from pg_stat_activity where application_name = %s group by 1"
        )
        found = dba.execute(who, ["qinglong-control"]).fetchall()
        assert found == [(LOGIN, 4)] or postgres_server.entry  # a pgbouncer's sessions are its own
    assert one.stop() == 0
    assert one.parts("stop") == [name for name in STOP if name != "door"]
    assert one.lines()[-1]["message"] == "stopped" and one.get("/livez")[0] == 0
    cycles = one.lines("cycle")
    assert {line["lifecycle"] for line in cycles} == {"scheduler"}
    assert all(any(part.get("applied") for part in line["stages"].values()) for line in cycles)
    assert not one.lines("trouble") and acting.unbroken(store)


FAILURES = {
    "a changed body": (
        "create or replace function ql.now_ms() returns bigint language plpgsql volatile"
        " set search_path = pg_catalog, pg_temp as 'begin return 7; end'",
        "function ql.now_ms(): body is changed",
    ),
    "a grant too many": (
        "grant select on ql.run to ql_reader",
        "table ql.run: ql_reader has SELECT too many",
    ),
    "a grant too few": (
        "revoke select on ql.run_state from ql_reader",
        "view ql.run_state: ql_reader lacks SELECT",
    ),
    "an object that is missing": ("drop view ql.violation", "view ql.violation is missing"),
    "sessions that may only read": (
        "alter database {} set default_transaction_read_only = on",
        "sessions are read-only here",
    ),
}


def refused(folder: Path, dsn: str, *words: str) -> str:
    """The last line of a boot that fails, all of which is told in the log; its exit code is 6."""
    done = Shell(folder, dsn)("control", "--listen", "127.0.0.1:0", *words)
    assert (done.returncode, done.stdout) == (6, ""), done.stderr
    last = done.stderr.splitlines()[-1].partition("error: not ready: ")[2]
    step = last.partition(":")[0]
    begun = BOOT[: BOOT.index(step)]
    said = [part for part in ("pool", "listener") if part in begun]
    assert re.findall(r"stopping: (\w+) ended", done.stderr) == said, done.stderr
    return last


@pytest.mark.parametrize("name", FAILURES)
def test_a_database_that_is_not_as_shipped_is_refused_with_what_is_wrong(
    postgres_dsn: str, stack: ExitStack, tmp_path: Path, name: str
) -> None:
    change, words = FAILURES[name]
    login = stack.enter_context(login_of(postgres_dsn))
    with psycopg.connect(postgres_dsn, autocommit=True) as dba:
        dba.execute(change.format(postgres_dsn.rpartition("/")[2]))  # type: ignore[arg-type]
    assert refused(tmp_path, login).startswith(f"readiness: QL503 {words}")


def test_a_login_or_an_address_that_is_not_right_is_refused(
    postgres_server: Server, postgres_dsn: str, empty_dsn: str, stack: ExitStack, tmp_path: Path
) -> None:
    login = stack.enter_context(login_of(postgres_dsn))
    narrow = stack.enter_context(login_of(postgres_dsn, "narrow_login", "ql_reader"))
    wide = stack.enter_context(login_of(postgres_dsn, "wide_login", f"{GROUPS}, ql_worker"))
    assert "ql_scheduler" in refused(tmp_path, narrow)
    assert "wide_login is a member of ql_worker" in refused(tmp_path, wide)
    assert "qinglong-sql migrate" in refused(tmp_path, empty_dsn)
    taken = f"127.0.0.1:{postgres_server.port}"
    words = refused(tmp_path, login, "--listen", taken)
    assert words == f"listener: cannot listen on {taken}: Address already in use"


def test_a_server_that_does_not_answer_or_let_it_in_is_told_and_no_password(
    postgres_dsn: str, stack: ExitStack, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    secret.write_text("s3cr3t-file\n")
    wrong = re.sub(r"//postgres:[^@]*@", "//postgres:s3cr3t-word@", postgres_dsn)
    failures = [
        (begun(stack, re.sub(r":\d+/", ":1/", wrong), tmp_path), "Connection refused"),
        (begun(stack, wrong, tmp_path), "authentication failed"),
        (begun(stack, wrong, tmp_path, "--password-file", str(secret)), "authentication failed"),
    ]
    for process, words in failures:
        assert process.ended() == 6, process.text()
        last = process.lines()[-1]
        assert (last["level"], last["event"], last["part"]) == ("error", "boot", "pool"), last
        assert last["message"].startswith("not ready: pool: PostgreSQL: "), last
        assert words in last["message"] and "s3cr3t" not in process.text()
        assert process.parts("stop") == ["listener"] and not process.lines("ready")


@pytest.fixture
def own_server() -> Iterator[Server]:
    one = server.start(default())
    server.install(server.dsn(one), folder=one.binaries.folder)
    yield one
    server.stop(one)


def test_a_server_that_hangs_does_not_keep_it_and_one_that_dies_ends_it(
    own_server: Server, stack: ExitStack, tmp_path: Path
) -> None:
    dsn = stack.enter_context(login_of(server.dsn(own_server)))
    short = ("--drain-timeout", "500ms", "--stop-timeout", "1s")
    dies, hangs, left = [begun(stack, dsn, tmp_path, *more) for more in (short, short, ())]
    for one in (dies, hangs, left):
        one.ready()
    children = Path(f"/proc/{own_server.child.pid}/task/{own_server.child.pid}/children")
    backends = list(map(int, children.read_text().split()))
    for pid in backends:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(1)  # a cycle of each lifecycle waits by now
    left.child.send_signal(signal.SIGTERM)
    assert hangs.stop(within_s=20) == 1
    assert hangs.lines()[-1]["late"] == ["cancellation", "scheduler"]
    assert {"pool", "listener"} <= set(hangs.parts("stop"))
    assert left.stop(within_s=5) == 130, "the second one is not waited for"
    killed = time.monotonic()
    own_server.child.kill()
    for pid in backends:
        os.kill(pid, signal.SIGCONT)
    assert dies.ended(20) == 6, dies.text()
    assert time.monotonic() - killed < 15
    assert [line["level"] for line in dies.lines("fence")] == ["error"]
    assert "the database is gone, stopping for the supervisor" in dies.lines("fence")[0]["message"]
