"""How a case of the race matrix is arranged, asked and judged (remote_cases).

A case speaks through doors, one a worker: a store that puts the worker's name over each command, or
the ingress, which takes the name from a certificate. So one table speaks for both.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg

from qinglong_sql.errors import QinglongError
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


@contextmanager
def eyes(room: Room) -> Iterator[Callable[[], tuple[dict[str, object], int]]]:
    """Look: what all tables hold but those that a refusal writes; how many refused reports."""
    if room.engine.kind == "sqlite":
        yield lambda: _seen(dict(acting.everything(room.engine)))
        return
    with psycopg.connect(room.engine.dsn, autocommit=True) as connection:
        names = [name for (name,) in connection.execute(TABLES).fetchall()]
        texts = ", ".join(f"({ROWS.format(name=name)})" for name in names)
        at_once = f"select {texts}".encode()
        yield lambda: _seen(
            dict(zip(names, connection.execute(at_once).fetchone() or (), strict=True))
        )


def _seen(found: dict[str, Any]) -> tuple[dict[str, object], int]:
    kept = len(found["refused_report"] or ())
    return {name: rows for name, rows in found.items() if name not in KEPT}, kept


def judge(room: Room, asks: Sequence[Ask]) -> None:
    """Ask each twice: the answer is the one of the table, and a loser moves nothing."""
    with eyes(room) as look:
        before, refused = look()
        for number, one in enumerate(asks):
            for turn in ("once", "again"):
                place = f"ask {number}, {turn}"
                told = answer(room.door(one.worker), one)
                assert told == one.told, place
                after, kept = look()
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
