"""When two moments of an exploration are the same state: each column of each table has its place.

A column is compared as it is, or as the time that is left until then (what has passed is all the
same: every rule asks `<= now` or `> now`), or by an expression of its own, or it is left out; then
it says why nothing that happens later can tell. A column that is not named here fails a test. The
moments at which time stops come from the same columns: nothing that could tell is jumped over.
"""

from typing import Any

Rows = list[tuple[Any, ...]]
How = tuple[str, ...] | str  # expressions, {} for the column; or why it is left out
SAME = ("{}",)
AHEAD = ("max({} - :now, 0)",)
STEP = ("a.step_key",)
NEVER = "no command of the exploration changes it"
CLOCK = "when something happened; the clock never steps back here, and no rule asks for an age"
VERSION = "grows with every effect, and is compared only with what the same call has read"
NAME = "a name: told by what it belongs to"
COPIED = "copied into the lease by the same call"
LAST_FENCE = "{} - (select max(o.fence) from attempt_offer as o where o.attempt_id = x.attempt_id)"
# What has ended is in no decision: `live_attempt` is the only door to attempts. Steps look at it to
# answer a replay; that this moves nothing is tried in every state (Bench.late).
LIVE = "join task_attempt as a on a.attempt_id = x.attempt_id where a.finished_at_ms is null"

# For each table the rows that are looked at, and how its columns are.
TABLES: dict[str, tuple[str, dict[str, How]]] = {
    "run": ("", {
        "status": SAME, "cancel_reason": SAME,
        # under an intent the deadline has no say any more: the first intent wins
        "deadline_at_ms": (
            "case when x.status = 'running' and x.cancel_reason is null"
            " then max({} - :now, 0) end",
        ),
        "attempt_count": "numbers attempts; 8192 is far away, and the jitter is zero here",
        "result_code": "for people: no rule asks how an end is called",
        "run_id": NAME, "version": VERSION, "cancel_requested_at_ms": CLOCK,
        "finished_at_ms": CLOCK, "updated_at_ms": CLOCK, "admitted_at_ms": CLOCK,
        **dict.fromkeys((
            "package_key", "generation", "kind", "target_key", "target_id", "run_key",
            "input_digest", "step_count", "retry_of_run_id", "trigger_key", "scheduled_at_ms",
        ), NEVER),
    }),
    "step_run": ("", {
        "step_key": SAME, "status": SAME,
        # a step that has ended is never tried again: what it has used up does not count
        "attempt_count": ("case when x.finished_at_ms is null then {} end",),
        "claim_return_count": ("case when x.finished_at_ms is null then {} end",),
        # under an intent nothing opens again
        "due_at_ms": (
            "case when (select r.cancel_reason from run as r) is null then max({} - :now, 0) end",
        ),
        "result_code": "for people: no rule asks how an end is called, `taken_over` apart",
        "run_id": NAME, "version": VERSION, "ready_at_ms": CLOCK, "started_at_ms": CLOCK,
        "finished_at_ms": CLOCK, "task_id": NEVER,
    }),
    "task_attempt": (
        "join step_run as s on s.step_key = x.step_key where x.finished_at_ms is null",
        {
            "step_key": SAME, "status": SAME, "deadline_at_ms": AHEAD,
            # of several that are offered, who comes first
            "offer_at_ms": (
                "case when {} is not null then (select count(*) from task_attempt as o"
                " where (o.offer_at_ms, o.attempt_id) < ({}, x.attempt_id)) end",
            ),
            "epoch": ("s.version - {}",),
            "number": "the next one comes from the run's count; see there",
            "jitter": "zero here",
            "exit_code": "null while it lives", "result_code": "null while it lives",
            "attempt_id": NAME, "run_id": NAME, "version": VERSION, "admitted_at_ms": CLOCK,
            "starting_at_ms": CLOCK, "started_at_ms": CLOCK, "finished_at_ms": CLOCK,
            "identity": NEVER, "task_id": NEVER, "queue": NEVER,
        },
    ),
    "attempt_lease": (LIVE, {
        "attempt_id": STEP, "status": SAME, "self_fencing": SAME,
        "fence": (LAST_FENCE,),  # whether what its worker holds is still true
        "expires_at_ms": ("case when x.status = 'leased' then max({} - :now, 0) end",),
        "grace_ms": (
            # a fence counts past the barrier
            "case when x.status = 'leased' and a.status <> 'claimed'"
            " then max(x.expires_at_ms + {} - :now, 0) end",
            # a renewal stops that long after the deadline
            "max(a.deadline_at_ms + {} - :now, 0)",
        ),
        "run_id": NAME, "offer_id": NAME, "token_digest": NAME, "version": VERSION,
        "leased_at_ms": CLOCK, "closed_at_ms": CLOCK, "worker_id": NEVER,
    }),
    "attempt_offer": (LIVE, {
        "attempt_id": STEP, "fence": (LAST_FENCE,),
        "run_id": NAME, "offer_id": NAME, "token_digest": NAME, "offered_at_ms": CLOCK,
        "worker_id": NEVER, "self_fencing": COPIED, "grace_ms": COPIED, "expires_at_ms": COPIED,
    }),
    "attempt_report": (LIVE, {
        "attempt_id": STEP, "fence": (LAST_FENCE,), "kind": SAME, "how": SAME, "exit_code": SAME,
        "output": SAME, "error": SAME,
        # an end that was not acted on at once would be judged by its time
        "reported_at_ms": ("case when x.kind = 'ended' then {} - :now end",),
        "run_id": NAME, "identity": NEVER,
    }),
    "attestation": (LIVE, {
        "attempt_id": STEP, "evidence": SAME, "follow": SAME,
        "attested_at_ms": ("{} - :now",),  # as the end in a report
        "run_id": NAME, "reason": NEVER, "actor": NEVER,
    }),
    "agenda": ("", {"stage": SAME, "due_at_ms": AHEAD, "run_id": NAME}),
    "run_fault": ("", {
        "stage": SAME, "fault_count": SAME, "next_try_at_ms": AHEAD,
        "run_id": NAME, "error": NEVER, "first_at_ms": CLOCK, "last_at_ms": CLOCK,
    }),
    "worker_session": ("", {
        "status": SAME, "self_fencing": SAME, "grace_ms": SAME,
        **dict.fromkeys((
            "worker_id", "session_id", "generation", "queues", "slots", "registered_at_ms",
            "expires_at_ms", "seen_at_ms", "drain_requested_at_ms",
        ), NEVER),
    }),
}  # fmt: skip
# Tables that are left out whole.
LEFT_OUT = {
    "run_event": "history: people and `violation` read it, no decision and no step does",
    "refused_report": "kept for people; the count of it is read only to keep no more than eight",
    "step_output": "what executions read; no rule does",
    "cancel_intent": "the run's cancel_reason once more, as `violation` sees to",
    "run_input": NEVER,
    **dict.fromkeys((
        "package", "package_generation", "task_revision", "workflow_revision", "workflow_step",
        "workflow_ancestor", "trigger", "trigger_schedule", "trigger_run", "trigger_fault",
        "worker_audit",
    ), NEVER),
}  # fmt: skip


def told(table: str) -> list[str]:
    """What of a table is compared, as SQL."""
    columns = TABLES[table][1].items()
    return [
        one.replace("{}", f"x.{name}")
        for name, how in columns
        if not isinstance(how, str)
        for one in how
    ]


def key_texts() -> list[str]:
    """A query for each table; their rows come in any order."""
    return [
        f"select {', '.join(told(name))} from {name} as x {rows}"
        for name, (rows, _) in TABLES.items()
    ]


def moments_text() -> str:
    """The time that is left until the next moment that a key tells; null when there is none."""
    moments = [
        f"select {one} as left_ms from {name} as x {rows}"
        for name, (rows, _) in TABLES.items()
        for one in told(name)
        if "max(" in one and ":now" in one
    ]
    return f"select min(left_ms) from ({' union all '.join(moments)}) where left_ms > 0"
