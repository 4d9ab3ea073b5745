"""Replay: every command repeated after its commit answers as the first time and adds no row.

`LIFE` is one script through a whole life, retry, loss, cancellation and declaration included. Each
act is done for one run, repeated at once and a little later, and then done for its twin; batches
carry the replay and the new command together. What a repeated command may change is written in the
act: the answer's words for "already", and the expiry of a lease that is renewed once more.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from qinglong_sql.canonical import canonical, digest
from qinglong_sql.store import Store
from qinglong_sql.store.steps import STEPS
from tests import acting
from tests.acting import GRACE_MS, LEASE_MS, Engine, Row
from tests.stores import FakeClock

HOUR_MS = 3_600_000
SPENT_MS = LEASE_MS + GRACE_MS
RUNS = ("one", "two")
# what holds for ever, whatever has become of the run since; not a start, whose answer lets
# something run: once its lease is over, it is refused (test_dispatch_start)
LASTING = {
    "start_run", "start_retry", "request_cancel", "declare_stopped", "running_attempts",
    "report_attempts", "attest_attempts", "attempt_standing",
}  # fmt: skip
BATCHES = frozenset(
    name for name, step in STEPS.items() if {"p_commands", "p_offers"} & set(step.params)
)


@dataclass(slots=True)
class Actor:
    """One run on its way: its ids, and what it holds."""

    name: str
    runs: dict[str, str] = field(default_factory=dict)  # by workflow
    attempt_id: str = ""
    fence: int = 0
    token: str = ""
    claim: Row = field(default_factory=dict)  # of its trigger

    def command(self, **fields: Any) -> Row:
        return {"attempt_id": self.attempt_id, "fence": self.fence, "token": self.token} | fields


@dataclass(frozen=True, slots=True)
class Act:
    """A step, what it is called with for an actor, and what a replay may answer otherwise."""

    step: str
    of: Callable[[Actor], Row]
    expect: Row = field(default_factory=dict)  # in the first row of the first answer
    again: Row | None = field(default_factory=dict)  # in every row; None: a page that is empty now
    later: frozenset[str] = frozenset()  # columns that move when it is repeated later
    once: bool = False  # not for the twin: it is about no run, or about all
    wait_ms: int = 0  # time that passes before


def on_run(step: str, outcome: str, *, flow: str = "flow", wait_ms: int = 0, **more: Any) -> Act:
    """A stage's step on one run: the second call finds nothing."""
    again = {"outcome": "settled", "effects": 0} | more.pop("again", {})
    return Act(
        step, lambda actor: {"p_run_id": actor.runs[flow]}, {"outcome": outcome}, again,
        wait_ms=wait_ms, **more,
    )  # fmt: skip


def on_page(step: str, outcome: str, *, wait_ms: int = 0) -> Act:
    keys = {"p_after_due_at_ms": -1, "p_after_run_id": "", "p_limit": 32}
    return Act(step, lambda _: dict(keys), {"outcome": outcome}, None, once=True, wait_ms=wait_ms)


def batch(step: str, outcome: str = "applied", *, later: str = "", wait_ms: int = 0,
          p_lease_ms: int = 0, expect: Row | None = None, **fields: Any) -> Act:  # fmt: skip
    def of(actor: Actor) -> Row:
        params: Row = {"p_commands": [actor.command(**fields)]}
        return params | ({"p_lease_ms": p_lease_ms} if p_lease_ms else {})

    expected = {"outcome": outcome} | (expect or {})
    return Act(step, of, expected, later=frozenset(later.split()), wait_ms=wait_ms)


def lease(number: int) -> Act:
    def of(actor: Actor) -> Row:
        offer = f"{actor.name}.{number}"
        return {
            "p_worker_id": "w1", "p_session_id": "s1", "p_queue": "default",
            "p_offers": [{"offer_id": offer, "token_digest": digest(acting.token(offer))}],
            "p_lease_ms": LEASE_MS,
            "p_run_id": None,
        }  # fmt: skip

    return Act("lease_attempts", of)


def named(step: str, expect: Row | None = None, *, again: Row | None = None,
          later: str = "", once: bool = True, **params: Any) -> Act:  # fmt: skip
    """A command whose arguments are known beforehand."""
    return Act(step, lambda _: dict(params), expect or {}, again or {},
               frozenset(later.split()), once)  # fmt: skip


def begin(flow: str, kind: str = "workflow") -> Act:
    def of(actor: Actor) -> Row:
        return {
            "p_package_key": "nightly", "p_kind": kind, "p_target_key": flow,
            "p_run_key": actor.name, "p_input": '{"x":1}',
        }  # fmt: skip

    return Act("start_run", of, {"outcome": "created"}, {"outcome": "existing"})


def dispatched(number: int, *, admit: bool = True) -> list[Act]:
    """A ready step gets an attempt, which is leased."""
    return [on_run("admit_tasks", "applied"), lease(number)] if admit else [lease(number)]


def model() -> Row:
    retry = {"attempts": 9, "on": ["failed", "timed_out"]}
    tasks = {
        "work": acting.task(retry=retry),
        "frail": acting.task(retry=retry, on_lost="retry"),
        "kept": acting.task(retry=retry, on_lost="hold"),
    }
    chain = {"a": ("work", []), "b": ("frail", ["a"]), "c": ("kept", ["b"]), "d": ("work", ["c"])}
    steps = {key: {"needs": needs, "task": task} for key, (task, needs) in chain.items()}
    flows = {
        "flow": {"steps": steps, "timeout_ms": None},
        "timed": acting.workflow({"a": []}, timeout_ms=HOUR_MS),
    }
    night = {
        "cron": "30 2 * * *", "kind": "workflow", "misfire": "skip", "name": None,
        "overlap": "allow", "target": "flow", "tz": "UTC",
    }  # fmt: skip
    return acting.model(tasks, flows) | {"triggers": {"night": night}}


PUBLISHED: Row = {
    "p_package_key": "nightly", "p_manifest": canonical(model()), "p_base_dir": "/srv/nightly",
}  # fmt: skip
TRIGGER = {"p_package_key": "nightly", "p_trigger_key": "night"}
SESSION = {"p_worker_id": "w1", "p_session_id": "s1"}
PASSED = {"how": "exit", "exit_code": 0, "output": '{"y":2}', "error": None}
FAILED = {"how": "exit", "exit_code": 1, "output": None, "error": "no"}
STOPPED = {"how": "stop", "exit_code": None, "output": None, "error": None}
UNBORN = {"how": "not_started", "exit_code": None, "output": None, "error": None}
STALE = {"fence": 99}
CANCEL = {"p_reason": "user", "p_actor": "ann"}


def cancel(flow: str) -> Act:
    return Act(
        "request_cancel",
        lambda actor: {"p_run_id": actor.runs[flow], **CANCEL},
        {"outcome": "accepted", "cancel_reason": "user"},
    )


def converge(flow: str, outcome: str) -> Act:
    return Act(
        "converge_cancellation",
        lambda actor: {"p_run_id": actor.runs[flow]},
        {"outcome": outcome},
        {"settled_attempts": 0},
    )


def fault(step: str, expect: Row, again: Row, later: str = "", **params: Any) -> Act:
    def of(actor: Actor) -> Row:
        return {"p_run_id": actor.runs["flow"], "p_stage": "frontier"} | params

    return Act(step, of, expect, again, frozenset(later.split()))


def claim(token: str) -> Act:
    return named("claim_schedule", {"trigger_key": "night"}, later="observed_at_ms",
                 p_owner="me", p_token=token, p_limit=9)  # fmt: skip


def commit(actor: Actor) -> Row:
    row = actor.claim
    at_ms = row["observed_at_ms"] + HOUR_MS
    return TRIGGER | {
        "p_owner": "me", "p_token": "c2", "p_claim_version": row["claim_version"],
        "p_state_version": row["state_version"], "p_cursor_ms": row["next_fire_at_ms"],
        "p_due_at_ms": at_ms, "p_observed_at_ms": row["observed_at_ms"], "p_next_at_ms": at_ms,
        "p_grace_ms": 30_000,
    }  # fmt: skip


def poisoned(actor: Actor) -> Row:
    return TRIGGER | {"p_state_version": actor.claim["state_version"], "p_error": "poison"}


LIFE: tuple[Act, ...] = (
    named("publish_package", {"outcome": "published"}, again={"outcome": "existing"}, **PUBLISHED),
    named("pause_trigger", {"state": "paused"}, **TRIGGER),
    named("resume_trigger", {"state": "active"}, **TRIGGER),
    # its first claim comes to nothing, the second one sets its cursor
    claim("c1"),
    Act("record_trigger_fault", poisoned, {"fault_count": 1}, None, once=True),
    named("resume_trigger", {"state": "active"}, **TRIGGER),
    claim("c2"),
    Act("commit_schedule", commit, {"outcome": "applied", "disposition": "initialize"},
        {"outcome": "settled", "disposition": None}, once=True),
    named("sweep_schedule", p_limit=9),
    named("register_worker", {"generation": 1}, **SESSION, p_queues='["default"]', p_slots=8,
          p_self_fencing=1, p_grace_ms=GRACE_MS),
    named("heartbeat_worker", {"generation": 1, "status": "online"}, **SESSION),
    named("drain_worker", {"status": "draining", "outcome": "applied"},
          again={"outcome": "existing"}, p_worker_id="w1"),
    named("undrain_worker", {"status": "online", "outcome": "applied"},
          again={"outcome": "existing"}, p_worker_id="w1"),
    named("audit_worker", p_worker_id="w1", p_route="lease", p_certificate="2a"),
    named("purge_audit", {"purged": 0}, p_before_ms=1, p_limit=9),
    begin("flow"),
    named("due_page", p_stage="task_admission", p_after_due_at_ms=-1, p_after_run_id="", p_limit=9),
    # a fails and is tried again; it ends well straight from the start barrier
    *dispatched(1),
    Act("attempt_input", lambda actor: {"p_attempt_id": actor.attempt_id, "p_token": actor.token}),
    batch("attempt_inputs", worker_id="w1"),
    batch("start_attempts", identity="pid 7"),
    batch("attempt_standing", expect={"status": "starting"}, worker_id="w1"),
    batch("running_attempts"),
    batch("renew_attempts", p_lease_ms=LEASE_MS, later="expires_at_ms", wait_ms=500),
    batch("report_attempts", "blocked", expect={"code": "QL410"}, **PASSED, **STALE),
    batch("report_attempts", expect={"status": "failed"}, **FAILED),
    batch("report_attempts", "blocked", expect={"code": "QL410"}, **PASSED),
    on_run("retry_run", "applied", wait_ms=HOUR_MS),
    *dispatched(2),
    batch("report_attempts", expect={"status": "lost"}, **UNBORN),
    *dispatched(3),
    batch("start_attempts", identity="pid 8"),
    batch("report_attempts", expect={"status": "succeeded"}, **PASSED),
    fault("record_fault", {"fault_count": 1}, {}, "fault_count next_try_at_ms", p_error="poison"),
    fault("release_fault", {"outcome": "applied"}, {"outcome": "settled"}),
    on_run("advance_frontier", "applied"),
    # b is lost twice, claimed and never started, lost by its worker's own word, and ends well
    *dispatched(4),
    batch("start_attempts", identity="pid 9"),
    batch("running_attempts"),
    on_run("recover_run", "applied", wait_ms=SPENT_MS),
    on_page("retry_page", "applied", wait_ms=HOUR_MS),
    on_page("task_admission_page", "applied"),
    lease(5),
    on_run("recover_run", "applied", wait_ms=SPENT_MS),
    *dispatched(6),
    batch("start_attempts", identity="pid 10"),
    batch("attest_attempts", expect={"status": "lost"}, reason="gone with the machine"),
    on_run("retry_run", "applied", wait_ms=HOUR_MS),
    *dispatched(7),
    batch("start_attempts", identity="pid 11"),
    batch("running_attempts"),
    batch("report_attempts", expect={"status": "succeeded"}, **PASSED),
    on_page("frontier_page", "applied"),
    # c is held until an operator speaks
    *dispatched(8),
    batch("start_attempts", identity="pid 12"),
    Act("declare_stopped",
        lambda actor: {"p_attempt_id": actor.attempt_id, "p_reason": "power was cut",
                       "p_actor": "ann", "p_follow": "retry"},
        {"outcome": "applied", "status": "lost"}),
    on_run("retry_run", "applied", wait_ms=HOUR_MS),
    *dispatched(9),
    batch("start_attempts", identity="pid 13"),
    batch("report_attempts", expect={"status": "succeeded"}, **PASSED),
    on_run("advance_frontier", "applied"),
    # d is cancelled while it runs
    *dispatched(10),
    batch("start_attempts", identity="pid 14"),
    batch("running_attempts"),
    cancel("flow"),
    converge("flow", "blocked"),
    batch("renew_attempts", p_lease_ms=LEASE_MS, later="expires_at_ms",
          expect={"stop_reason": "user"}),
    batch("report_attempts", expect={"status": "cancelled"}, **STOPPED),
    converge("flow", "settled"),
    cancel("flow"),
    # what succeeded there is taken over
    Act("start_retry", lambda actor: {"p_run_id": actor.runs["flow"], "p_run_key": None},
        {"outcome": "created", "taken_over_count": 3}, {"outcome": "existing"}),
    cancel("retry"),
    converge("retry", "settled"),
    # runs that end by their deadline, and tasks that are cancelled before they start
    begin("timed"),
    on_run("deadline_run", "applied", flow="timed", wait_ms=HOUR_MS),
    converge("timed", "settled"),
    begin("work", "task"),
    cancel("work"),
    on_page("settle_task_cancellations", "settled"),
    named("sweep_agenda", p_after_run_id="", p_limit=32),
    named("end_session", {"status": "offline"}, **SESSION),
    named("fire_trigger", {"outcome": "created"}, again={"outcome": "existing"}, **TRIGGER,
          p_run_key="by hand"),
    named("withdraw_package", {"outcome": "withdrawn"}, again={"outcome": "existing"},
          p_package_key="nightly"),
)  # fmt: skip


def call(store: Store, step: str, params: Row) -> list[Row]:
    texts = {
        name: json.dumps(value) if isinstance(value, list) else value
        for name, value in params.items()
    }
    return store.call(step, **texts)


def both(first: Row, second: Row) -> Row:
    """One batch with the commands of two."""
    return {
        name: value + second[name] if isinstance(value, list) else value
        for name, value in first.items()
    }


def without(rows: list[Row], columns: frozenset[str]) -> list[Row]:
    return [{key: value for key, value in row.items() if key not in columns} for row in rows]


def learn(actor: Actor, act: Act, rows: list[Row]) -> None:
    """What an actor takes from an answer into its next commands."""
    if act.step == "start_run":
        actor.runs[act.of(actor)["p_target_key"]] = rows[0]["run_id"]
    if act.step == "claim_schedule":
        actor.claim = rows[0]
    if act.step == "start_retry":
        actor.runs["retry"] = rows[0]["run_id"]
    if act.step == "lease_attempts":
        (row,) = rows
        assert row["run_id"] == actor.runs["flow"]
        actor.attempt_id, actor.fence = row["attempt_id"], row["fence"]
        actor.token = acting.token(row["offer_id"])


def of_runs(tables: dict[str, list[str]], actor: Actor) -> dict[str, list[str]]:
    """The rows that speak of an actor's runs."""
    return {
        name: [row for row in rows if any(run_id in row for run_id in actor.runs.values())]
        for name, rows in tables.items()
    }


def counts(tables: dict[str, list[str]]) -> dict[str, int]:
    return {name: len(rows) for name, rows in tables.items()}


def act_once(store: Store, engine: Engine, clock: FakeClock, act: Act, actor: Actor,
             told: list[str]) -> list[Row]:  # fmt: skip
    """Do it, repeat it at once and later; the first answer. Adds what is wrong to `told`."""
    params = act.of(actor)
    first = call(store, act.step, params)
    if act.expect and (not first or any(first[0][key] != act.expect[key] for key in act.expect)):
        raise AssertionError(f"{act.step} {params}: {first}, not {act.expect}")
    expected = [] if act.again is None else [row | act.again for row in first]
    before = acting.everything(engine)
    again = call(store, act.step, params)
    after = acting.everything(engine)
    if act.step == "record_fault":  # an error is counted each time it comes, in the one row
        again, expected = without(again, act.later), without(expected, act.later)
        after = before
    if again != expected:
        told.append(f"{act.step} {params}: at once {again}, not {expected}")
    if after != before:
        told.append(f"{act.step} {params}: at once it changed {changed(before, after)}")
    clock.advance(7)
    again = call(store, act.step, params)
    if without(again, act.later) != without(expected, act.later):
        told.append(f"{act.step} {params}: later {again}, not {expected}")
    if counts(acting.everything(engine)) != counts(before):
        told.append(f"{act.step} {params}: later it added a row")
    return first


def changed(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}


def act_for_both(store: Store, engine: Engine, clock: FakeClock, act: Act,
                 pair: list[Actor], told: list[str]) -> None:  # fmt: skip
    one, two = pair
    clock.advance(act.wait_ms)
    first = act_once(store, engine, clock, act, one, told)
    learn(one, act, first)
    if act.once:
        return
    if act.step not in BATCHES:
        learn(two, act, call(store, act.step, act.of(two)))
        return
    before = of_runs(acting.everything(engine), one)
    rows = call(store, act.step, both(act.of(one), act.of(two)))
    mine = [row for row in rows if row["attempt_id"] == one.attempt_id]
    twins = [row for row in rows if row["attempt_id"] != one.attempt_id]
    if without(mine, act.later) != without(first, act.later) or len(twins) != 1:
        told.append(f"{act.step}: in a batch of two {rows}, before it {first}")
        return
    if any(twins[0][key] != act.expect[key] for key in act.expect):
        told.append(f"{act.step}: the new command of a batch of two has {twins}")
    learn(two, act, twins)
    after = of_runs(acting.everything(engine), one)
    if (counts(after) if act.later else after) != (counts(before) if act.later else before):
        told.append(f"{act.step}: in a batch of two the replay changed {changed(before, after)}")


def test_a_command_repeated_after_its_commit_answers_as_before_and_adds_no_row(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    pair, told = [Actor(name) for name in RUNS], list[str]()
    for act in LIFE:
        act_for_both(store, engine, clock, act, pair, told)
    assert told == []
    for actor in pair:
        ends = {flow: acting.ended(store, run_id)[0] for flow, run_id in actor.runs.items()}
        assert ends == {
            "flow": "cancelled", "retry": "cancelled", "timed": "timed_out", "work": "cancelled",
        }  # fmt: skip
    assert acting.unbroken(store)


def test_a_command_repeated_after_the_end_of_its_run_still_answers_as_before(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    one, done = Actor("one"), []
    for act in LIFE:
        clock.advance(act.wait_ms)
        params = act.of(one)
        rows = call(store, act.step, params)
        learn(one, act, rows)
        done += [(act, params, words(act, rows))] if act.step in LASTING else []
    clock.advance(HOUR_MS)
    before = acting.everything(engine)
    told = [
        f"{act.step} {params}: {rows}, not {first}"
        for act, params, first in done
        if (rows := words(act, call(store, act.step, params))) != first
    ]
    assert told == []
    assert acting.everything(engine) == before


def words(act: Act, rows: list[Row]) -> list[tuple[Any, ...]]:
    """What an answer says of the command; the state that it tells beside it may have moved."""
    assert act.again is not None
    return [
        (act.again.get("outcome", row["outcome"]), row.get("code"), row.get("attempt_id"))
        for row in rows
    ]


def test_the_script_holds_every_step() -> None:
    done = {act.step for act in LIFE}
    assert STEPS.keys() - done == {"deadline_page", "purge_runs"}  # test_retention has the latter
