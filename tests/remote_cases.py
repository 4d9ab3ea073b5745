"""The race matrix of workers: who comes too late, or with what is not his, and what he is told.

A case arranges the room and then says what is asked, by which worker, and how it is answered. It
speaks through doors, one a worker: a store that puts the worker's name over each command, or the
ingress, which takes the name from a certificate. So one table speaks for both.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import psycopg

from qinglong_sql.errors import Fenced, QinglongError
from tests import acting
from tests.acting import GRACE_MS, LEASE_MS, Engine, Held, Row, Store
from tests.stores import FakeClock

REFUSED = ("blocked", "QL410")
UNKNOWN = ("blocked", "QL404")
APPLIED = ("applied", None)
# What a refusal may leave behind; every other table is as it was.
TABLES = b"select tablename from pg_tables where schemaname = 'ql' order by tablename"
ROWS = "select array_agg(x::text order by x::text) from ql.{name} as x"
KEPT = ("refused_report", "worker_audit")


class Door(Protocol):
    """What a worker has of a store."""

    def call(self, step: str, /, **params: Any) -> list[Row]: ...


@dataclass(frozen=True, slots=True)
class Named:
    """A store behind the name of one worker, as the ingress puts it over whatever a body says."""

    store: Store
    worker: str

    def call(self, step: str, /, **params: Any) -> list[Row]:
        if "p_worker_id" in params:
            params["p_worker_id"] = self.worker
        if "p_commands" in params:
            said = json.loads(params["p_commands"])
            params["p_commands"] = json.dumps([one | {"worker_id": self.worker} for one in said])
        return self.store.call(step, **params)


@dataclass(frozen=True, slots=True)
class Room:
    """One database, its clock, who arranges things in it, and the doors of workers."""

    engine: Engine
    store: Store
    clock: FakeClock
    door: Callable[[str], Door]

    def lease(self, worker: str, offer: str, session: str = "s1") -> Held:
        """Register and lease one attempt through the door of this worker."""
        door: Any = self.door(worker)
        acting.register(door, worker, session)
        (row,) = acting.offer_rows(door, [offer], worker=worker, session=session)
        return Held(row["attempt_id"], row["fence"], acting.token(offer), row)

    def bring(self, held: Held, phase: str, worker: str = "w1") -> Held:
        """From claimed to `starting` or `running`."""
        door: Any = self.door(worker)
        if phase != "claimed":
            applied(acting.cross(door, held))
        if phase == "running":
            applied(door.call("running_attempts", p_commands=acting.commands(held)))
        return held

    def lose(self, held: Held) -> None:
        """Let its lease and its grace pass, and recovery act on it."""
        self.clock.advance(LEASE_MS + GRACE_MS)
        assert acting.recover(self.store, held.row["run_id"])["outcome"] == "applied"

    def again(self, run_id: str) -> None:
        """Admit what was lost once more, when its back-off is over."""
        self.clock.advance(600_000)
        self.store.call("retry_run", p_run_id=run_id)
        acting.admit(self.store, run_id)


@dataclass(frozen=True, slots=True)
class Ask:
    """What one worker asks: the answer's outcome and code, all its rows, or what it raises.

    keeps: a refused report is new afterwards. moves: it is no loser's, and something may move.
    """

    worker: str
    ask: Callable[[Any], list[Row]]
    told: tuple[str, str | None] | list[Row] | type[QinglongError]
    keeps: bool = False
    moves: bool = False


Case = Callable[[Room], Sequence[Ask]]


def applied(rows: list[Row]) -> None:
    assert [(row["outcome"], row["code"]) for row in rows] == [APPLIED] * len(rows), rows


def look(room: Room) -> tuple[dict[str, object], int]:
    """What all tables hold but those that a refusal writes, and how many refused reports."""
    if room.engine.kind == "sqlite":
        found: dict[str, object] = dict(acting.everything(room.engine))
        refused = len(found["refused_report"])  # type: ignore[arg-type]
    else:
        # one statement: a room is looked at again and again
        with psycopg.connect(room.engine.dsn) as connection:
            names = [name for (name,) in connection.execute(TABLES).fetchall()]
            texts = ", ".join(f"({ROWS.format(name=name)})" for name in names)
            row = connection.execute(f"select {texts}".encode()).fetchone()
        found = dict(zip(names, row or (), strict=True))
        refused = len(found["refused_report"] or ())  # type: ignore[arg-type]
    return {name: rows for name, rows in found.items() if name not in KEPT}, refused


def judge(room: Room, asks: Sequence[Ask]) -> None:
    """Ask each twice: the answer is the one of the table, and a loser moves nothing."""
    before, refused = look(room)
    for number, one in enumerate(asks):
        for turn in ("once", "again"):
            place = f"ask {number}, {turn}"
            told = answer(room.door(one.worker), one)
            assert told == one.told, place
            after, kept = look(room)
            if not one.moves:
                assert after == before, place
            assert kept - refused == (one.keeps and turn == "once"), place
            before, refused = after, kept
    assert acting.unbroken(room.store)


def answer(door: Door, one: Ask) -> object:
    """In the shape in which the table says it."""
    try:
        rows = one.ask(door)
    except QinglongError as error:
        return type(error)
    if isinstance(one.told, list):
        return rows
    (row,) = rows
    return row["outcome"], row["code"]


# -- what is asked


def renew(held: Held) -> Callable[[Any], list[Row]]:
    return lambda door: acting.renew(door, held)


def cross(held: Held) -> Callable[[Any], list[Row]]:
    return lambda door: acting.cross(door, held)


def runs(held: Held) -> Callable[[Any], list[Row]]:
    return lambda door: door.call("running_attempts", p_commands=acting.commands(held))


def report(held: Held, **end: Any) -> Callable[[Any], list[Row]]:
    return lambda door: acting.report(door, held, **end)


def returned(held: Held) -> Callable[[Any], list[Row]]:
    return report(held, how="not_started", exit_code=None)


def attest(held: Held, reason: str = "it is gone") -> Callable[[Any], list[Row]]:
    return lambda door: door.call(
        "attest_attempts", p_commands=acting.commands(held, reason=reason)
    )


def inputs(held: Held) -> Callable[[Any], list[Row]]:
    return lambda door: door.call("attempt_inputs", p_commands=acting.commands(held))


def standing(held: Held) -> Callable[[Any], list[Row]]:
    return lambda door: door.call("attempt_standing", p_commands=acting.commands(held))


def offered(worker: str, *offers: str, session: str = "s1") -> Callable[[Any], list[Row]]:
    return lambda door: acting.offer_rows(door, offers, worker=worker, session=session)


def every(worker: str, held: Held, told: tuple[str, str], *, kept: bool = False) -> list[Ask]:
    """Each command that a lease allows, and that a stranger is refused; kept: what he reports."""
    commands = (renew, cross, runs, report, returned, attest, inputs, standing)
    return [
        Ask(worker, command(held), told, keeps=kept and command in (report, returned))
        for command in commands
    ]


# -- the cases


def renew_claimed_after_expiry(room: Room) -> Sequence[Ask]:
    acting.begun(room.store, {"a": []})
    held = room.lease("w1", "o1")
    room.clock.advance(LEASE_MS)
    return [Ask("w1", renew(held), REFUSED), Ask("w1", cross(held), REFUSED)]


def renew_starting_after_expiry(room: Room) -> Sequence[Ask]:
    acting.begun(room.store, {"a": []})
    held = room.bring(room.lease("w1", "o1"), "starting")
    room.clock.advance(LEASE_MS)
    return [Ask("w1", renew(held), REFUSED)]


def renew_running_after_expiry(room: Room) -> Sequence[Ask]:
    acting.begun(room.store, {"a": []})
    held = room.bring(room.lease("w1", "o1"), "running")
    room.clock.advance(LEASE_MS - 1)
    applied(acting.renew(room.door("w1"), held))  # type: ignore[arg-type]
    room.clock.advance(LEASE_MS)
    return [
        Ask("w1", renew(held), REFUSED),
        Ask("w1", report(held), APPLIED, moves=True),  # the fence stands as yet
    ]


def report_claimed_after_requeue(room: Room) -> Sequence[Ask]:
    """Its claim expired and went to another worker, in a new epoch."""
    run_id = acting.begun(room.store, {"a": []})
    held = room.lease("w1", "o1")
    room.lose(held)
    acting.admit(room.store, run_id)
    other = room.bring(room.lease("w2", "o2"), "running", "w2")
    return [
        Ask("w1", returned(held), REFUSED, keeps=True),
        Ask("w1", report(held), REFUSED, keeps=True),
        Ask("w1", renew(held), REFUSED),
        Ask("w1", attest(held), REFUSED),
        Ask("w1", inputs(held), REFUSED),
        Ask("w2", report(other), APPLIED, moves=True),
    ]


def report_starting_after_requeue(room: Room) -> Sequence[Ask]:
    return reports_after_requeue(room, "starting")


def report_running_after_requeue(room: Room) -> Sequence[Ask]:
    return reports_after_requeue(room, "running")


def reports_after_requeue(room: Room, phase: str) -> Sequence[Ask]:
    """It was fenced, and is tried again by another worker."""
    run_id = acting.begun(room.store, {"a": []}, on_lost="retry", retry={"attempts": 3})
    held = room.bring(room.lease("w1", "o1"), phase)
    room.lose(held)
    room.again(run_id)
    other = room.bring(room.lease("w2", "o2"), "running", "w2")
    asks = [
        Ask("w1", report(held), REFUSED, keeps=True),
        Ask("w1", report(held, exit_code=1), REFUSED, keeps=True),
        Ask("w1", returned(held), REFUSED, keeps=True),
        Ask("w1", attest(held), REFUSED),
        Ask("w1", renew(held), REFUSED),
        Ask("w1", cross(held), REFUSED),
        Ask("w2", renew(other), APPLIED, moves=True),
        Ask("w2", report(other), APPLIED, moves=True),
        Ask("w1", report(held), REFUSED),  # kept already
    ]
    return asks if phase == "running" else [*asks, Ask("w1", runs(held), REFUSED)]


def reported_twice(room: Room) -> Sequence[Ask]:
    acting.begun(room.store, {"a": [], "b": ["a"]})
    held = room.bring(room.lease("w1", "o1"), "running")
    applied(acting.report(room.door("w1"), held, output='{"n":1}'))  # type: ignore[arg-type]
    return [
        Ask("w1", report(held, exit_code=1), REFUSED, keeps=True),
        Ask("w1", report(held, how="signal", exit_code=None), REFUSED, keeps=True),
        Ask("w1", report(held, output='{"n":2}'), REFUSED, keeps=True),
        Ask("w1", attest(held), REFUSED),
        Ask("w1", report(held, output='{"n":1}'), APPLIED),
    ]


def start_of_an_old_epoch(room: Room) -> Sequence[Ask]:
    run_id = acting.begun(room.store, {"a": []})
    old = room.lease("w1", "o1")
    room.lose(old)
    acting.admit(room.store, run_id)
    new = room.lease("w2", "o2")
    assert new.attempt_id != old.attempt_id
    return [
        Ask("w1", cross(old), REFUSED),
        Ask("w1", cross(replace(old, fence=old.fence + 1)), REFUSED),
        Ask("w1", cross(replace(new, token=old.token)), REFUSED),
        Ask("w2", cross(replace(new, fence=new.fence + 1)), REFUSED),
        Ask("w2", cross(new), APPLIED, moves=True),
    ]


def start_under_an_intent(room: Room) -> Sequence[Ask]:
    """The first refusal gives the lease back, as the rule says; what comes after moves nothing."""
    run_id = acting.begun(room.store, {"a": []})
    held = room.lease("w1", "o1")
    mark = len(acting.events(room.store, run_id))
    acting.cancel(room.store, run_id)
    (row,) = acting.cross(room.door("w1"), held)  # type: ignore[arg-type]
    assert (row["outcome"], row["code"]) == REFUSED
    assert acting.events(room.store, run_id, mark) == [
        "run.cancel_requested", "workflow.task_dispatch_released",
    ]  # fmt: skip
    return [
        Ask("w1", cross(held), REFUSED),
        Ask("w1", renew(held), REFUSED),
        Ask("w1", returned(held), REFUSED, keeps=True),
        Ask("w1", offered("w1", "o1", "o3"), []),
        Ask("w2", offered("w2", "o2"), Fenced),  # it has no session
    ]


def anothers_token(room: Room) -> Sequence[Ask]:
    acting.begun(room.store, {"a": [], "b": []})
    mine = room.bring(room.lease("w1", "o1"), "running")
    other = room.bring(room.lease("w2", "o2"), "running", "w2")
    return [
        *every("w2", replace(mine, token=other.token), REFUSED),
        *every("w1", replace(mine, token="x" * 64), REFUSED),
        *every("w2", replace(other, attempt_id="nobody-1"), UNKNOWN),
        Ask("w1", renew(mine), APPLIED, moves=True),
        Ask("w1", report(mine), APPLIED, moves=True),
    ]


def anothers_certificate(room: Room) -> Sequence[Ask]:
    """The token and the fence are right; the worker is another one. What it reports is kept."""
    acting.begun(room.store, {"a": [], "b": []})
    claimed = room.lease("w1", "o1")
    running = room.bring(room.lease("w1", "o2"), "running")
    acting.register(room.door("w2"), "w2")  # type: ignore[arg-type]
    return [
        *every("w2", claimed, REFUSED, kept=True),
        *every("w2", running, REFUSED, kept=True),
        Ask("w2", offered("w2", "o1"), []),
        Ask("w1", cross(claimed), APPLIED, moves=True),
        Ask("w1", report(running), APPLIED, moves=True),
        *every("w2", running, REFUSED),  # nor when it has ended
    ]


def offers_replayed_after_a_crash(room: Room) -> Sequence[Ask]:
    acting.begun(room.store, {"a": []})
    held = room.lease("w1", "o1")
    acting.register(room.door("w1"), "w1", "s2")  # type: ignore[arg-type]
    acting.register(room.door("w2"), "w2")  # type: ignore[arg-type]
    return [
        Ask("w1", offered("w1", "o1", session="s2"), [held.row]),
        Ask("w1", offered("w1", "o1"), Fenced),
        Ask("w2", offered("w2", "o1"), []),
        Ask("w1", cross(held), APPLIED, moves=True),
        Ask("w1", offered("w1", "o1", session="s2"), [held.row]),
        Ask("w1", report(held), APPLIED, moves=True),
        Ask("w1", offered("w1", "o1", session="s2"), []),
    ]


def restarted_with_old_tokens_in_time(room: Room) -> Sequence[Ask]:
    """It takes over what it holds still."""
    acting.begun(room.store, {"a": []})
    held = room.bring(room.lease("w1", "o1"), "running")
    room.clock.advance(LEASE_MS - 1)
    acting.register(room.door("w1"), "w1", "s2")  # type: ignore[arg-type]
    return [
        Ask("w1", renew(held), APPLIED, moves=True),
        Ask("w1", runs(held), APPLIED),
        Ask("w1", report(held), APPLIED, moves=True),
    ]


def restarted_with_old_tokens_to_report(room: Room) -> Sequence[Ask]:
    return restarted_too_late(room, report)


def restarted_with_old_tokens_to_attest(room: Room) -> Sequence[Ask]:
    return restarted_too_late(room, attest)


def restarted_too_late(room: Room, end: Callable[[Held], Callable[[Any], list[Row]]]) -> list[Ask]:
    """The leases are over, the fences stand: it may say what became of them, and no more."""
    acting.begun(room.store, {"a": [], "b": []})
    running = room.bring(room.lease("w1", "o1"), "running")
    claimed = room.lease("w1", "o2")
    room.clock.advance(LEASE_MS)
    acting.register(room.door("w1"), "w1", "s2")  # type: ignore[arg-type]
    return [
        Ask("w1", renew(running), REFUSED),
        Ask("w1", renew(claimed), REFUSED),
        Ask("w1", cross(claimed), REFUSED),
        Ask("w1", returned(claimed), APPLIED, moves=True),
        Ask("w1", end(running), APPLIED, moves=True),
        Ask("w1", renew(running), REFUSED),
    ]


CASES: tuple[Case, ...] = (
    renew_claimed_after_expiry,
    renew_starting_after_expiry,
    renew_running_after_expiry,
    report_claimed_after_requeue,
    report_starting_after_requeue,
    report_running_after_requeue,
    reported_twice,
    start_of_an_old_epoch,
    start_under_an_intent,
    anothers_token,
    anothers_certificate,
    offers_replayed_after_a_crash,
    restarted_with_old_tokens_in_time,
    restarted_with_old_tokens_to_report,
    restarted_with_old_tokens_to_attest,
)
