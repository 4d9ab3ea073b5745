"""What the oracle says of a command, against the events that a run really got."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tests import oracle
from tests.oracle_ends import Effect, longest_wait_ms
from tests.simulation import Done
from tests.simulation_facts import Facts, rows_of, state_of, tasks_of
from tests.state import State, attempt_id, offer_id, policy_of

WORDS: dict[str, Callable[[State], list[Effect]]] = {
    "start_run": oracle.admission,
    "start_retry": oracle.admission,
    "frontier_page": oracle.frontier,
    "advance_frontier": oracle.frontier,
    "task_admission_page": oracle.task_admission,
    "admit_tasks": oracle.task_admission,
    "lease_attempts": oracle.dispatch,
    "start_attempts": oracle.dispatch,
    "running_attempts": oracle.dispatch,
    "report_attempts": oracle.completion,
    "attest_attempts": oracle.recovery,
    "recover_run": oracle.recovery,
    "declare_stopped": oracle.recovery,
    "retry_page": oracle.retry,
    "retry_run": oracle.retry,
    "request_cancel": oracle.intent,
    "deadline_page": oracle.intent,
    "deadline_run": oracle.intent,
    "converge_cancellation": oracle.cancellation,
    "settle_task_cancellations": oracle.cancellation,
}


def verdict(done: Done, before: Facts, after: Facts, run_id: str) -> Iterator[str]:
    """Whether the events that a run got are those that the oracle wants."""
    known = len(rows_of(before, "run_event", run_id))
    events = sorted(rows_of(after, "run_event", run_id), key=lambda row: row["sequence"])
    words = ("type", "entity", "entity_id", "from_status", "to_status", "entity_version",
             "result_code", "input_id")  # fmt: skip
    got = [tuple(row[word] for word in words) for row in events[known:]]
    wanted: list[tuple[Any, ...]] = []
    refused = isinstance(next(iter(done.answers.values())), str)
    word = None if refused else WORDS.get(done.command.step)
    if word is not None and (run_id,) in after["run"]:
        state = _between(before, after, run_id)
        effects = [
            effect for effect in word(state)
            if word is not oracle.retry or _waited(state, effect, done.now_ms)
        ]  # fmt: skip
        wanted = list(_as_events(after, state, effects))
    if got != wanted:
        yield f"verdict: {run_id} got {got}, where the oracle wants {wanted}"
    if not got:
        return
    newest = before["run"].get((run_id,), {"updated_at_ms": 0})["updated_at_ms"]
    at = max(done.now_ms, newest)
    if {row["created_at_ms"] for row in events[known:]} != {at}:
        yield f"times: the events of {run_id} are not of {at}"


def _waited(state: State, effect: Effect, now_ms: int) -> bool:
    """Whether a back-off is over: it says so, or no back-off of its task is as long."""
    due_ms = effect[9]
    assert due_ms is not None
    return due_ms <= now_ms or due_ms > now_ms + longest_wait_ms(policy_of(state, effect[3]))


def _between(before: Facts, after: Facts, run_id: str) -> State:
    """The run as the decision saw it: the command's input is there, nothing has moved yet."""
    late = state_of(after, run_id)
    if (run_id,) not in before["run"]:
        run = replace(late.run, status="running", version=0, attempt_count=0)
        return replace(late, run=run, steps=(), attempts=(), leases=())
    early = state_of(before, run_id)
    return replace(
        early,
        offers=late.offers,
        reports=late.reports,
        attestations=late.attestations,
        intent=late.intent,
    )


def _as_events(after: Facts, state: State, effects: list[Effect]) -> Iterator[tuple[Any, ...]]:
    """Effects as the events that they must become; ids of the oracle's own are the real ones."""
    tasks = tasks_of(after, after["run"][(state.run_id,)])
    offers = {
        offer_id(state, one): after["attempt_offer"][
            (state.run_id, attempt_id(state, one.number), one.fence)
        ]["offer_id"]
        for one in state.offers
    }
    for place, effect in enumerate(effects, start=1):
        _, _, entity, own_id, was, to, version, code, event, _, by = effect
        if entity == "step" and was is None:
            by = tasks[own_id]
        by = offers.get(by, by) if by else by
        number = state.run.version + place if entity == "run" else version + 1
        yield event, entity, own_id, was, to, number, code, by
