"""The counts of the record's crash matrices (DOMAIN §8.4) in this design's own numbers.

Admission of two steps, a → b; killed anywhere and repeated, it is there once.

| The record | Here | Why |
|---|---|---|
| 1 Run | 1 `run`, version 3 | one version an event: the run's and its steps' |
| – | 1 `run_input` | the input never moves, so it stands apart from the row that does |
| 2 steps | 2 `step_run`, version 1 | `a` ready, `b` pending: made, not moved |
| 3 events | 3 `run_event` | workflow.admitted, then step.created in key order |
| 2 mutations | 2 of `step_run_mutation` | a view: a mutation is its event, not stored twice |
| 1 + 2 ledger rows | 1 of `run_admission`, step_count 2 | a view too; its steps are the events |
| – | 1 `agenda` | `a` is ready: task_admission is due |

The stop of `a` while it runs, under an intent; convergence ends `b` and the run.

| The record | Here | Why |
|---|---|---|
| 1 Attempt | 1 `task_attempt`, moved 3 times | claimed, starting, running, cancelled |
| – | 1 `attempt_lease`, completed, fence 2 | local workers lease too (DESIGN §9) |
| – | 1 `attempt_offer`, 3 `attempt_report` | starting, running, ended: each once a fence |
| – | 1 `cancel_intent`, 1 run.cancel_requested | the intent, and its place in the history |
| 1 attempt event | 1 workflow.task_attempt.cancelled | as in the record |
| 2 `step.cancelled` | version 3 of `a`, 2 of `b` | made, ran and ended; made and ended |
| 1 `workflow.cancelled` | the same, last | the run ends when every step has |
| version = sequence | version 13 = 13 events | EVENTS: one version an event, and no other |
| settles 1 Run and 0 Attempts | settled, 0 attempts | the report has ended the attempt |
| the second scans 0 | no page finds it | the end of a run clears its agenda |
"""

from qinglong_sql.store import Store
from tests import acting
from tests.acting import Engine

SHIPPED = {  # by the publication; alembic_version is of the file, and not of PostgreSQL's template
    "package": 1, "package_generation": 1, "task_revision": 1, "workflow_revision": 1,
    "workflow_step": 2, "workflow_ancestor": 1,
}  # fmt: skip
ADMITTED = SHIPPED | {"run": 1, "run_input": 1, "step_run": 2, "run_event": 3, "agenda": 1}
ENDED = SHIPPED | {
    "run": 1, "run_input": 1, "step_run": 2, "run_event": 13, "task_attempt": 1,
    "attempt_lease": 1, "attempt_offer": 1, "attempt_report": 3, "cancel_intent": 1,
    "worker_session": 1,
}  # fmt: skip
EVENTS = [  # and the version of what each moved
    ("workflow.admitted", 1),
    ("step.created", 1),
    ("step.created", 1),
    ("workflow.task_attempt_admitted", 1),
    ("workflow.task_dispatch_leased", 1),
    ("workflow.task_attempt.starting", 2),
    ("workflow.task_attempt.running", 3),
    ("step.running", 2),
    ("run.cancel_requested", 9),
    ("workflow.task_attempt.cancelled", 4),
    ("step.cancelled", 3),
    ("step.cancelled", 2),
    ("workflow.cancelled", 13),
]


def counts(engine: Engine) -> dict[str, int]:
    tables = acting.everything(engine)
    return {name: len(rows) for name, rows in tables.items() if rows and name != "alembic_version"}


def test_an_admission(store: Store, engine: Engine) -> None:
    acting.publish(store, {"a": [], "b": ["a"]})
    assert counts(engine) == SHIPPED
    run_id = acting.start(store)
    for _ in range(2):
        assert counts(engine) == ADMITTED
        assert acting.events(store, run_id) == [kind for kind, _ in EVENTS[:3]]
        assert acting.run_row(store, run_id)["version"] == 3
        assert acting.statuses(store, run_id) == {"a": "ready", "b": "pending"}
        assert {row["version"] for row in store.read("step_state")} == {1}
        assert [row["step_count"] for row in store.read("run_admission")] == [2]
        assert [row["sequence"] for row in store.read("step_run_mutation")] == [2, 3]
        assert list(acting.agenda(store, run_id)) == ["task_admission"]
        assert acting.start(store) == run_id


def test_the_stop_of_what_runs(store: Store, engine: Engine) -> None:
    run_id = acting.begun(store, {"a": [], "b": ["a"]})
    held = acting.lease(store)["a"]
    acting.run(store, held)
    acting.cancel(store, run_id)
    first = acting.report(store, held, how="stop", exit_code=None)
    assert acting.page(store, "settle_task_cancellations") == []
    for _ in range(2):
        assert acting.report(store, held, how="stop", exit_code=None) == first
        row = acting.converge(store, run_id)
        assert (row["outcome"], row["settled_attempts"]) == ("settled", 0)
        assert counts(engine) == ENDED
        rows = store.read("event_log", run_id=run_id, order="sequence")
        assert [(row["type"], row["entity_version"]) for row in rows] == EVENTS
        assert [row["sequence"] for row in rows] == list(range(1, 14))
        assert acting.run_row(store, run_id)["version"] == 13
        (attempt,) = store.read("attempt_state")
        assert (attempt["status"], attempt["lease_status"], attempt["fence"]) == (
            "cancelled", "completed", 2,
        )  # fmt: skip
        assert [row["version"] for row in store.read("step_state", order="step_key")] == [3, 2]
        assert acting.agenda(store, run_id) == {}
    due = {"p_stage": "cancellation", "p_after_due_at_ms": -1, "p_after_run_id": "", "p_limit": 32}
    assert store.call("due_page", **due) == []
    assert acting.unbroken(store)
