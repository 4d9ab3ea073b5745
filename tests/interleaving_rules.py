"""What a move of an exploration may do, said once more apart from the views (DOMAIN §3, DESIGN §9).

A move is a command with the facts before and after it. Everything that changed must have its
reason in the command, in what was held, and in the clock.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

LIVE = ("claimed", "starting", "running")
OPEN = ("pending", "ready", "waiting_approval", "running", "retry_wait", "lost")
Ask = Callable[[str], list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Step:
    status: str
    starts: int
    returns: int
    due_ms: int | None


@dataclass(frozen=True, slots=True)
class Attempt:
    step: str
    status: str
    deadline_ms: int | None


@dataclass(frozen=True, slots=True)
class Lease:
    leased: bool
    expires_ms: int
    grace_ms: int
    fences_itself: int


@dataclass(frozen=True, slots=True)
class Facts:
    """A run: its status, the reason of its intent, steps by key, attempts and leases by id."""

    status: str
    intent: str | None
    steps: dict[str, Step]
    attempts: dict[str, Attempt]
    leases: dict[str, Lease]


@dataclass(frozen=True, slots=True)
class Move:
    """A command (word and step), when it was given, and the policy that holds."""

    word: str
    about: str
    now_ms: int
    before: Facts
    after: Facts
    on_lost: str
    tries: int
    returns: int
    declared: int
    needs: dict[str, list[str]]


def step_rows(ask: Ask) -> dict[str, Step]:
    rows = ask(
        "select step_key, status, attempt_count, claim_return_count, due_at_ms from step_run"
    )
    return {key: Step(*rest) for key, *rest in rows}


def attempt_rows(ask: Ask) -> dict[str, Attempt]:
    rows = ask("select attempt_id, step_key, status, deadline_at_ms from task_attempt")
    return {attempt_id: Attempt(*rest) for attempt_id, *rest in rows}


def lease_rows(ask: Ask) -> dict[str, Lease]:
    rows = ask(
        "select attempt_id, status = 'leased', expires_at_ms, grace_ms, self_fencing"
        " from attempt_lease"
    )
    return {attempt_id: Lease(*rest) for attempt_id, *rest in rows}


def broken(move: Move) -> Iterator[str]:
    """What the move did without a reason for it."""
    before, after = move.before, move.after
    for attempt_id, new in after.attempts.items():
        old = before.attempts.get(attempt_id)
        if old is None:
            if before.intent or before.steps[new.step].status != "ready":
                yield f"an attempt of {new.step} is admitted"
        elif old != new and old.status not in LIVE:
            yield f"{new.step} had an attempt that ended as {old.status}, now {new.status}"
        elif old.status != new.status and not _has_reason(move, attempt_id, old, new.status):
            yield f"an attempt of {new.step} goes from {old.status} to {new.status}"
    for key, step in after.steps.items():
        if step.status != before.steps[key].status and not _may(move, key):
            yield f"step {key} goes from {before.steps[key].status} to {step.status}"
        if step.starts > move.tries + move.declared or step.returns > move.returns:
            yield f"step {key} was tried {step.starts} times and given back {step.returns} times"
    if before.status != after.status:
        if before.status != "running":
            yield f"a run that was {before.status} is {after.status}"
        if move.word != ("converge" if before.intent else "advance"):
            yield f"the run ends by {move.word}"
        if after.status != _end(after):
            yield f"the run ends as {after.status}, not as {_end(after)}"


def _has_reason(move: Move, attempt_id: str, old: Attempt, status: str) -> bool:
    """Whether an attempt may go there: by its worker, by evidence, or by convergence."""
    word = move.word if move.about == old.step else f"{move.word} of another"
    intent, lease = move.before.intent, move.before.leases.get(attempt_id)
    held = lease is not None and lease.leased
    if status in ("starting", "running"):
        in_time = lease is not None and lease.expires_ms > move.now_ms
        if status == "starting":
            return old.status == "claimed" and word == "start" and held and in_time and not intent
        return old.status == "starting" and word == "running" and held
    if old.status == "claimed":
        if move.word == "converge":
            return bool(intent) and not held and status == _cancelled(intent)
        expired = move.word == "recover" and lease is not None and lease.expires_ms <= move.now_ms
        return held and status == "lost" and (word in ("not_started", "gone") or expired)
    overdue = old.deadline_ms is not None and old.deadline_ms <= move.now_ms
    if word in ("ok", "fails"):
        end = "succeeded" if word == "ok" else "failed"
        return held and status == (
            _cancelled(intent) if intent else "timed_out" if overdue else end
        )
    if word == "not_started":
        return held and old.status == "starting" and status == "lost"
    fenced = (
        move.word == "recover"
        and lease is not None
        and lease.fences_itself == 1
        and move.on_lost != "hold"
        and lease.expires_ms + lease.grace_ms <= move.now_ms
    )
    if word in ("gone", "declare", "declare_retry") or fenced:
        return held and status == ("timed_out" if overdue and not intent else "lost")
    return False


def _may(move: Move, key: str) -> bool:
    """Whether a step may go there."""
    old, new = move.before.steps[key], move.after.steps[key]
    intent = move.before.intent
    needs = [move.before.steps[need].status for need in move.needs.get(key, [])]
    ends = [
        attempt.status
        for attempt_id, attempt in move.after.attempts.items()
        if attempt.step == key and attempt != move.before.attempts.get(attempt_id)
    ]
    if move.word == "converge":
        # what never began, and what was lost, is never out of time
        end = "cancelled" if old.status in ("pending", "lost") else _cancelled(intent)
        return intent is not None and new.status == end and _held_by_nobody(move, key)
    match (old.status, new.status):
        case ("pending", "ready"):
            return not intent and all(status == "succeeded" for status in needs)
        case ("pending", "skipped"):
            return not intent and any(status not in (*OPEN, "succeeded") for status in needs)
        case ("retry_wait", "ready"):
            due = old.due_ms is not None and old.due_ms <= move.now_ms
            return not intent and move.word == "retry" and due
        case ("ready", "running"):
            return ends == ["running"]
        case ("ready" | "running", "succeeded"):
            return ends == ["succeeded"]
        case ("ready" | "running", "retry_wait"):
            most = move.tries + (move.declared if move.word == "declare_retry" else 0)
            asked = move.word == "declare_retry" or ends != ["lost"] or move.on_lost == "retry"
            return not intent and asked and ends != [] and new.starts < most
        case ("ready" | "running", "failed" | "timed_out"):
            if new.returns > old.returns:
                return ends == ["lost"] and new.returns == move.returns
            if intent:
                return ends == [new.status]
            again = new.starts < move.tries and (ends != ["lost"] or move.on_lost == "retry")
            return ends != [] and (move.word == "declare" or not again)
        case ("running", "lost"):
            return intent is not None and ends == ["lost"]
        case ("ready" | "running", "cancelled"):
            return intent is not None and ends == ["cancelled"]
    return False


def _held_by_nobody(move: Move, key: str) -> bool:
    return not any(
        attempt.step == key
        and attempt.status in LIVE
        and (
            attempt.status != "claimed"
            or (attempt_id in move.before.leases and move.before.leases[attempt_id].leased)
        )
        for attempt_id, attempt in move.before.attempts.items()
    )


def _cancelled(reason: str | None) -> str:
    return "timed_out" if reason == "timeout" else "cancelled"


def _end(facts: Facts) -> str:
    """How a run may end, given how its steps did; `running` while something is open."""
    found = {step.status for step in facts.steps.values()}
    if found & set(OPEN) or any(one.status in LIVE for one in facts.attempts.values()):
        return "running"
    if facts.intent:
        return _cancelled(facts.intent)
    worst = (end for end in ("failed", "timed_out", "cancelled") if end in found)
    return next(worst, "succeeded")
