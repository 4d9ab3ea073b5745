"""Every order of commands on one run: the state space, explored on SQLite in memory.

In each state every command is tried that someone could give then: the stages, a worker with what
it holds, an operator, a user, and time itself, which goes on to the next moment that makes a
difference. What was done is taken back by a savepoint; worlds are kept as rows. What keeps the
space finite: tests.interleaving_variant. What two moments share that are one state:
tests.interleaving_key.
"""

import marshal
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from qinglong_sql.errors import QinglongError
from tests import acting, facts
from tests.acting import Held
from tests.interleaving_key import key_texts, moments_text
from tests.interleaving_rules import Facts, attempt_rows, lease_rows, step_rows
from tests.interleaving_store import MemoryStore
from tests.interleaving_variant import GRACE_MS, LEASE_MS, Variant
from tests.mutants import Mutant
from tests.stores import FakeClock

# The words of the scheduler, and the stage that says when it says them.
STAGES = {
    "advance": "frontier", "admit": "task_admission", "recover": "expiry", "retry": "retry",
    "deadline": "deadline", "converge": "cancellation",
}  # fmt: skip
CALLS = {
    "advance": "advance_frontier", "admit": "admit_tasks", "recover": "recover_run",
    "retry": "retry_run", "deadline": "deadline_run", "converge": "converge_cancellation",
}  # fmt: skip
PEOPLE = frozenset({"cancel", "declare", "declare_retry"})
WORKER = ("start", "running", "renew", "ok", "fails", "not_started", "gone")
# What the commands write. The run's row stays, since other rows point to it.
RUN_MOVES = (
    "status, version, attempt_count, cancel_requested_at_ms, cancel_reason, result_code,"
    " finished_at_ms, updated_at_ms"
)
MOVING = (
    "step_run", "step_output", "task_attempt", "attempt_lease", "cancel_intent",
    "attempt_offer", "attempt_report", "attestation", "refused_report", "run_event", "agenda",
    "run_fault", "worker_session",
)  # fmt: skip
# What a command that does nothing leaves as it is; every effect raises the run's version.
CONTENT = "select " + ", ".join(
    (
        "(select version from run)",
        "(select group_concat(stage || ':' || due_at_ms) from agenda)",
        "(select group_concat(status || ':' || fence || ':' || expires_at_ms) from attempt_lease)",
        "(select group_concat(stage || ':' || fault_count) from run_fault)",
        "(select group_concat(session_id || ':' || generation || ':' || status)"
        " from worker_session)",
        *(
            f"(select count(*) from {table})"
            for table in (
                "step_run", "task_attempt", "attempt_offer", "attempt_report", "attestation",
                "cancel_intent", "step_output", "run_event",
            )
        ),
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Command:
    """A word, and the step that it is about, if any."""

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
        self._key, self._moments = key_texts(), moments_text()
        self.store.raw.create_function("jitter", 3, lambda *_: 0, deterministic=True)
        facts.decide(self.store.raw, variant.decisions(mutant))
        acting.publish(
            self.store,
            variant.needs if variant.kind == "workflow" else None,
            run_timeout_ms=variant.run_timeout_ms,
            **variant.policy,
        )
        self.run_id = acting.start(self.store, variant.kind)
        self.store.call(
            "register_worker", p_worker_id="w1", p_session_id="s1", p_queues='["default"]',
            p_slots=64, p_self_fencing=variant.self_fencing, p_grace_ms=GRACE_MS,
        )  # fmt: skip

        for (name,) in self.rows("select name from sqlite_schema where type = 'trigger'"):
            if "_goes" in name:  # `restore` deletes what no command may
                self.store.raw.execute(f"drop trigger {name}")

    def close(self) -> None:
        self.store.close()

    def image(self) -> bytes:
        """All that is stored of the run, and the time; `restore` brings it back."""
        rows = {name: self.rows(f"select * from {name}") for name in MOVING}
        (run,) = self.rows(f"select {RUN_MOVES} from run")
        return zlib.compress(marshal.dumps((self.clock.now_ms, run, rows)), 1)

    def restore(self, image: bytes) -> None:
        """Make the world another one, to which `take_back` returns."""
        now_ms, run, tables = marshal.loads(zlib.decompress(image))
        raw = self.store.raw
        if raw.in_transaction:
            raw.execute("rollback to here")
            raw.execute("release here")
        else:
            raw.execute("begin")
        raw.execute(f"update run set ({RUN_MOVES}) = (?, ?, ?, ?, ?, ?, ?, ?)", run)
        for name, rows in tables.items():
            raw.execute(f"delete from {name}")
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                raw.executemany(f"insert into {name} values ({marks})", rows)
        raw.execute("savepoint here")
        self.clock.now_ms = self._here_ms = now_ms

    def take_back(self) -> None:
        """Undo what was done since the last `restore`."""
        self.store.raw.execute("rollback to here")
        self.clock.now_ms = self._here_ms

    # -- what there is

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        """The answer to a constant text, in which :now is the time."""
        return self.store.raw.execute(text, {"now": self.clock.now_ms}).fetchall()

    def content(self) -> tuple[Any, ...]:
        """What is stored of the run: equal before and after a command that does nothing."""
        return self.rows(CONTENT)[0]

    def key(self) -> bytes:
        """What decides from here on (tests.interleaving_key); steps that are alike are sorted."""
        tables = [self.rows(text) for text in self._key]
        told = repr([sorted(rows, key=repr) for rows in tables])
        if self.variant.alike:
            places = {"a": "b", "b": "a"}
            other = [[tuple(places.get(x, x) for x in row) for row in rows] for rows in tables]
            told = min(told, repr([sorted(rows, key=repr) for rows in other]))
        return blake2b(told.encode(), digest_size=16).digest()

    def facts(self) -> Facts:
        """The run as tests.interleaving_rules sees it."""
        ((status, intent),) = self.rows("select status, cancel_reason from run")
        return Facts(
            status, intent, step_rows(self.rows), attempt_rows(self.rows), lease_rows(self.rows)
        )

    def due(self) -> set[str]:
        """The stages that a scheduler would call now."""
        return {stage for (stage,) in self.rows("select stage from agenda where due_at_ms <= :now")}

    def why(self) -> set[tuple[str, str]]:
        """(what for, step) for everything that an open run waits for; after its time: hold, …."""
        return {
            (after_due if after_due and passed else waits_for, step or "")
            for waits_for, step, after_due, passed in self.rows(
                "select waits_for, step_key, after_due, due_at_ms <= :now from explain"
            )
        }

    # -- what may be done

    def commands(self) -> Iterator[Command]:
        """Everything that somebody could say now, also what must be refused."""
        yield from map(Command, (*STAGES, "sweep", "cancel", "lease"))
        if self.left_ms() is not None:
            yield Command("time")
        for (key,) in self.rows(
            "select a.step_key from task_attempt as a where a.finished_at_ms is null"
            " and exists (select 1 from attempt_offer as o where o.attempt_id = a.attempt_id)"
        ):
            for word in (*WORKER, "declare", "declare_retry"):
                yield Command(word, key)

    def left_ms(self) -> int | None:
        """How long until something expires or is due the next time; None when nothing does."""
        left: int | None = self.rows(self._moments)[0][0]
        return left

    def do(self, command: Command) -> str:
        """Say it; the outcome, or the code of what was raised."""
        if command.word == "time":
            self.clock.now_ms += self.left_ms() or 0
            return "applied"
        try:
            rows = self._call(command)
        except QinglongError as error:
            return error.code
        return str(rows[0].get("code") or rows[0].get("outcome", "")) if rows else "nothing"

    def late(self) -> str | None:
        """Say everything again about what has ended: the first word that moves something."""
        ended = self.rows(
            "select a.attempt_id from task_attempt as a where a.finished_at_ms is not null"
        )
        held = [one for (attempt_id,) in ended for one in self._held(attempt_id)]
        before = self.content()
        for word in WORKER if held else ():
            self._say(word, *held)
            if self.content() != before:
                return word
        for (attempt_id,) in ended:
            self._declare(attempt_id, "retry")
        return "declare_retry" if self.content() != before else None

    def _held(self, attempt_id: str) -> list[Held]:
        """What the worker last held of an attempt, if it ever did."""
        found = self.store.raw.execute(
            "select o.offer_id, o.fence from attempt_offer as o"
            " where o.attempt_id = ? order by o.fence desc limit 1",
            (attempt_id,),
        )
        return [Held(attempt_id, fence, acting.token(offer), {}) for offer, fence in found]

    def _call(self, command: Command) -> list[dict[str, Any]]:
        store, run_id = self.store, self.run_id
        if command.word in CALLS:
            return store.call(CALLS[command.word], p_run_id=run_id)
        match command.word:
            case "sweep":
                return store.call("sweep_agenda", p_after_run_id="", p_limit=32)
            case "cancel":
                return [acting.cancel(store, run_id)]
            case "lease":
                ((count,),) = self.rows("select count(*) from attempt_offer")
                return acting.offer_rows(store, [f"o{count}"], run_id=run_id, lease_ms=LEASE_MS)
        ((attempt_id,),) = self.store.raw.execute(
            "select attempt_id from task_attempt where step_key = ? and finished_at_ms is null",
            (command.about,),
        )
        if command.word in WORKER:
            return self._say(command.word, *self._held(attempt_id))
        return self._declare(attempt_id, "retry" if command.word == "declare_retry" else "fail")

    def _say(self, word: str, *held: Held) -> list[dict[str, Any]]:
        """A worker's word about what it holds or held."""
        match word:
            case "start":
                return acting.cross(self.store, *held)
            case "running":
                return self.store.call("running_attempts", p_commands=acting.commands(*held))
            case "renew":
                return acting.renew(self.store, *held, lease_ms=LEASE_MS)
            case "ok":
                return acting.report(self.store, *held, output='{"n":1}')
            case "fails":
                return acting.report(self.store, *held, exit_code=1)
            case "not_started":
                return acting.report(self.store, *held, how="not_started", exit_code=None)
            case "gone":
                given = acting.commands(*held, reason="gone")
                return self.store.call("attest_attempts", p_commands=given)
        raise AssertionError(word)

    def _declare(self, attempt_id: str, follow: str) -> list[dict[str, Any]]:
        return self.store.call(
            "declare_stopped",
            p_attempt_id=attempt_id, p_reason="seen", p_actor="ann", p_follow=follow,
        )  # fmt: skip
