"""Rules changed at one place, each of which the enumeration must notice (see test_mutants)."""

from dataclasses import dataclass

from tests.facts import decision


@dataclass(frozen=True, slots=True)
class Mutant:
    """In the file of `word`, `old` stands `count` times; the one at `place` becomes `new`."""

    name: str
    word: str
    view: str  # where the oracle must part from it
    old: str
    new: str
    count: int = 1
    place: int = 0


GUARD = "select case when r.cancel_requested_at_ms is null then r.status end"
DEADLINE = (
    "          when p.how = 'deadline' or v.deadline_at_ms <= p.reported_at_ms then 'timed_out'\n"
)
EXIT = "          when p.how = 'exit' and p.exit_code = 0 then 'succeeded'\n"
REASON = "          when r.cancel_reason is not null then 'cancelled'\n"
EPOCH = "w.epoch_stands = 1 or w.turn = 'released'"
CASES = (
    Mutant(
        "a skipped need counts as success", "frontier", "frontier_effect",
        "n.step_key = w.ancestor_key and n.status = 'succeeded'",
        "n.step_key = w.ancestor_key and n.status in ('succeeded', 'skipped')",
    ),
    Mutant(
        "a need that runs is enough", "frontier", "frontier_effect",
        "n.step_key = w.ancestor_key and n.status = 'succeeded'",
        "n.step_key = w.ancestor_key and n.status in ('succeeded', 'running')",
    ),
    Mutant(
        "a need that timed out skips nothing", "frontier", "frontier_effect",
        "('failed', 'skipped', 'cancelled', 'timed_out')", "('failed', 'skipped', 'cancelled')",
    ),
    Mutant(
        "only direct dependents are skipped", "frontier", "frontier_effect",
        "and w.ancestor_key = b.step_key", "and w.ancestor_key = b.step_key and w.distance = 1",
    ),
    Mutant(
        "timed out beats failed", "frontier", "frontier_effect",
        "when 'failed' then 1\n                when 'timed_out' then 2",
        "when 'timed_out' then 1\n                when 'failed' then 2",
    ),
    Mutant(
        "a run ends while a retry waits", "frontier", "frontier_effect",
        "'running', 'retry_wait', 'lost')", "'running', 'lost')",
    ),
    Mutant(
        "the frontier moves under an intent", "frontier", "frontier_effect",
        GUARD, "select r.status",
    ),
    Mutant(
        "attempts are admitted under an intent", "task_admission", "task_admission_effect",
        GUARD, "select r.status",
    ),
    Mutant(
        "one admission a step, not an epoch", "task_admission", "task_admission_effect",
        " and a.epoch = s.version", "",
    ),
    Mutant(
        "one attempt too many a run", "task_admission", "task_admission_effect",
        "e.number <= 8192", "e.number <= 8193", count=6,
    ),
    *(
        Mutant(
            f"{what} asks for no epoch", "dispatch", "dispatch_effect",
            EPOCH, f"{EPOCH} or w.turn = '{turn}'",
        )
        for turn, what in (
            ("leased", "an offer"), ("starting", "a start"), ("running", "a running execution"),
        )
    ),
    Mutant(
        "a start under an intent goes through", "dispatch", "dispatch_effect",
        "f.cancel_reason is null then 'starting'", "1 = 1 then 'starting'",
    ),
    Mutant(
        "an older offer takes the lease", "dispatch", "dispatch_effect",
        "o.fence = w.fence", "o.fence <= w.fence order by o.fence limit 1",
    ),
    Mutant(
        "exit 0 beats the deadline", "completion", "completion_effect",
        DEADLINE + EXIT, EXIT + DEADLINE,
    ),
    Mutant(
        "exit 0 beats the intent", "completion", "completion_effect",
        REASON + DEADLINE + EXIT, EXIT + REASON + DEADLINE,
    ),
    Mutant(
        "the deadline beats the intent", "completion", "completion_effect",
        REASON + DEADLINE, DEADLINE + REASON,
    ),
    Mutant(
        "the last millisecond of the deadline is in time", "completion", "completion_effect",
        "v.deadline_at_ms <= p.reported_at_ms", "v.deadline_at_ms < p.reported_at_ms",
    ),
    Mutant(
        "an older fence may report", "completion", "completion_effect",
        "where p.fence = (", "where p.fence >= (",
    ),
    Mutant(
        "one retry too many after a report", "completion", "completion_effect",
        "x.started_count < x.retry_attempts", "x.started_count <= x.retry_attempts",
    ),
    Mutant(
        "retry.on is not asked", "completion", "completion_effect",
        "x.attempt_end = 'failed' and x.retry_failed = 1", "x.attempt_end = 'failed'",
    ),
    Mutant(
        "one claim return too many after a report", "completion", "completion_effect",
        "c.claim_return_count < 63 then 'ready'", "c.claim_return_count < 64 then 'ready'",
    ),
    Mutant(
        "one claim return too few after an expiry", "recovery", "recovery_effect",
        "c.claim_return_count < 63 then 'ready'", "c.claim_return_count < 62 then 'ready'",
    ),
    Mutant(
        "hold believes a fence", "recovery", "recovery_due", " and v.on_lost <> 'hold'", "",
    ),
    Mutant(
        "every session fences itself", "recovery", "recovery_due", "l.self_fencing = 1 and ", "",
    ),
    Mutant(
        "work past the barrier is fenced without grace", "recovery", "recovery_due",
        "then 0 else l.grace_ms end", "then 0 else 0 end",
    ),
    Mutant(
        "one retry too many after a loss", "recovery", "recovery_effect",
        "x.started_count >= x.retry_attempts", "x.started_count > x.retry_attempts",
    ),
    *(
        Mutant(
            f"{what} at once comes back at once", "recovery", "recovery_effect",
            "x.attested_at_ms + x.delay_ms + 5 * x.jitter", "x.attested_at_ms + x.delay_ms",
            count=2, place=place,
        )
        for place, what in enumerate(("what timed out", "what was lost"))
    ),
    Mutant(
        "what an operator wants again is put off", "recovery", "recovery_effect",
        "x.follow = 'retry' then x.attested_at_ms + x.delay_ms",
        "x.follow = 'retry' then x.attested_at_ms + x.delay_ms + 5 * x.jitter",
    ),
    Mutant(
        "the wait after a loss is taken for one of a clock ahead", "recovery", "retry_longest",
        " + 5 * 1023 as", " as",
    ),
    Mutant(
        "an operator may retry for ever", "recovery", "recovery_effect",
        "x.started_count >= 64", "x.started_count >= 65",
    ),
    Mutant(
        "on_lost is asked under an intent", "recovery", "recovery_effect",
        "and c.attempt_end = 'lost'\n    and c.cancel_reason is null",
        "and c.attempt_end = 'lost'",
    ),
    Mutant(
        "a retry opens under an intent", "recovery", "retry_effect", GUARD, "select r.status",
    ),
    Mutant(
        "the jitter is too large", "state", "completion_effect", "a.jitter / 8192",
        "a.jitter / 4096",
    ),
    Mutant(
        "what a worker reported is put off as well", "completion", "completion_effect",
        "    v.delay_ms,\n", "    v.delay_ms + 5 * v.jitter as delay_ms,\n",
    ),
    Mutant(
        "a held claim is cancelled", "cancellation", "cancellation_effect",
        "where v.status = 'claimed' and v.lease_status is distinct from 'leased'",
        "where v.status = 'claimed'",
    ),
    Mutant(
        "a released lease blocks", "cancellation", "cancellation_blocked",
        "v.lease_status = 'leased')", "v.lease_status is not null)",
    ),
    Mutant(
        "a held lease does not block once it is claimed only", "cancellation",
        "cancellation_blocked", " or v.lease_status = 'leased')", ")",
    ),
    Mutant(
        "work past the barrier does not block the run", "cancellation", "cancellation_effect",
        "(v.status <> 'claimed' or", "(v.status = 'claimed' and",
    ),
    Mutant(
        "a starting attempt does not block its step", "cancellation", "cancellation_effect",
        "a.status in ('starting', 'running')", "a.status in ('running')",
    ),
    Mutant(
        "pending times out", "cancellation", "cancellation_effect",
        "when s.status in ('pending', 'lost') then", "when s.status in ('lost') then",
    ),
    Mutant(
        "a waiting retry outlives the intent", "cancellation", "cancellation_effect",
        "'waiting_approval', 'retry_wait')", "'waiting_approval')",
    ),
    Mutant(
        "a second wish moves the run", "cancellation", "intent_effect",
        "  and r.cancel_requested_at_ms is null\n", "",
    ),
    Mutant(
        "every step starts ready", "admission", "admission_effect",
        "w.need_count = 0 then", "w.need_count >= 0 then",
    ),
    Mutant(
        "a failed step is taken over", "admission", "admission_effect",
        "s.status <> 'succeeded'", "s.status not in ('succeeded', 'failed')",
    ),
    Mutant(
        "a changed task is taken over", "admission", "admission_effect",
        "select t.digest\n      from step_run as o\n",
        "select s.digest\n      from step_run as o\n",
    ),
    Mutant(
        "another generation is another task", "admission", "admission_effect",
        "(select t.digest from task_revision as t where t.task_id = n.task_id)", "n.task_id",
    ),
    Mutant(
        "a step with a need less is taken over", "admission", "admission_effect",
        "s.need_count <> (\n        select count(*)\n        from workflow_ancestor as o\n",
        "s.need_count > (\n        select count(*)\n        from workflow_ancestor as o\n",
    ),
    Mutant(
        "a step with another need is taken over", "admission", "admission_effect",
        "          and o.ancestor_key = n.ancestor_key\n", "",
    ),
    Mutant(
        "a need further up is as good", "admission", "admission_effect",
        "          and n.distance = 1\n          and o.distance = 1\n",
        "          and n.distance = 1\n",
    ),
    Mutant(
        "an ancestor of an ancestor is not asked", "admission", "admission_effect",
        "w.ancestor_key = a.step_key\n", "w.ancestor_key = a.step_key and w.distance = 1\n",
    ),
    Mutant(
        "what a step needs is not asked", "admission", "admission_effect",
        "    when e.below = 1 then 'need_runs_again'\n", "",
    ),
)  # fmt: skip
ON_POSTGRES = (
    "the frontier moves under an intent", "exit 0 beats the deadline", "hold believes a fence",
)  # fmt: skip
NAMED = {mutant.name: mutant for mutant in CASES}


def changed(mutant: Mutant) -> dict[str, str]:
    """The mutant's file. Raises AssertionError when its rule is no longer written like that."""
    parts = decision(mutant.word).split(mutant.old)
    assert len(parts) == mutant.count + 1, f"{mutant.old!r} stands {len(parts) - 1} times"
    before, after = parts[: mutant.place + 1], parts[mutant.place + 1 :]
    return {mutant.word: mutant.old.join(before) + mutant.new + mutant.old.join(after)}
