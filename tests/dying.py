"""A scheduler that is KILLed between a claim and its last commit, and what the next one does.

Each death meets a minute of its own: the clock stands at its time, a forked scheduler dies at the
chosen point, its claims run out, and another one looks. Whatever the point, each trigger has one
run of that minute then.
"""

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg

from qinglong_sql.limits import SCHEDULE_CLAIM_MS
from qinglong_sql.schedule import run_schedule
from qinglong_sql.store import Row, Store
from qinglong_sql.store.sqlite import SqliteStore
from tests import acting
from tests.crashing import count_in, die
from tests.engines import Engine
from tests.stopping import STOPS
from tests.stores import FakeClock, store_on

MINUTE_MS = 60_000
# who is in time and dies has made nothing late, so both kinds of misfire have their run
MISFIRES = ("fire_once", "skip")
Arm = Callable[[Store], object]


def deaths(engine: Engine, clock: FakeClock, *, step: int = 1) -> Iterator[tuple[str, list[str]]]:
    """Every point at which a scheduler was killed, and what was wrong after it.

    step: from one statement, or row that is written, to the next; calls are not left out.
    """
    clock.set(clock.now_ms // MINUTE_MS * MINUTE_MS + 1)
    with closing(store_on(engine, clock)) as store:
        publish(store)
        run_schedule(store)
        yield from calls(engine, clock, store)
        if engine.kind == "sqlite":
            yield from statements(engine, clock, store, step)
        else:
            yield from rows(engine, clock, store, step)


def publish(store: Store) -> None:
    triggers = {
        misfire: {"cron": "* * * * *", "kind": kind, "misfire": misfire, "overlap": "allow",
                  "target": target, "tz": "Europe/Berlin"}
        for misfire, kind, target in zip(MISFIRES, ("task", "workflow"), ("work", "flow"),
                                         strict=True)
    }  # fmt: skip
    made = acting.model({"work": acting.task()}, {"flow": acting.workflow({"a": []})})
    acting.publish_model(store, made | {"triggers": triggers})


def calls(engine: Engine, clock: FakeClock, store: Store) -> Iterator[tuple[str, list[str]]]:
    """Before and after each call of a step: what its answer said is forgotten with the process."""
    for point in itertools.count(2):
        number, after = divmod(point, 2)

        def arm(store: Store, number: int = number, after: int = after) -> None:
            dies_at_call(store, number, after=bool(after))

        where = f"{'after' if after else 'before'} call {number}"
        told = survived(engine, clock, store, arm)
        if told is None:
            return
        yield where, told


def dies_at_call(store: Store, number: int, *, after: bool) -> None:
    call, count = store.call, itertools.count(1)

    def counted(step: str, /, **params: object) -> list[Row]:
        mine = next(count) == number
        if mine and not after:
            die()
        answer = call(step, **params)
        if mine:
            die()
        return answer

    store.call = counted  # type: ignore[method-assign]


def statements(
    engine: Engine, clock: FakeClock, store: Store, step: int
) -> Iterator[tuple[str, list[str]]]:
    """Before each statement that SQLite is given, `begin` and `commit` among them."""
    for number in itertools.count(1, step):

        def arm(store: Store, number: int = number) -> None:
            assert isinstance(store, SqliteStore)
            count_in(store, lambda count: count == number and die())

        told = survived(engine, clock, store, arm)
        if told is None:
            return
        yield f"before statement {number}", told


def rows(
    engine: Engine, clock: FakeClock, store: Store, step: int
) -> Iterator[tuple[str, list[str]]]:
    """At each row that PostgreSQL writes, and once more for it at the commit."""
    with psycopg.connect(engine.dsn, autocommit=True) as control:
        control.execute(STOPS)
        for number in itertools.count(1, step):
            control.execute("select setval('public.stop_count', 1, false)")
            control.execute("update public.stop_at set number = %s", [number])
            told = survived(engine, clock, store, lambda store: None, control)
            if told is None:
                return
            yield f"at row {number}", told


def survived(
    engine: Engine,
    clock: FakeClock,
    store: Store,
    arm: Arm,
    control: "psycopg.Connection | None" = None,
) -> list[str] | None:
    """What is wrong when a scheduler has died at the next minute; None when it did not die."""
    due_ms = (clock.now_ms // MINUTE_MS + 1) * MINUTE_MS
    clock.set(due_ms)
    died = dies(engine, clock, arm)
    if control is not None:
        control.execute("update public.stop_at set number = 0")
    clock.advance(SCHEDULE_CLAIM_MS)
    while run_schedule(store).scanned:
        pass
    wrong = []
    for misfire in MISFIRES:
        found = store.read("run_state", trigger_key=misfire, scheduled_at_ms=due_ms)
        if len(found) != 1:
            wrong.append(f"{misfire} has {len(found)} runs of {due_ms}")
        (row,) = store.read("trigger_state", trigger_key=misfire)
        told = row["last_outcome"], row["next_fire_at_ms"], row["fault_error"]
        if told != ("admitted", due_ms + MINUTE_MS, None):
            wrong.append(f"{misfire} is left as {told}")
    if not acting.unbroken(store):
        wrong.append(f"violated: {store.read('violation')}")
    return wrong if died or wrong else None


def dies(engine: Engine, clock: FakeClock, arm: Arm) -> bool:
    """Whether a scheduler of its own was killed, rather than done."""
    pid = os.fork()
    if pid == 0:
        try:
            store = store_on(engine, clock)
            arm(store)
            run_schedule(store)
            os._exit(0)
        except psycopg.OperationalError:  # its backend is gone in the middle of a step
            die()
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code != 0
