"""A command that says whose it is moves nothing for another worker (DESIGN §8).

The ingress puts the certificate's worker id over whatever a body says; the steps compare it with
the worker of the offer at the command's fence.
"""

from typing import Any

import pytest

from qinglong_sql.store import Store
from tests import acting
from tests.acting import Held, Row
from tests.engines import Engine
from tests.stores import FakeClock


def batch(store: Store, step: str, *held: Held, **fields: Any) -> list[Row]:
    more = {"p_lease_ms": 300_000} if step == "renew_attempts" else {}
    said = {"how": "exit", "exit_code": 0, "reason": "gone", "identity": "pid 7"}
    return store.call(step, p_commands=acting.commands(*held, **said | fields), **more)


# each step, and what is done before it so that the worker itself is answered `applied`
STEPS = {
    "start_attempts": "leased",
    "running_attempts": "started",
    "renew_attempts": "running",
    "report_attempts": "running",
    "attest_attempts": "running",
    "attempt_inputs": "leased",
    "attempt_standing": "running",
}
READS = {"attempt_inputs", "attempt_standing"}


def held_as(store: Store, what: str, *names: str) -> dict[str, Held]:
    """What w1 holds; w2 is there as well, with a live lease of its own."""
    acting.begun(store, {"a": [], "b": [], "c": []})
    held = acting.lease(store, *names)
    acting.register(store, "w2", "t1")
    acting.lease(store, "theirs", worker="w2", session="t1")
    if what != "leased":
        acting.cross(store, *held.values())
    if what == "running":
        acting.run(store, *held.values())
    return held


def moved(engine: Engine, before: dict[str, list[str]]) -> set[str]:
    after = acting.everything(engine)
    return {name for name in after if after[name] != before[name]}


@pytest.mark.parametrize("step", STEPS)
def test_a_command_of_another_worker_moves_nothing(store: Store, engine: Engine, step: str) -> None:
    held = held_as(store, STEPS[step], "o1")["a"]
    before = acting.everything(engine)
    for worker in ("w2", "w9", "", "W1", "w1 "):
        (row,) = batch(store, step, held, worker_id=worker)
        assert (row["attempt_id"], row["outcome"], row["code"]) == (
            held.attempt_id, "blocked", "QL410"
        )  # fmt: skip
        assert not {*row.values()} - {held.attempt_id, "blocked", "QL410", None}, row
    kept = {"refused_report"} if step == "report_attempts" else set()
    assert moved(engine, before) == kept
    (row,) = batch(store, step, held, worker_id="w1")
    assert (row["outcome"], row["code"]) == ("applied", None)
    assert bool(moved(engine, before) - kept) == (step not in READS)
    assert acting.unbroken(store)


@pytest.mark.parametrize("step", STEPS)
def test_of_a_batch_only_the_others_commands_are_refused(store: Store, step: str) -> None:
    held = held_as(store, STEPS[step], "o1", "o2")
    mine, theirs = (acting.commands(held[key], **said) for key, said in {
        "a": {"worker_id": "w1"}, "b": {"worker_id": "w2"}
    }.items())  # fmt: skip
    said = ', "how": "exit", "exit_code": 0, "reason": "gone", "identity": "pid 7"}'
    text = f"{mine[:-2]}{said}, {theirs[1:-2]}{said}]"
    more = {"p_lease_ms": 300_000} if step == "renew_attempts" else {}
    rows = store.call(step, p_commands=text, **more)
    assert [(row["outcome"], row["code"]) for row in rows] == [
        ("applied", None), ("blocked", "QL410")
    ]  # fmt: skip


def test_what_another_worker_reports_is_kept_where_its_token_was_right(store: Store) -> None:
    held = held_as(store, "running", "o1")["a"]
    run_id = held.row["run_id"]
    for said in ({"token": "x" * 64}, {"fence": held.fence + 1}, {"fence": held.fence - 1}):
        assert batch(store, "report_attempts", held, worker_id="w2", **said)[0]["code"] == "QL410"
    assert store.read("refused_state", run_id=run_id) == []
    for exit_code in (1, 1, *range(2, 20)):
        rows = batch(store, "report_attempts", held, worker_id="w2", exit_code=exit_code)
        assert rows[0]["code"] == "QL410"
    refused = store.read("refused_state", run_id=run_id, order="ordinal")
    assert [row["exit_code"] for row in refused] == [*range(1, 9)]
    assert {row["fence"] for row in refused} == {held.fence}
    assert acting.report(store, held)[0]["status"] == "succeeded"


def test_a_replay_is_answered_to_its_worker_alone(store: Store, engine: Engine) -> None:
    held = held_as(store, "running", "o1")["a"]
    first = batch(store, "report_attempts", held, worker_id="w1")
    assert first[0]["status"] == "succeeded"
    before = acting.everything(engine)
    assert batch(store, "report_attempts", held, worker_id="w1") == first
    assert batch(store, "report_attempts", held) == first  # a worker of 0.1 says no name
    for step in ("start_attempts", "running_attempts", "attest_attempts"):
        assert batch(store, step, held, worker_id="w2")[0]["code"] == "QL410"
    assert moved(engine, before) == set()
    row = batch(store, "report_attempts", held, worker_id="w2")[0]
    assert (row["outcome"], row["status"]) == ("blocked", None)


def test_a_malformed_command_is_that_first_whoever_sent_it(store: Store) -> None:
    held = held_as(store, "running", "o1")["a"]
    for said in ({"how": "odd"}, {"token": None}, {"fence": "x"}, {"exit_code": 1.5}):
        assert batch(store, "report_attempts", held, worker_id="w2", **said)[0]["code"] == "QL400"
    assert batch(store, "attest_attempts", held, worker_id="w2", reason=None)[0]["code"] == "QL400"
    gone = {"attempt_id": "nobody's"}
    for step in STEPS:
        assert batch(store, step, held, worker_id="w2", **gone)[0]["code"] == "QL404", step
    assert store.read("refused_state") == []


def test_the_worker_of_the_fence_decides_and_not_who_holds_it_now(
    store: Store, clock: FakeClock
) -> None:
    """The attempt is lost, and its step's next one is leased by another worker."""
    run_id = acting.begun(store, {"a": []})
    first = acting.lease(store, "o1")["a"]
    clock.advance(acting.LEASE_MS + 1)
    acting.recover(store, run_id)
    acting.admit(store, run_id)
    acting.register(store, "w2", "t1")
    second = acting.lease(store, "o2", worker="w2", session="t1")["a"]
    assert second.attempt_id != first.attempt_id
    for held, worker, other in ((first, "w1", "w2"), (second, "w2", "w1")):
        assert batch(store, "attempt_standing", held, worker_id=other)[0]["code"] == "QL410"
        assert batch(store, "attempt_standing", held, worker_id=worker)[0]["outcome"] == "applied"
    assert batch(store, "start_attempts", second, worker_id="w1")[0]["code"] == "QL410"
    assert batch(store, "start_attempts", second, worker_id="w2")[0]["outcome"] == "applied"
