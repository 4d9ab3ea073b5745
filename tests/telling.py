"""States and effects as short lines that people can read, and where views and oracle differ."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tests import oracle
from tests.facts import Connection, in_order, read
from tests.state import LIVE, Node, State, lease_of, on_its_epoch, policy_of

EFFECT_COLUMNS = (
    "run_id, ordinal, entity, entity_id, from_status, to_status, expected_version, result_code,"
    " event_type, due_at_ms, input_id"
)
OTHERS = {
    "recovery_due": ("run_id, attempt_id, evidence, due_at_ms", oracle.recovery_due),
    "retry_longest": ("run_id, step_key, due_at_ms, longest_ms", oracle.retry_longest),
    "cancellation_blocked": ("run_id, step_key, attempt_id", oracle.cancellation_blocked),
}
VIEWS = (*oracle.WORDS, *OTHERS)
Answers = dict[str, dict[str, list[tuple[Any, ...]]]]


def told(states: Iterable[State]) -> Answers:
    """What the oracle says: rows by run id, for each view; runs without a row are left out."""
    answers: Answers = {view: {} for view in VIEWS}
    for state in states:
        for view, word in oracle.WORDS.items():
            if effects := word(state):
                answers[view][state.run_id] = effects
        for view, (_, word) in OTHERS.items():
            if rows := word(state):
                answers[view][state.run_id] = sorted(rows, key=str)
    return answers


def seen(connection: Connection, views: Sequence[str] = VIEWS) -> Answers:
    """What the views say, as `told` puts it. Raises AssertionError when an ordinal comes twice."""
    answers: Answers = {}
    for view in views:
        if view in OTHERS:
            rows = read(connection, view, OTHERS[view][0])
            answers[view] = {run_id: sorted(found, key=str) for run_id, found in rows.items()}
        else:
            answers[view] = dict(in_order(read(connection, view, EFFECT_COLUMNS)))
    return answers


def differences(
    states: Iterable[State], wanted: Answers, found: Answers, most: int = 3
) -> Iterator[str]:
    """Where the views and the oracle part, at most so many a view, in words."""
    known: Mapping[str, State] = {state.run_id: state for state in states}
    for view, rows in found.items():
        parted = [
            run_id
            for run_id in sorted({*rows, *wanted[view]})
            if rows.get(run_id) != wanted[view].get(run_id)
        ]
        for run_id in parted[:most]:
            says = rows_of(rows.get(run_id, []))
            wants = rows_of(wanted[view].get(run_id, []))
            if says == wants:  # they part in a column that people need not read
                says, wants = str(rows.get(run_id)), str(wanted[view].get(run_id))
            yield (
                f"{view}, one of {len(parted)}: {facts_of(known[run_id])}\n"
                f"    the view says   {says}\n    the oracle says {wants}"
            )


def facts_of(state: State) -> str:
    run = state.run
    parts = [f"{run.kind} {run.status}"] if run.status != "running" or run.version == 0 else []
    if run.version == 0:
        parts = [f"{run.kind} just inserted", *(_node(node) for node in state.graph.nodes)]
        parts += [f"retries {' · '.join(_ended(state.before))}"] if state.before else []
    if run.cancel_reason:
        parts.append(f"intent {run.cancel_reason}")
    elif state.intent:
        parts.append(f"wish {state.intent.reason}")
    if run.attempt_count > 100:
        parts.append(f"{run.attempt_count} attempts so far")
    for step in state.steps:
        node = next(node for node in state.graph.nodes if node.key == step.key)
        parts.append(" ".join([_node(node), *_step(state, step.key)]))
    return "; ".join(parts)


def _ended(before: State) -> Iterator[str]:
    status = {one.key: one.status for one in before.steps}
    for node in before.graph.nodes:
        yield f"{_node(node)} {status[node.key]}"


def _node(node: Node) -> str:
    policy = node.policy
    needs = f" needs {' '.join(node.needs)}" if node.needs else ""
    listed = [name for name in ("failed", "timed_out") if getattr(policy, f"on_{name}")]
    says = [f"{policy.attempts} tries"] if policy.attempts > 1 else []
    says += [f"on {' '.join(listed)}"] if listed else []
    says += [f"on_lost {policy.on_lost}"] if policy.on_lost != "fail" else []
    says += [f"back-off {policy.backoff_ms}–{policy.max_backoff_ms}"] if policy.backoff_ms else []
    says += [f"{policy.text} text"] if policy.text else []
    return f"**{node.key}**{needs}{' [' + ', '.join(says) + ']' if says else ''}"


def _step(state: State, key: str) -> Iterator[str]:
    step = next(one for one in state.steps if one.key == key)
    yield f"{step.status}@{step.version}"
    if step.attempt_count:
        yield f"started {step.attempt_count}×"
    if step.claim_return_count:
        yield f"returned {step.claim_return_count}×"
    if step.due_at_ms is not None:
        yield f"due {step.due_at_ms}"
    for one in (one for one in state.attempts if one.step_key == key):
        lease = lease_of(state, one.number)
        held = f", {lease.status} by fence {lease.fence}" if lease and one.status in LIVE else ""
        if lease and lease.status == "leased" and not lease.self_fencing:
            held += ", not self-fencing"
        late = f" deadline {one.deadline_at_ms}" if one.deadline_at_ms is not None else ""
        stale = one.status in LIVE and not on_its_epoch(step, one)
        again = one.jitter and one.status in LIVE and policy_of(state, key).backoff_ms
        late += f" jitter {one.jitter}" if again else ""
        yield f"· #{one.number} {one.status}{' (of an old epoch)' if stale else ''}{late}{held}"
        yield from (f"· {said}" for said in _said(state, one.number))


def _said(state: State, number: int) -> Iterator[str]:
    lease = lease_of(state, number)
    fence = lease.fence if lease else 0
    for offer in state.offers:
        if offer.number == number:
            yield f"offer for fence {offer.fence}"
    for report in state.reports:
        if report.number == number:
            how = f" {report.how}" if report.how else ""
            code = f" {report.exit_code}" if report.exit_code is not None else ""
            old = "" if fence == report.fence else f" by fence {report.fence}"
            yield f"report {report.kind}{how}{code} at {report.reported_at_ms}{old}"
    for one in state.attestations:
        if one.number == number:
            follow = f", then {one.follow}" if one.follow else ""
            yield f"{one.evidence} at {one.attested_at_ms}{follow}"


def rows_of(rows: Sequence[tuple[Any, ...]]) -> str:
    return "; ".join(_row(row) for row in rows) or "–"


def _row(row: tuple[Any, ...]) -> str:
    name = str(row[3] if len(row) > 4 else row[1]).replace(f"{row[0]}-", "#")
    name = "" if name == row[0] else f" {name}"
    if len(row) == 3:  # blocked
        return f"blocked:{name} {str(row[2] or '').replace(f'{row[0]}-', '#')}".rstrip()
    if len(row) == 4 and isinstance(row[2], int):  # the longest wait
        return f"{name} due {row[2]} waits {row[3]} at the most".strip()
    if len(row) == 4:  # due
        return f"{name} {row[2]} at {row[3]}".strip()
    code = f" ({row[7]})" if row[7] else ""
    due = f" due {row[9]}" if row[9] is not None else ""
    was = f"{row[4]}@{row[6]} → " if row[4] else "new "
    return f"{row[2]}{name} {was}{row[5]}{code}{due}"
