"""The race matrix of workers: who comes too late, or with what is not his, and what he is told.

A case arranges the room and then says what is asked, by which worker, and how it is answered.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from qinglong_sql.errors import Fenced
from tests import acting
from tests.acting import LEASE_MS, Held, Row
from tests.remote_room import (
    APPLIED,
    REFUSED,
    UNKNOWN,
    Ask,
    Case,
    Room,
    applied,
    attest,
    cross,
    every,
    inputs,
    offered,
    renew,
    report,
    returned,
    runs,
)


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
