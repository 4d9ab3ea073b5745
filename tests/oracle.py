"""The rules once more, in plain Python: what the decision views must say.

Restated from DOMAIN.md §3 and DESIGN.md §4-§6 and §9, never from sql/decision. Both engines load
the same views, so that they can be wrong together; test_decision holds the views against this.
A word is a function of a State and gives its effects in order. An effect is the tuple (run_id,
ordinal, entity, entity_id, from_status, to_status, expected_version, result_code, event_type,
due_at_ms, input_id) of DESIGN §4; ordinals count from 1, where a view's may have holes.
"""

from collections.abc import Iterator

from tests.oracle_ends import (
    Effect,
    Move,
    attempt_move,
    cancellation,
    cancellation_blocked,
    completion,
    numbered,
    recovery,
    recovery_due,
    retry_longest,
    run_move,
    step_move,
)
from tests.state import (
    TERMINAL,
    Attempt,
    Lease,
    State,
    Step,
    attempt_id,
    distances,
    held_lease,
    is_open,
    lease_of,
    live_attempts,
    offer_id,
    on_its_epoch,
    report_of,
    step_of,
    task_id,
    text_of,
)

MAX_ATTEMPTS_A_RUN = 8192  # DESIGN §12


def admission(state: State) -> list[Effect]:
    """A run that was just inserted: its first event, and its steps in key order (DOMAIN §3.2).

    What a retry takes over begins as succeeded (issue 3; sql/README.md says when).
    """

    def moves() -> Iterator[Move]:
        if state.run.version != 0:
            return
        yield "run", state.run_id, None, "running", 0, None, "workflow.admitted", None, None
        taken = taken_over(state)
        for node in sorted(state.graph.nodes, key=lambda one: one.key):
            own_id = task_id(node.policy)
            if node.key in taken:
                event, code = "step.taken_over", "taken_over"
                yield "step", node.key, None, "succeeded", 0, code, event, None, own_id
                continue
            to = "pending" if node.needs else "ready"
            yield "step", node.key, None, to, 0, None, "step.created", None, own_id

    return numbered(state, moves())


def taken_over(state: State) -> set[str]:
    """Steps whose result would come out the same: they, and all above them, are as they were."""
    if state.before is None:
        return set()
    status = {one.key: one.status for one in state.before.steps}
    were = {one.key: (text_of(one.policy), set(one.needs)) for one in state.before.graph.nodes}
    same = {
        one.key
        for one in state.graph.nodes
        if status.get(one.key) == "succeeded"
        and were[one.key] == (text_of(one.policy), set(one.needs))
    }
    above = distances(state.graph)
    return {key for key in same if same.issuperset(above[key])}


def frontier(state: State) -> list[Effect]:
    """Open what has all its needs, skip what never can, end what is over (DOMAIN §3.3)."""
    if not is_open(state):
        return []

    def moves() -> Iterator[Move]:
        status = {one.key: one.status for one in state.steps}
        after = dict(status)
        for step in sorted(state.steps, key=lambda one: one.key):
            above = distances(state.graph)[step.key]
            if step.status != "pending":
                continue
            if any(status[key] in TERMINAL - {"succeeded"} for key in above):
                after[step.key] = "skipped"
                yield step_move(step, "skipped", "dependency_not_succeeded")
            elif all(status[key] == "succeeded" for key, far in above.items() if far == 1):
                after[step.key] = "ready"
                yield step_move(step, "ready")
        ends = set(after.values())
        if ends <= TERMINAL:
            deciding = ("failed", "timed_out", "cancelled")  # DESIGN §5: never skipped
            end = next((one for one in deciding if one in ends), "succeeded")
            yield run_move(state, end, None if end == "succeeded" else f"workflow_step_{end}")

    return numbered(state, moves())


def task_admission(state: State) -> list[Effect]:
    """One attempt for each ready step and epoch; numbers from the run's counter (DOMAIN §3.4)."""

    def moves() -> Iterator[Move]:
        number = state.run.attempt_count
        event = "workflow.task_attempt_admitted"
        for step in sorted(state.steps, key=lambda one: one.key):
            if not _wants_attempt(state, step):
                continue
            number += 1
            if number > MAX_ATTEMPTS_A_RUN:
                yield step_move(step, "failed", "attempt_budget_exhausted")
            else:
                own_id = attempt_id(state, number)
                yield "attempt", own_id, None, "claimed", 0, None, event, None, step.key

    return numbered(state, moves())


def _wants_attempt(state: State, step: Step) -> bool:
    if not is_open(state) or step.status != "ready":
        return False
    return all(one.step_key != step.key or one.epoch != step.version for one in state.attempts)


def dispatch(state: State) -> list[Effect]:
    """What an offer, a starting and a running ACK do (DOMAIN §3.5, under an intent DESIGN §5)."""

    def moves() -> Iterator[Move]:
        for attempt in live_attempts(state) if state.run.status == "running" else ():
            if lease := held_lease(state, attempt.number):
                yield from _acknowledged(state, attempt, lease)
            elif attempt.status == "claimed":
                yield from _offered(state, attempt)

    return numbered(state, moves())


def _acknowledged(state: State, attempt: Attempt, lease: Lease) -> Iterator[Move]:
    by, step = attempt_id(state, attempt.number), step_of(state, attempt)
    if attempt.status == "claimed" and report_of(state, lease, "starting"):
        if not is_open(state):  # nothing has started, so the lease goes back
            event = "workflow.task_dispatch_released"
            yield "lease", by, "leased", "released", lease.version, "start_refused", event, None, by
        elif on_its_epoch(step, attempt):
            yield attempt_move(state, attempt, "starting", by=by)
    runs = report_of(state, lease, "running") and not report_of(state, lease, "ended")
    if attempt.status == "starting" and runs and on_its_epoch(step, attempt):
        yield attempt_move(state, attempt, "running", by=by)
        yield step_move(step, "running", by=by)


def _offered(state: State, attempt: Attempt) -> Iterator[Move]:
    if not is_open(state) or not on_its_epoch(step_of(state, attempt), attempt):
        return
    own_id, lease = attempt_id(state, attempt.number), lease_of(state, attempt.number)
    was, version, fence = (lease.status, lease.version, lease.fence) if lease else (None, 0, 0)
    event = "workflow.task_dispatch_leased"
    for offer in state.offers:
        if (offer.number, offer.fence) == (attempt.number, fence + 1):
            by = offer_id(state, offer)
            yield "lease", own_id, was, "leased", version, None, event, None, by


def retry(state: State) -> list[Effect]:
    """A back-off that is over opens a new epoch; the caller compares due_at_ms with its clock."""

    def moves() -> Iterator[Move]:
        for step in sorted(state.steps, key=lambda one: one.key):
            if is_open(state) and step.status == "retry_wait":
                yield step_move(step, "ready", due=step.due_at_ms)

    return numbered(state, moves())


def intent(state: State) -> list[Effect]:
    """The first wish to cancel goes on its run (DOMAIN §3.9)."""

    def moves() -> Iterator[Move]:
        if state.intent is not None and is_open(state):
            own_id, version, event = state.run_id, state.run.version, "run.cancel_requested"
            yield "run", own_id, "running", "running", version, None, event, None, own_id

    return numbered(state, moves())


def agenda(state: State) -> dict[str, int | None]:
    """The stages that must stand on the run's agenda, and until when (DESIGN §5).

    A lease that stands needs its expiry even where a run ended too early, which is wrong in itself.
    """
    deadline = state.run.deadline_at_ms
    wanted = {
        "frontier": [None for _ in frontier(state)],
        "task_admission": [None for _ in task_admission(state)],
        "cancellation": [None for _ in cancellation(state)],
        "deadline": [deadline] if is_open(state) and deadline is not None else [],
        "retry": [effect[9] for effect in retry(state)],
        "expiry": [due[3] for due in recovery_due(state)],
    }
    return {
        stage: min((due for due in times if due is not None), default=None)
        for stage, times in wanted.items()
        if times
    }


def may_go(state: State) -> bool:
    """DESIGN §8: what is terminal; and whatever may still execute keeps its run."""
    return state.run.status != "running" and not live_attempts(state)


def violations(state: State) -> set[str]:
    """Names of the rules that the shape of a run breaks; its history is not looked at.

    DOMAIN §3.9 (which step an attempt may sit on), DESIGN §5 and §9 (leases, ends, agenda).
    """
    live, over = live_attempts(state), state.run.status != "running"
    ended = {one.number for one in state.attempts} - {one.number for one in live}
    stands = dict(state.agenda)
    broken = {
        "a_terminal_run_has_only_terminal_steps": over
        and any(one.status not in TERMINAL for one in state.steps),
        "a_terminal_run_has_no_live_attempt": over and bool(live),
        "a_terminal_run_has_no_agenda": over and bool(stands),
        "a_running_step_has_one_live_attempt": any(
            (step.status == "running") != (_running(state, step) == 1) for step in state.steps
        ),
        "a_live_attempt_sits_on_its_epoch": any(
            not on_its_epoch(step_of(state, one), one) for one in live
        ),
        "work_past_the_barrier_has_a_lease": any(
            one.status != "claimed" and not held_lease(state, one.number) for one in live
        ),
        "a_held_lease_belongs_to_a_live_attempt": any(
            one.status == "leased" and one.number in ended for one in state.leases
        ),
        "a_succeeded_step_has_its_attempt": any(
            step.status == "succeeded"
            and not step.taken_over
            and (step.key, "succeeded") not in {(a.step_key, a.status) for a in state.attempts}
            for step in state.steps
        ),
        "only_a_retry_takes_over_what_never_ran_in_it": any(
            step.taken_over
            and (
                (state.before is None and state.run.retry_of is None)
                or any(one.step_key == step.key for one in state.attempts)
            )
            for step in state.steps
        ),
        "only_a_succeeded_step_has_output": any(
            one.has_output and one.status != "succeeded" for one in state.steps
        ),
        "an_intent_is_on_its_run": state.intent is not None
        and state.run.cancel_reason != state.intent.reason,
        "a_run_has_its_intent": state.run.cancel_reason is not None and state.intent is None,
        "attempts_are_counted": state.run.attempt_count != len(state.attempts),
        "a_run_has_all_its_steps": len(state.steps) != len(state.graph.nodes),
        "due_work_is_on_the_agenda": any(
            stage not in stands or (due is not None and stands[stage] > due)
            for stage, due in agenda(state).items()
        ),
    }
    return {rule for rule, is_broken in broken.items() if is_broken}


def _running(state: State, step: Step) -> int:
    """Running attempts of the step's own epoch."""
    return sum(
        (one.status, one.step_key, one.epoch + 1) == ("running", step.key, step.version)
        for one in state.attempts
    )


WORDS = {
    "admission_effect": admission,
    "frontier_effect": frontier,
    "task_admission_effect": task_admission,
    "dispatch_effect": dispatch,
    "completion_effect": completion,
    "recovery_effect": recovery,
    "retry_effect": retry,
    "intent_effect": intent,
    "cancellation_effect": cancellation,
}

__all__ = [
    "WORDS", "agenda", "cancellation_blocked", "recovery_due", "retry_longest", "violations",
]  # fmt: skip
