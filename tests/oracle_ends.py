"""The oracle's second half: completion, recovery and cancellation (see tests.oracle)."""

from collections.abc import Iterator

from tests.state import (
    TERMINAL,
    Attempt,
    Attestation,
    Policy,
    Report,
    State,
    Step,
    attempt_id,
    held_lease,
    is_open,
    live_attempts,
    policy_of,
    report_of,
    step_of,
)

MAX_STARTED = 64  # DESIGN §12
MAX_CLAIM_RETURNS = 64
JITTERS = 1024
SPREAD_MS = 5  # a point of jitter: what was lost at once does not come back at once

Move = tuple[str, str, str | None, str, int, str | None, str, int | None, str | None]
Effect = tuple[str, int, str, str, str | None, str, int, str | None, str, int | None, str | None]


def numbered(state: State, moves: Iterator[Move]) -> list[Effect]:
    return [(state.run_id, ordinal, *move) for ordinal, move in enumerate(moves, start=1)]


def step_move(
    step: Step,
    to: str,
    code: str | None = None,
    *,
    after: str | None = None,
    due: int | None = None,
    by: str | None = None,
) -> Move:
    """A step's effect; `after` makes it the second one, from that status. by: an attempt's id."""
    version = step.version + (after is not None)
    return "step", step.key, after or step.status, to, version, code, f"step.{to}", due, by


def attempt_move(
    state: State, attempt: Attempt, to: str, code: str | None = None, *, by: str | None = None
) -> Move:
    own_id, event = attempt_id(state, attempt.number), f"workflow.task_attempt.{to}"
    return "attempt", own_id, attempt.status, to, attempt.version, code, event, None, by


def run_move(state: State, to: str, code: str | None) -> Move:
    run = state.run
    return "run", state.run_id, run.status, to, run.version, code, f"workflow.{to}", None, None


def completion(state: State) -> list[Effect]:
    """What a worker's report of an end does, by its priorities (DOMAIN §3.5, DESIGN §5)."""

    def moves() -> Iterator[Move]:
        if state.run.status != "running":
            return
        for attempt in live_attempts(state):
            lease = held_lease(state, attempt.number)
            report = report_of(state, lease, "ended") if lease else None
            if report is None:
                continue
            if report.how == "not_started":
                if attempt.status != "running":
                    yield from _claim_return(state, attempt, "not_started")
            elif attempt.status != "claimed":
                yield from _ended(state, attempt, report)

    return numbered(state, moves())


def _claim_return(state: State, attempt: Attempt, code: str) -> Iterator[Move]:
    """Nothing has started: a new epoch, whatever the intent; the 64th time is the last."""
    by, step = attempt_id(state, attempt.number), step_of(state, attempt)
    yield attempt_move(state, attempt, "lost", code, by=by)
    if step.claim_return_count + 1 >= MAX_CLAIM_RETURNS:
        yield step_move(step, "failed", "claim_budget_exhausted", by=by)
    else:
        yield step_move(step, "ready", by=by)


def _ended(state: State, attempt: Attempt, report: Report) -> Iterator[Move]:
    by, step = attempt_id(state, attempt.number), step_of(state, attempt)
    policy = policy_of(state, step.key)
    end, code = end_of(state, attempt, report)
    after = None
    if attempt.status == "starting":
        yield step_move(step, "running", by=by)
        after = "running"
    yield attempt_move(state, attempt, end, code, by=by)
    listed = (end == "failed" and policy.on_failed) or (end == "timed_out" and policy.on_timed_out)
    if is_open(state) and listed and started_count(step, attempt) < policy.attempts:
        due = report.reported_at_ms + delay_ms(policy, step, attempt)
        yield step_move(step, "retry_wait", code, after=after, due=due, by=by)
    else:
        yield step_move(step, end, code, after=after, by=by)


def end_of(state: State, attempt: Attempt, report: Report) -> tuple[str, str | None]:
    """The attempt's end and its code: intent, deadline, exit 0, failure, in this order."""
    if state.run.cancel_reason is not None:
        end = "timed_out" if state.run.cancel_reason == "timeout" else "cancelled"
        return end, f"execution_{end}"
    deadline = attempt.deadline_at_ms
    if report.how == "deadline" or (deadline is not None and deadline <= report.reported_at_ms):
        return "timed_out", "execution_timed_out"
    if report.how == "exit" and report.exit_code == 0:
        return "succeeded", None
    codes = {
        "start_failed": "executor_start_failed",
        "bad_output": "bad_output",
        "stop": "execution_stopped",
    }
    return "failed", codes.get(report.how or "", "execution_failed")


def started_count(step: Step, attempt: Attempt) -> int:
    """Attempts past the start barrier, this one included."""
    return step.attempt_count + (attempt.status != "running")


def delay_ms(policy: Policy, step: Step, attempt: Attempt) -> int:
    """The back-off doubles up to its maximum; jitter adds up to an eighth (DESIGN §5)."""
    doubled = policy.backoff_ms * 2 ** (started_count(step, attempt) - 1)
    delay = min(doubled, policy.max_backoff_ms)
    return delay + delay * attempt.jitter // 8192


def longest_wait_ms(policy: Policy) -> int:
    """No back-off is longer; one that is was begun by a clock that was ahead, and is over."""
    return policy.max_backoff_ms + policy.max_backoff_ms // 8 + (JITTERS - 1) * SPREAD_MS


def retry_longest(state: State) -> list[tuple[str, str, int | None, int]]:
    """(run_id, step_key, due_at_ms, longest_ms) of each step that waits to be tried again."""
    return [
        (state.run_id, one.key, one.due_at_ms, longest_wait_ms(policy_of(state, one.key)))
        for one in state.steps
        if one.status == "retry_wait"
    ]


def recovery_due(state: State) -> list[tuple[str, str, str, int]]:
    """(run_id, attempt_id, evidence, due_at_ms) that the clock alone will give (DESIGN §9)."""

    def due() -> Iterator[tuple[str, str, str, int]]:
        for attempt in live_attempts(state):
            lease = held_lease(state, attempt.number)
            own_id = attempt_id(state, attempt.number)
            if lease is None:
                continue
            if attempt.status == "claimed":
                yield state.run_id, own_id, "expired", lease.expires_at_ms
            elif lease.self_fencing and policy_of(state, attempt.step_key).on_lost != "hold":
                yield state.run_id, own_id, "fenced", lease.expires_at_ms + lease.grace_ms

    return list(due())


def recovery(state: State) -> list[Effect]:
    """What follows from evidence about work whose worker is silent (DESIGN §9).

    When the clock proves something is recovery_due's question. A lease that ran out proves nothing
    past the start barrier, and `hold` does not believe the fence.
    """

    def moves() -> Iterator[Move]:
        if state.run.status != "running":
            return
        for attempt in live_attempts(state):
            for evidence in state.attestations:
                if evidence.number != attempt.number:
                    continue
                if not _believed(state, attempt, evidence):
                    continue
                if attempt.status == "claimed":
                    yield from _claim_return(state, attempt, "claim_expired")
                else:
                    yield from _lost(state, attempt, evidence)

    return numbered(state, moves())


def _believed(state: State, attempt: Attempt, evidence: Attestation) -> bool:
    if evidence.evidence == "expired":
        return attempt.status == "claimed"
    held = policy_of(state, attempt.step_key).on_lost == "hold"
    return not (held and evidence.evidence == "fenced")


def _lost(state: State, attempt: Attempt, evidence: Attestation) -> Iterator[Move]:
    by, step = attempt_id(state, attempt.number), step_of(state, attempt)
    policy, at = policy_of(state, step.key), evidence.attested_at_ms
    deadline = attempt.deadline_at_ms
    late = is_open(state) and deadline is not None and deadline <= at
    end = "timed_out" if late else "lost"
    code = f"execution_{end}"
    yield attempt_move(state, attempt, end, code, by=by)
    if not is_open(state):
        if step.status == "running":
            yield step_move(step, "lost", code, by=by)
    elif _again(policy, started_count(step, attempt), evidence, end):
        apart = 0 if evidence.follow == "retry" else attempt.jitter * SPREAD_MS
        due = at + delay_ms(policy, step, attempt) + apart
        yield step_move(step, "retry_wait", code, due=due, by=by)
    elif late:
        yield step_move(step, "timed_out", code, by=by)
    elif step.status == "running":
        yield step_move(step, "lost", code, by=by)
        yield step_move(step, "failed", code, after="lost", by=by)
    else:
        yield step_move(step, "failed", code, by=by)


def _again(policy: Policy, started: int, evidence: Attestation, end: str) -> bool:
    """Whether lost work is tried again: an operator decides first, then retry.on or on_lost."""
    if evidence.follow is not None:
        return evidence.follow == "retry" and started < MAX_STARTED
    wished = policy.on_timed_out if end == "timed_out" else policy.on_lost == "retry"
    return wished and started < policy.attempts


def cancellation_blocked(state: State) -> list[tuple[str, str, str | None]]:
    """(run_id, step_key, attempt_id) of what convergence must leave alone (DOMAIN §3.9)."""
    if state.run.status != "running" or state.run.cancel_reason is None:
        return []
    live = live_attempts(state)
    held = {one.step_key for one in live}
    attempts = [
        (state.run_id, one.step_key, attempt_id(state, one.number))
        for one in live
        if one.status != "claimed" or held_lease(state, one.number)
    ]
    running = [one.key for one in state.steps if one.status == "running" and one.key not in held]
    return [*attempts, *((state.run_id, key, None) for key in running)]


def cancellation(state: State) -> list[Effect]:
    """End what nobody holds: attempts by id, steps by key, the run last (DOMAIN §3.9)."""

    def moves() -> Iterator[Move]:
        if state.run.status != "running" or state.run.cancel_reason is None:
            return
        end = "timed_out" if state.run.cancel_reason == "timeout" else "cancelled"
        blocked = {step_key for _, step_key, _ in cancellation_blocked(state)}
        for attempt in live_attempts(state):
            if attempt.step_key not in blocked:
                yield attempt_move(state, attempt, end, f"execution_{end}")
        for step in sorted(state.steps, key=lambda one: one.key):
            if step.status in TERMINAL or step.key in blocked:
                continue
            # pending and lost have no edge to timed_out (DOMAIN §3.1)
            to = "cancelled" if step.status in {"pending", "lost"} else end
            yield step_move(step, to, f"workflow_{to}")
        if not blocked:
            yield run_move(state, end, f"workflow_{end}")

    return numbered(state, moves())
