"""Every order of commands on one run: the state space, explored on SQLite in memory.

In each state every command is tried that someone could give then: the stages, a worker with what
it holds and with what it held last, an operator, a user, and time itself, which goes on to the next
moment at which something expires or is due. What was done is taken back by savepoints. Two moments
are the same state when they differ in times, versions, sequences, tokens and what is over only.
"""

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qinglong_sql.errors import QinglongError
from qinglong_sql.store.sqlite import SqliteStore
from tests import acting, facts
from tests.acting import GRACE_MS, LEASE_MS, Held
from tests.mutants import Mutant, changed
from tests.stores import FakeClock

Key = tuple[Any, ...]
SYSTEM = frozenset(
    {"time", "deadline", "converge", "recover", "retry", "advance", "admit", "sweep"}
)
# By whom an open run may be held up: everything else moves by itself.
OTHERS = frozenset({"lease", "worker", "report", "evidence", "hold", "queue"})


@dataclass(frozen=True, slots=True)
class Variant:
    """What the steps are like, and who works on them."""

    name: str
    needs: dict[str, list[str]] = field(default_factory=lambda: {"a": []})
    on_lost: str = "fail"
    self_fencing: int = 1
    kind: str = "workflow"
    run_timeout_ms: int | None = None
    timeout_ms: int | None = None
    tries: int = 3
    returns: int = 2

    @property
    def policy(self) -> dict[str, Any]:
        on = ["failed", "lost"] if self.on_lost == "retry" else ["failed"]
        return {
            "on_lost": self.on_lost,
            "timeout_ms": self.timeout_ms,
            "retry": {"attempts": self.tries, "backoff_ms": 60_000, "on": on},
        }


STATE = (
    """
    select status, cancel_reason, result_code, deadline_at_ms <= :now from run
    """,
    """
    select step_key, status, result_code, attempt_count, claim_return_count, due_at_ms <= :now
    from step_run
    order by step_key
    """,
    """
    select
      a.step_key, a.status, a.deadline_at_ms <= :now, a.deadline_at_ms + 2000 <= :now,
      l.status, l.expires_at_ms <= :now, l.expires_at_ms + l.grace_ms <= :now,
      (select group_concat(t.evidence) from attestation as t
        where t.run_id = a.run_id and t.attempt_id = a.attempt_id)
    from task_attempt as a
    left join attempt_lease as l on l.attempt_id = a.attempt_id
    where a.finished_at_ms is null
    order by a.step_key
    """,
    "select stage, due_at_ms <= :now from agenda order by stage",
    "select stage, fault_count from run_fault order by stage",
)


CONTENT = (
    *(f"select * from {table}" for table in (
        "run", "step_run", "task_attempt", "attempt_lease", "agenda", "run_fault"
    )),
    *(f"select count(*) from {table}" for table in (
        "run_event", "attempt_offer", "attempt_report", "attestation", "refused_report",
        "cancel_intent", "step_output",
    )),
)  # fmt: skip


class Nested:
    """A cursor whose transactions are savepoints, so that a whole world can be taken back."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        self._open = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, text: str, *values: Any) -> sqlite3.Cursor:
        match text:
            case "begin" | "begin immediate":
                self._open = True
                return self._cursor.execute("savepoint nested")
            case "commit":
                self._open = False
                return self._cursor.execute("release nested")
            case "rollback":
                if self._open:
                    self._cursor.execute("rollback to nested")
                    self._cursor.execute("release nested")
                self._open = False
                return self._cursor
        return self._cursor.execute(text, *values)


class MemoryStore(SqliteStore):
    """The real store on a database in memory, whose whole state is an image."""

    def __init__(self, template: Path, clock: Callable[[], int]) -> None:
        image = bytearray(template.read_bytes())
        image[18:20] = b"\x01\x01"  # no write-ahead log in memory
        self._image = bytes(image)
        super().__init__(template, clock=clock)
        self._cursor = Nested(self._cursor)  # type: ignore[assignment]

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            ":memory:", isolation_level=None, cached_statements=512, check_same_thread=False
        )
        connection.deserialize(self._image)
        return connection

    @property
    def raw(self) -> sqlite3.Connection:
        return self._connection


@dataclass(frozen=True, slots=True)
class Command:
    """A word, and the attempt that it is about, if any."""

    word: str
    about: str = ""

    def __str__(self) -> str:
        return f"{self.word} {self.about}".strip()


class Bench:
    """One store, on which one world at a time is looked at and moved."""

    def __init__(self, template: Path, variant: Variant, mutant: Mutant | None = None) -> None:
        self.variant = variant
        self.clock = FakeClock()
        self.store = MemoryStore(template, self.clock.now)
        if mutant:
            facts.decide(self.store.raw, changed(mutant))
        acting.publish(
            self.store,
            variant.needs if variant.kind == "workflow" else None,
            run_timeout_ms=variant.run_timeout_ms,
            **variant.policy,
        )
        self.run_id = acting.start(self.store, variant.kind)
        acting.register(self.store, self_fencing=variant.self_fencing)

    def close(self) -> None:
        self.store.close()

    def mark(self, level: int) -> int:
        """Where `take_back` leads to; the time then."""
        self.store.raw.execute(f"savepoint level{level}")
        return self.clock.now_ms

    def take_back(self, level: int, now_ms: int) -> None:
        """Undo what was done since that mark, other marks included."""
        self.store.raw.execute(f"rollback to level{level}")
        self.clock.now_ms = now_ms

    def content(self) -> Key:
        """What is stored of the run: equal before and after a command that does nothing."""
        return tuple(tuple(self.rows(text)) for text in CONTENT)

    # -- what a state is

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        """The answer to a constant text, in which :now is the time."""
        return self.store.raw.execute(text, {"now": self.clock.now_ms}).fetchall()

    def key(self) -> Key:
        """What is open, without times, versions, sequences and tokens; of what is over, counts."""
        return tuple(tuple(self.rows(text)) for text in STATE)

    def ended(self) -> bool:
        return self.rows("select status from run")[0][0] != "running"

    def beyond(self) -> bool:
        """Whether a step was tried or given back more often than is followed."""
        counts = self.rows("select max(attempt_count), max(claim_return_count) from step_run")
        return counts[0][0] > self.variant.tries or counts[0][1] > self.variant.returns

    # -- what may be done

    def commands(self) -> Iterator[Command]:
        """Everything that somebody could say now, also what must be refused."""
        for word in ("advance", "admit", "recover", "retry", "deadline", "converge"):
            yield Command(word)
        yield from (Command(word) for word in ("sweep", "cancel"))
        if self.next_moment() is not None:
            yield Command("time")
        counts = self.rows("select step_key, claim_return_count, attempt_count from step_run")
        returns = {key: count for key, count, _ in counts}
        tries = {key: count for key, _, count in counts}
        if self.rows("select 1 from task_attempt where offer_at_ms is not null"):
            yield Command("lease")
        for attempt_id, key, status in self.rows(
            "select a.attempt_id, a.step_key, a.status from task_attempt as a"
            " where a.number = (select max(m.number) from task_attempt as m"
            " join attempt_offer as o on o.attempt_id = m.attempt_id"
            " where m.run_id = a.run_id and m.step_key = a.step_key)"
        ):
            live = status in ("claimed", "starting", "running")
            for word in ("start", "running", "ok", "fails", "bad", "gone", "renew"):
                if live or word in ("start", "ok", "fails", "renew"):
                    yield Command(word, attempt_id)
            if returns[key] < self.variant.returns or not live:
                yield Command("not_started", attempt_id)
            if live:
                yield Command("declare", attempt_id)
            if live and tries[key] < self.variant.tries:  # nothing else bounds what people declare
                yield Command("declare_retry", attempt_id)

    def next_moment(self) -> int | None:
        """When something expires or is due the next time; None when nothing does.

        Claims that came back as often as we follow them do not expire any more.
        """
        found = self.rows(
            "select l.expires_at_ms, a.status, s.claim_return_count, l.grace_ms, a.deadline_at_ms"
            " from attempt_lease as l join task_attempt as a on a.attempt_id = l.attempt_id"
            " join step_run as s on s.run_id = a.run_id and s.step_key = a.step_key"
            " where l.status = 'leased'"
        )
        moments = [due for (due,) in self.rows(
            "select due_at_ms from step_run where due_at_ms is not null"
            " union all select deadline_at_ms from run"
            " where deadline_at_ms is not null and status = 'running'"
        )]  # fmt: skip
        for expires, status, returns, grace, deadline in found:
            if status == "claimed" and returns >= self.variant.returns:
                return None
            moments += [expires, expires + grace]
            moments += [deadline, deadline + GRACE_MS] if deadline is not None else []
        return min((moment for moment in moments if moment > self.clock.now_ms), default=None)

    def held(self, attempt_id: str) -> Held:
        """What the worker last held of an attempt."""
        ((offer, fence),) = self.store.raw.execute(
            "select o.offer_id, o.fence from attempt_offer as o"
            " where o.attempt_id = ? order by o.fence desc limit 1",
            (attempt_id,),
        )
        return Held(attempt_id, fence, acting.token(offer), {})

    def do(self, command: Command) -> str:
        """Say it; the outcome, or the code of what was raised."""
        if command.word == "time":
            moment = self.next_moment()
            assert moment is not None
            self.clock.now_ms = moment
            return "applied"
        try:
            rows = self._call(command)
        except QinglongError as error:
            return error.code
        return str(rows[0].get("code") or rows[0].get("outcome", "")) if rows else "nothing"

    def _call(self, command: Command) -> list[dict[str, Any]]:
        store, run_id = self.store, self.run_id
        one = {
            "advance": "advance_frontier", "admit": "admit_tasks", "recover": "recover_run",
            "retry": "retry_run", "deadline": "deadline_run", "converge": "converge_cancellation",
        }  # fmt: skip
        if command.word in one:
            return store.call(one[command.word], p_run_id=run_id)
        match command.word:
            case "sweep":
                return store.call("sweep_agenda", p_after_run_id="", p_limit=32)
            case "cancel":
                return [acting.cancel(store, run_id)]
            case "lease":
                ((count,),) = self.rows("select count(*) from attempt_offer")
                return acting.offer_rows(store, [f"o{count}"], run_id=run_id)
        held = self.held(command.about)
        match command.word:
            case "start":
                return acting.cross(store, held)
            case "running":
                return store.call("running_attempts", p_commands=acting.commands(held))
            case "renew":
                return acting.renew(store, held, lease_ms=LEASE_MS)
            case "ok":
                return acting.report(store, held)
            case "fails":
                return acting.report(store, held, exit_code=1)
            case "bad":
                return acting.report(store, held, how="bad_output")
            case "not_started":
                return acting.report(store, held, how="not_started", exit_code=None)
            case "gone":
                given = acting.commands(held, reason="gone")
                return store.call("attest_attempts", p_commands=given)
            case "declare" | "declare_retry":
                return store.call(
                    "declare_stopped", p_attempt_id=command.about, p_reason="seen", p_actor="ann",
                    p_follow="retry" if command.word == "declare_retry" else "fail",
                )  # fmt: skip
        raise AssertionError(command)
