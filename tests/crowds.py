"""Many at once: triggers of one minute, runs that stay blocked, intents that wait their turn.

Everything is made by the product's own steps, so what a crowd left in the agenda is what it leaves.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import psycopg

from qinglong_sql.limits import PAGE_SIZE, PAGES
from qinglong_sql.scheduler import CLUSTER, Turn, cancellation_cycle, scheduler_cycle
from qinglong_sql.store import Row, Store
from qinglong_sql.store.sqlite import SqliteStore
from tests import acting
from tests.acting import Held
from tests.engines import Engine
from tests.stores import FakeClock

CYCLE_MS = 250
BATCH = 64
A_CYCLE = PAGE_SIZE * PAGES
MINUTELY = {"cron": "30 2 * * *", "kind": "task", "misfire": "skip", "overlap": "allow",
            "target": "work", "tz": "Europe/Berlin"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rush:
    """What became of triggers that were due in the same minute."""

    wrong: list[str]
    cycles: int
    lag_ms: int


def quick(store: Store) -> None:
    """What power would take is not this matter's: SQLite does not wait for the disk."""
    if isinstance(store, SqliteStore):
        store._connection.execute("pragma synchronous = off")


def rush(engine: Engine, store: Store, clock: FakeClock, count: int) -> Rush:
    """So many good triggers behind a poisoned one, and their runs behind a poisoned one."""
    quick(store)
    triggers = {f"t{number:05}": MINUTELY for number in range(count)}
    poisoned = {"a-poison": MINUTELY | {"cron": "no cron at all"}}
    made = acting.model({"work": acting.task()})
    acting.publish_model(store, made | {"triggers": poisoned | triggers})
    turn = Turn()
    while (cycle := scheduler_cycle(store, turn)).applied:
        turn = cycle.next
    bad = acting.start(store, kind="task", key="poisoned")
    poison(engine, bad)
    due_ms = store.read("trigger_state", trigger_key="t00000")[0]["next_fire_at_ms"]
    clock.set(due_ms)
    wanted, cycles, lag_ms = -(-count // A_CYCLE), 0, 0
    fired = admitted = 0
    while admitted < count and cycles < 2 * wanted + 4:
        cycle = scheduler_cycle(store, turn)
        turn = cycle.next
        tallies = cycle.tallies
        fired += tallies["schedule"].effects
        admitted += tallies["task_admission"].applied
        lag_ms = max(lag_ms, tallies["schedule"].lag_ms)
        cycles += 1
        clock.advance(CYCLE_MS)
    # the poisoned ones are looked at in a page of their own turn, so they may cost one cycle more
    wrong = []
    if (fired, admitted) != (count, count) or cycles > wanted + 1:
        wrong.append(f"{fired} fired, {admitted} admitted in {cycles} cycles, not in {wanted}")
    if lag_ms > cycles * CYCLE_MS:
        wrong.append(f"a lag of {lag_ms} ms in {cycles} cycles")
    rows = store.read("run_state", scheduled_at_ms=due_ms)
    if {row["trigger_key"] for row in rows} != set(triggers) or len(rows) != count:
        wrong.append(f"{len(rows)} runs of {count} triggers")
    faults = [(row["run_id"], row["stage"]) for row in store.read("fault_state")]
    if faults != [(bad, "task_admission")]:
        wrong.append(f"run faults: {faults}")
    found = [row["trigger_key"] for row in store.read("trigger_state") if row["fault_error"]]
    if found != list(poisoned):
        wrong.append(f"trigger faults: {found}")
    told = [row["waits_for"] for row in store.read("explain", run_id=bad)]
    if "fault" not in told:
        wrong.append(f"explain of the poisoned run tells {told}")
    if not acting.unbroken(store):
        wrong.append(f"violated: {store.read('violation')[:3]}")
    return Rush(wrong, cycles, lag_ms)


def poison(engine: Engine, run_id: str) -> None:
    """From now on no attempt of this run can be admitted."""
    if engine.kind == "sqlite":
        text = f"""
            create trigger poison before insert on task_attempt when new.run_id = '{run_id}'
            begin select raise(abort, 'poisoned'); end"""
        with closing(sqlite3.connect(engine.dsn.removeprefix("sqlite:///"))) as file:
            file.execute(text)
        return
    with psycopg.connect(engine.dsn) as connection:
        connection.execute(
            "create function public.poison () returns trigger language plpgsql as"
            " $$ begin raise exception 'poisoned'; end $$"
        )
        connection.execute(
            "create trigger poison before insert on ql.task_attempt for each row"
            f" when (new.run_id = '{run_id}') execute function public.poison ()"  # type: ignore[arg-type]
        )


def blocked(store: Store, count: int) -> list[str]:
    """So many cancelled runs whose executions do not end: their rows in the agenda are cleared."""
    runs = list(started(store, count, "blocked"))
    while any(row["outcome"] == "applied" for row in acting.page(store, "task_admission_page")):
        pass
    acting.register(store)
    left = count
    while left > 0:
        names = [f"b{left - number}" for number in range(BATCH)]
        held = [
            Held(row["attempt_id"], row["fence"], acting.token(row["offer_id"]), row)
            for row in acting.offer_rows(store, names)
        ]
        assert held, f"{left} of {count} runs have no attempt"
        acting.run(store, *held)
        left -= len(held)
    intend(store, runs)
    turn = Turn()
    for _ in range(count // PAGE_SIZE + 2):
        turn = cancellation_cycle(store, turn).next
        if not waiting(store):
            return runs
    raise AssertionError(f"{len(waiting(store))} of {count} blocked runs are not cleared")


def started(store: Store, count: int, name: str, kind: str = "workflow") -> Iterator[str]:
    for number in range(count):
        yield acting.start(store, kind=kind, key=f"{name} {number}")


def intend(store: Store, runs: Sequence[str], clock: FakeClock | None = None) -> None:
    for run_id in runs:
        if clock:
            clock.advance(1)
        acting.cancel(store, run_id)


def behind(store: Store, clock: FakeClock, count: int) -> list[str]:
    """What is wrong with runs that can converge, behind so many that cannot."""
    quick(store)
    acting.publish(store, {"a": []})
    crowd = blocked(store, count)
    clock.advance(1)
    wrong, free = [], [acting.start(store, kind, "free") for kind in ("workflow", "task")]
    intend(store, free)
    turn, scanned = Turn(), 0
    for _ in range(2):
        cycle = cancellation_cycle(store, turn)
        scanned += sum(tally.scanned for tally in cycle.tallies.values())
        turn = cycle.next
    for run_id in free:
        if acting.ended(store, run_id)[0] != "cancelled":
            wrong.append(f"{run_id} is {acting.ended(store, run_id)} after two cycles")
    if scanned > len(free):
        wrong.append(f"{scanned} candidates for {len(free)} runs")
    running = sum(row["status"] == "running" for row in store.read("run_state"))
    if running != len(crowd):
        wrong.append(f"{running} runs are open, not {len(crowd)}")
    return wrong


def in_turn(store: Store, clock: FakeClock, count: int, kind: str) -> tuple[list[str], int]:
    """What is wrong with so many fresh intents; in how many cycles they were over.

    Nobody waits longer than the number of pages before it says.
    """
    quick(store)
    acting.publish(store, {"a": []})
    runs = list(started(store, count, "fresh", kind))
    intend(store, runs, clock)
    place = {run_id: number for number, run_id in enumerate(runs)}
    wrong, turn, cycles = list[str](), Turn(), 0
    while (left := waiting(store)) and cycles <= count:
        oldest = min(place[row["run_id"]] for row in left if row["run_id"] in place)
        if oldest < cycles * A_CYCLE:
            wrong.append(f"{runs[oldest]}, the {oldest}th, waits after {cycles} cycles")
            break
        turn = cancellation_cycle(store, turn, CLUSTER).next
        cycles += 1
    if cycles > -(-count // A_CYCLE):
        wrong.append(f"{cycles} cycles for {count} runs")
    ends = [row["status"] for row in store.read("run_state") if row["run_id"] in place]
    if ends != ["cancelled"] * count:
        wrong.append(f"{ends.count('cancelled')} of {count} have ended")
    return wrong, cycles


def waiting(store: Store) -> list[Row]:
    return store.read("agenda_state", stage="cancellation")
