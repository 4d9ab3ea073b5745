"""The auditor of a simulation: what must hold after every command, whoever drew it.

It knows the oracle and the tables, nothing of the workload and nothing of the SQL.
"""

import json
from collections.abc import Iterator
from dataclasses import replace

from tests import oracle
from tests.simulation import Done
from tests.simulation_facts import Facts, rows_of, state_of
from tests.simulation_verdict import verdict
from tests.state import LIVE, TERMINAL

APPEND_ONLY = (
    "task_revision", "workflow_revision", "workflow_step", "workflow_ancestor", "run_input",
    "step_output", "attempt_offer", "attempt_report", "attestation", "cancel_intent",
    "refused_report", "run_event",
)  # fmt: skip
PAGES = {
    "due_page": "", "frontier_page": "frontier", "task_admission_page": "task_admission",
    "retry_page": "retry", "deadline_page": "deadline",
}  # fmt: skip
# a page goes on to the next runs, a fault counts again, a purge takes the next page
NOT_REPLAYED = {*PAGES, "record_fault", "purge_runs", "settle_task_cancellations"}


def audit(done: Done) -> list[str]:
    """Everything that is wrong after a command, a sentence each that begins with its kind."""
    names = list(done.answers)
    told = list(_apart(done, names))
    name = names[0]
    if told or not done.after[name]:
        return told
    before, after = done.before[name], done.after[name]
    for violations in done.violations.values():
        told += [f"violation: {row}" for row in violations[:3]]
    changed = changed_runs(before, after)
    told += _refused(done, before, after)
    told += _kept(done, before, after)
    told += _repeated(done, before, after)
    for run_id in sorted(changed):
        if (run_id,) in after["run"]:
            told += _counted(after, run_id)
    told += _inputs(done, before, after)
    for run_id in sorted(changed | set(_named(done))):
        told += verdict(done, before, after, run_id)
    return told


def _apart(done: Done, names: list[str]) -> Iterator[str]:
    """Where another engine answers otherwise, or holds other rows."""
    first = names[0]
    for name in names[1:]:
        if done.answers[name] != done.answers[first]:
            yield (f"answers: {first} says {done.answers[first]!r}, {name} {done.answers[name]!r}")
        if done.after[name] == done.after[first]:
            continue
        for table, rows in done.after[first].items():
            others = done.after[name][table]
            for key in sorted(rows.keys() | others.keys(), key=repr):
                if rows.get(key) != others.get(key):
                    yield (
                        f"rows: {table} {key}: {first} {rows.get(key)}, {name} {others.get(key)}"
                    )


def changed_runs(before: Facts, after: Facts) -> set[str]:
    """Runs of which any row was added, changed or taken away."""
    found = set()
    for table, rows in after.items():
        if rows == before[table]:
            continue
        for key in rows.keys() | before[table].keys():
            if rows.get(key) != before[table].get(key):
                row = rows.get(key) or before[table][key]
                found.add(row.get("run_id"))
    return {one for one in found if one is not None}


def _refused(done: Done, before: Facts, after: Facts) -> Iterator[str]:
    if isinstance(next(iter(done.answers.values())), str) and before != after:
        yield f"refused: {done.command.step} was refused and changed something"


def _kept(done: Done, before: Facts, after: Facts) -> Iterator[str]:
    """History only grows, and what has ended stays as it ended; a purge takes whole runs."""
    gone = {key[0] for key in before["run"].keys() - after["run"].keys()}
    if gone or done.command.step == "purge_runs":
        yield from _purged(done, before, after, gone)
    frozen = {
        "run": lambda row: row["status"] != "running",
        "step_run": lambda row: row["status"] in TERMINAL,
        "task_attempt": lambda row: row["status"] not in LIVE,
        "attempt_lease": lambda row: (
            before["task_attempt"][(row["attempt_id"],)]["status"] not in LIVE
        ),
    } | dict.fromkeys(APPEND_ONLY, lambda row: True)
    for table, stands in frozen.items():
        if after[table] is before[table] or after[table] == before[table]:
            continue
        for key, row in before[table].items():
            if stands(row) and after[table].get(key) != row and row.get("run_id") not in gone:
                yield f"history: {table} {key} was {row}, is {after[table].get(key)}"


def _purged(done: Done, before: Facts, after: Facts, gone: set[str]) -> Iterator[str]:
    due = []
    if done.command.step == "purge_runs" and not isinstance(next(iter(done.answers.values())), str):
        ended = sorted(
            (row["finished_at_ms"], row["run_id"])
            for row in before["run"].values()
            if row["status"] != "running"
            and row["finished_at_ms"] < done.command.params["p_before_ms"]
        )
        may_go = [run_id for _, run_id in ended if oracle.may_go(state_of(before, run_id))]
        due = may_go[: done.command.params["p_limit"]]
    if set(due) != gone:
        yield f"purge: {sorted(gone)} went, where {due} should"
    for table, rows in after.items():
        left = [key for key, row in rows.items() if row.get("run_id") in gone]
        if left:
            yield f"purge: {table} still has {left}"


def _repeated(done: Done, before: Facts, after: Facts) -> Iterator[str]:
    if done.repeats and done.command.step not in NOT_REPLAYED and before != after:
        runs = changed_runs(before, after)
        yield f"replay: {done.command.step} did something again, to {sorted(runs)}"


def _counted(after: Facts, run_id: str) -> Iterator[str]:
    """Versions and sequences without a hole; every entity is what its last event says."""
    run = after["run"][(run_id,)]
    events = sorted(rows_of(after, "run_event", run_id), key=lambda row: row["sequence"])
    if [row["sequence"] for row in events] != list(range(1, run["version"] + 1)):
        yield f"versions: {run_id} has version {run['version']} and {len(events)} events"
    last: dict[tuple[str, str], tuple[str | None, int]] = {}
    newest = 0
    for row in events:
        who = (row["entity"], row["entity_id"])
        status, version = last.get(who, (None, 0))
        wanted = row["sequence"] if row["entity"] == "run" else version + 1
        if row["entity_version"] != wanted:
            yield f"versions: event {row['sequence']} of {run_id} has {row['entity_version']}"
        if row["entity"] != "lease" and row["from_status"] != status:
            yield f"versions: event {row['sequence']} of {run_id} comes from {row['from_status']}"
        if row["created_at_ms"] < newest:
            yield f"times: event {row['sequence']} of {run_id} is older than the one before"
        newest = row["created_at_ms"]
        last[who] = (row["to_status"], row["entity_version"])
    here = {("run", run_id): run["status"]}
    here |= {("step", row["step_key"]): row["status"] for row in rows_of(after, "step_run", run_id)}
    here |= {
        ("attempt", row["attempt_id"]): row["status"]
        for row in rows_of(after, "task_attempt", run_id)
    }
    for who, status in here.items():
        if last.get(who, ("", 0))[0] != status:
            yield f"versions: {who} of {run_id} is {status}, its events say {last.get(who)}"
    state = state_of(after, run_id)
    # a fault puts its stage off: then it is enough that the stage stands on the agenda
    put_off = {stage for faulty, stage in after["run_fault"] if faulty == run_id}
    agenda = tuple((stage, 0 if stage in put_off else due) for stage, due in state.agenda)
    for rule in oracle.violations(replace(state, agenda=agenda)):
        yield f"violation: the oracle sees {rule} in {run_id}"


def _inputs(done: Done, before: Facts, after: Facts) -> Iterator[str]:
    """What the clock alone brings: evidence, intents, and which runs a page is about."""
    step, params = done.command.step, done.command.params
    answer = next(iter(done.answers.values()))
    if isinstance(answer, str):
        return
    if step in PAGES:
        stage = PAGES[step] or params["p_stage"]
        past = (params["p_after_due_at_ms"], params["p_after_run_id"])
        due = sorted(
            (row["due_at_ms"], row["run_id"])
            for row in before["agenda"].values()
            if row["stage"] == stage and row["due_at_ms"] <= done.now_ms
        )
        wanted = [key for key in due if key > past][: params["p_limit"]]
        if [(row["due_at_ms"], row["run_id"]) for row in answer] != wanted:
            yield f"page: {step} took {answer}, where {wanted} was due"
    if step == "recover_run":
        run_id = params["p_run_id"]
        known = {row["attempt_id"] for row in rows_of(before, "attestation", run_id)}
        due_now = {
            (own_id, evidence)
            for _, own_id, evidence, at in oracle.recovery_due(state_of(before, run_id))
            if at <= done.now_ms and own_id not in known
        }
        new = after["attestation"].keys() - before["attestation"].keys()
        said = {(key[1], after["attestation"][key]["evidence"]) for key in new}
        if said != due_now:
            yield f"evidence: recovery wrote {said}, where {due_now} was due"
    new_intents = {key[0] for key in after["cancel_intent"].keys() - before["cancel_intent"].keys()}
    if step in ("request_cancel", "deadline_run", "deadline_page"):
        wanted_intents = {
            row["run_id"]
            for row in before["run"].values()
            if row["run_id"] in set(_named(done))
            and row["status"] == "running"
            and row["cancel_reason"] is None
            and (
                step == "request_cancel"
                or (row["deadline_at_ms"] is not None and row["deadline_at_ms"] <= done.now_ms)
            )
        }
        if new_intents != wanted_intents:
            yield f"intent: {new_intents} was written, where {wanted_intents} was wanted"
    elif new_intents:
        yield f"intent: {step} wrote one for {new_intents}"


def _named(done: Done) -> Iterator[str]:
    """Runs that a command is about, as far as it says so."""
    params, answer = done.command.params, next(iter(done.answers.values()))
    if isinstance(answer, str):
        return
    runs = next(iter(done.before.values()))["run"]
    named = [params.get("p_run_id")] if done.command.step not in ("start_retry",) else []
    if done.command.step in PAGES or done.command.step == "settle_task_cancellations":
        named += [row["run_id"] for row in answer]
    attempts = [params.get("p_attempt_id")]
    if "p_commands" in params:
        attempts += [row["attempt_id"] for row in json.loads(params["p_commands"])
                     if isinstance(row, dict) and "attempt_id" in row]  # fmt: skip
    named += [str(one).rpartition("-")[0] for one in attempts]
    yield from (one for one in named if (one,) in runs)
