"""Rows of each table for a tests.state.State; what no rule looks at is filled in plainly."""

import hashlib
from functools import lru_cache
from typing import Any

from tests.state import Graph, Policy, State, attempt_id, distances, offer_id, task_id, text_of

PACKAGE = "facts"
DIGEST = "0" * 64
Rows = dict[str, list[tuple[Any, ...]]]

COLUMNS = {
    "package": "package_key generation base_dir updated_at_ms",
    "package_generation": "package_key generation digest manifest published_at_ms state",
    "task_revision": "task_id package_key generation task_key digest spec timeout_ms"
    " retry_attempts backoff_ms max_backoff_ms retry_failed retry_timed_out idempotent on_lost"
    " queue",
    "workflow_revision": "workflow_id package_key generation workflow_key step_count",
    "workflow_step": "workflow_id step_key task_id need_count",
    "workflow_ancestor": "workflow_id ancestor_key step_key distance",
    "run": "run_id package_key generation kind target_key target_id run_key input_digest"
    " step_count deadline_at_ms retry_of_run_id admitted_at_ms status version attempt_count"
    " cancel_requested_at_ms cancel_reason result_code finished_at_ms updated_at_ms",
    "step_run": "run_id step_key task_id status version attempt_count claim_return_count"
    " ready_at_ms started_at_ms finished_at_ms due_at_ms result_code",
    "step_output": "run_id step_key attempt_id output",
    "task_attempt": "attempt_id run_id number step_key epoch task_id queue jitter admitted_at_ms"
    " status version offer_at_ms deadline_at_ms starting_at_ms started_at_ms finished_at_ms"
    " result_code",
    "attempt_lease": "attempt_id run_id status version fence offer_id worker_id token_digest"
    " self_fencing grace_ms leased_at_ms expires_at_ms closed_at_ms",
    "attempt_offer": "run_id attempt_id fence offer_id worker_id token_digest self_fencing"
    " grace_ms offered_at_ms expires_at_ms",
    "attempt_report": "run_id attempt_id fence kind how exit_code reported_at_ms",
    "attestation": "run_id attempt_id evidence follow reason actor attested_at_ms",
    "cancel_intent": "run_id reason actor requested_at_ms",
    "agenda": "run_id stage due_at_ms",
    "run_event": "run_id sequence type entity entity_id from_status to_status entity_version"
    " result_code created_at_ms",
}
DEFINITIONS = ("package", "package_generation", "task_revision", "workflow_revision",
               "workflow_step", "workflow_ancestor")  # fmt: skip


def definitions(rows: Rows, graph: Graph, known: set[str]) -> None:
    if PACKAGE not in known:
        known.add(PACKAGE)
        rows["package"].append((PACKAGE, 1, "/", 0))
        rows["package_generation"].append((PACKAGE, 1, DIGEST, "{}", 0, "active"))
    for node in graph.nodes:
        if task_id(node.policy) not in known:
            known.add(task_id(node.policy))
            rows["task_revision"].append(_task(node.policy))
    workflow_id = _workflow_id(graph)
    if workflow_id in known:
        return
    known.add(workflow_id)
    rows["workflow_revision"].append((workflow_id, PACKAGE, 1, workflow_id, len(graph.nodes)))
    rows["workflow_step"] += [
        (workflow_id, node.key, task_id(node.policy), len(node.needs)) for node in graph.nodes
    ]
    rows["workflow_ancestor"] += [
        (workflow_id, above, key, far)
        for key, found in distances(graph).items()
        for above, far in found.items()
    ]


def _task(policy: Policy) -> tuple[Any, ...]:
    own_id = task_id(policy)
    return (
        own_id, PACKAGE, 1, own_id, _digest(policy), "{}", None, policy.attempts, policy.backoff_ms,
        policy.max_backoff_ms, int(policy.on_failed), int(policy.on_timed_out), 1, policy.on_lost,
        "default",
    )  # fmt: skip


@lru_cache(maxsize=256)
def _digest(policy: Policy) -> str:
    return hashlib.sha256(repr(text_of(policy)).encode()).hexdigest()


@lru_cache(maxsize=4096)
def _workflow_id(graph: Graph) -> str:
    return "wf" + hashlib.sha256(repr(graph).encode()).hexdigest()[:24]


def run_rows(rows: Rows, state: State) -> None:
    run, nodes = state.run, state.graph.nodes
    target = _workflow_id(state.graph) if run.kind == "workflow" else task_id(nodes[0].policy)
    over = run.status != "running"
    code = f"workflow_step_{run.status}" if over and run.status != "succeeded" else None
    requested = None
    if run.cancel_reason is not None:
        requested = state.intent.requested_at_ms if state.intent else 3_000
    newest = max([9_000, *(event.at_ms for event in state.events)])
    rows["run"].append(
        (
            state.run_id, PACKAGE, 1, run.kind, target, target, state.run_id, DIGEST, len(nodes),
            run.deadline_at_ms, state.before.run_id if state.before else run.retry_of, 1_000,
            run.status, run.version, run.attempt_count, requested, run.cancel_reason,
            code, 9_000 if over else None, newest,
        )
    )  # fmt: skip
    rows["agenda"] += [(state.run_id, *one) for one in state.agenda]
    rows["run_event"] += [
        (
            state.run_id, sequence, f"{one.entity}.{one.to_status}", one.entity, one.entity_id,
            one.from_status, one.to_status, one.version, one.code, one.at_ms,
        )
        for sequence, one in enumerate(state.events, start=1)
    ]  # fmt: skip


STEP_TIMES = {  # ready, started, finished
    "pending": (None, None, None),
    "ready": (1_000, None, None),
    "waiting_approval": (1_000, None, None),
    "running": (1_000, 2_000, None),
    "retry_wait": (1_000, 2_000, None),
    "lost": (1_000, 2_000, None),
    "skipped": (None, None, 3_000),
}
STEP_SAYS_WHY = {"retry_wait", "lost", "failed", "skipped", "cancelled", "timed_out"}


def step_rows(rows: Rows, state: State) -> None:
    tasks = {node.key: task_id(node.policy) for node in state.graph.nodes}
    rows["step_run"] += [
        (
            state.run_id, one.key, tasks[one.key], one.status, one.version, one.attempt_count,
            one.claim_return_count, *STEP_TIMES.get(one.status, (1_000, 2_000, 3_000)),
            one.due_at_ms, "taken_over" if one.taken_over else _step_code(one.status),
        )
        for one in state.steps
    ]  # fmt: skip
    rows["step_output"] += [
        (state.run_id, one.key, attempt_id(state, 1), "{}") for one in state.steps if one.has_output
    ]


def _step_code(status: str) -> str | None:
    return "some_reason" if status in STEP_SAYS_WHY else None


ATTEMPT_TIMES = {  # offered, starting, started, finished
    "claimed": (1_000, None, None, None),
    "starting": (None, 1_500, None, None),
    "running": (None, 1_500, 2_000, None),
}


def attempt_rows(rows: Rows, state: State) -> None:
    tasks = {node.key: task_id(node.policy) for node in state.graph.nodes}
    for one in state.attempts:
        times = ATTEMPT_TIMES.get(one.status, (None, 1_500, 2_000, 3_000))
        says_why = one.status in {"failed", "cancelled", "timed_out", "lost"}
        rows["task_attempt"].append(
            (
                attempt_id(state, one.number), state.run_id, one.number, one.step_key, one.epoch,
                tasks[one.step_key], "default", one.jitter, 1_000, one.status, one.version,
                times[0], one.deadline_at_ms, *times[1:], "some_reason" if says_why else None,
            )
        )  # fmt: skip
    for lease in state.leases:
        own_id = attempt_id(state, lease.number)
        rows["attempt_lease"].append(
            (
                own_id, state.run_id, lease.status, lease.version, lease.fence,
                f"of-{own_id}", "worker", DIGEST, int(lease.self_fencing), lease.grace_ms, 1_200,
                lease.expires_at_ms, None if lease.status == "leased" else 3_000,
            )
        )  # fmt: skip


def input_rows(rows: Rows, state: State) -> None:
    rows["attempt_offer"] += [
        (
            state.run_id, attempt_id(state, one.number), one.fence, offer_id(state, one), "worker",
            DIGEST, 1, 100, 1_200, 5_000,
        )
        for one in state.offers
    ]  # fmt: skip
    rows["attempt_report"] += [
        (
            state.run_id, attempt_id(state, one.number), one.fence, one.kind, one.how,
            one.exit_code, one.reported_at_ms,
        )
        for one in state.reports
    ]  # fmt: skip
    rows["attestation"] += [
        (
            state.run_id, attempt_id(state, one.number), one.evidence, one.follow, "", "tester",
            one.attested_at_ms,
        )
        for one in state.attestations
    ]  # fmt: skip
    if state.intent is not None:
        rows["cancel_intent"].append(
            (state.run_id, state.intent.reason, "tester", state.intent.requested_at_ms)
        )
