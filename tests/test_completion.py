"""Completion: what a report of an end does, and what it no longer may (DOMAIN §3.5, DESIGN §9)."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from qinglong_sql.errors import Malformed
from tests import acting
from tests.acting import LEASE_MS, Engine, Held, Store
from tests.stores import FakeClock


@pytest.fixture(autouse=True)
def _nothing_broken(store: Store) -> Iterator[None]:
    yield
    assert acting.unbroken(store)


def running(store: Store, **work: object) -> tuple[str, Held]:
    """A run of one step `a`, running."""
    run_id = acting.begun(store, {"a": []}, **work)
    held = acting.lease(store)["a"]
    acting.run(store, held)
    return run_id, held


def test_exit_zero_succeeds_and_keeps_the_output(store: Store) -> None:
    run_id, held = running(store)
    assert acting.report(store, held, output='{"rows":3}') == [
        {
            "attempt_id": held.attempt_id,
            "outcome": "applied",
            "code": None,
            "status": "succeeded",
        }
    ]
    step = acting.step(store, run_id)
    assert (step["status"], step["result_code"], step["output"]) == (
        "succeeded", None, '{"rows":3}',
    )  # fmt: skip
    row = acting.attempt(store, held.attempt_id)
    assert (row["exit_code"], row["lease_status"], row["fence"]) == (0, "completed", 2)
    assert "frontier" in acting.agenda(store, run_id)


@pytest.mark.parametrize(
    ("how", "exit_code", "status", "code"),
    [
        ("exit", 3, "failed", "execution_failed"),
        ("signal", None, "failed", "execution_failed"),
        ("signal", 9, "failed", "execution_failed"),
        ("stop", None, "failed", "execution_stopped"),
        ("deadline", None, "timed_out", "execution_timed_out"),
        ("start_failed", None, "failed", "executor_start_failed"),
        ("bad_output", 0, "failed", "bad_output"),
    ],
)
def test_every_other_end_says_why(
    store: Store, how: str, exit_code: int | None, status: str, code: str
) -> None:
    run_id, held = running(store)
    (row,) = acting.report(store, held, how=how, exit_code=exit_code, error="the last words")
    assert (row["outcome"], row["status"]) == ("applied", status)
    step = acting.step(store, run_id)
    assert (step["status"], step["result_code"], step["output"]) == (status, code, None)
    one = acting.attempt(store, held.attempt_id)
    assert (one["status"], one["result_code"], one["error"]) == (status, code, "the last words")


def test_an_end_from_starting_writes_that_the_step_ran(store: Store) -> None:
    run_id = acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    acting.cross(store, held)
    before = acting.run_row(store, run_id)["version"]
    acting.report(store, held)
    assert acting.events(store, run_id, after=before) == [
        "step.running", "workflow.task_attempt.succeeded", "step.succeeded",
    ]  # fmt: skip
    assert acting.step(store, run_id)["attempt_count"] == 1


@pytest.mark.parametrize(("reason", "end"), [("user", "cancelled"), ("shutdown", "cancelled")])
def test_with_an_intent_the_reason_decides_even_over_exit_zero(
    store: Store, reason: str, end: str
) -> None:
    run_id, held = running(store)
    acting.cancel(store, run_id, reason=reason)
    (row,) = acting.report(store, held, output='{"rows":3}')
    assert (row["outcome"], row["status"]) == ("applied", end)
    step = acting.step(store, run_id)
    assert (step["status"], step["result_code"], step["output"]) == (
        end, f"execution_{end}", None,
    )  # fmt: skip
    assert "cancellation" in acting.agenda(store, run_id)


def test_under_the_intent_of_a_timeout_it_timed_out(store: Store, clock) -> None:
    run_id, held = running(store, run_timeout_ms=5_000)
    clock.advance(5_000)
    assert store.call("deadline_run", p_run_id=run_id)[0]["outcome"] == "applied"
    (row,) = acting.report(store, held)
    assert row["status"] == "timed_out"


def test_an_end_after_the_attempts_deadline_timed_out(store: Store, clock) -> None:
    run_id, held = running(store, timeout_ms=5_000)
    clock.advance(5_000)
    acting.report(store, held)
    assert acting.step(store, run_id)["status"] == "timed_out"


# Retry


def test_a_listed_end_is_retried_after_a_back_off_with_jitter(store: Store, clock) -> None:
    run_id, held = running(store, retry={"attempts": 2, "backoff_ms": 8_192})
    acting.report(store, held, exit_code=1)
    step = acting.step(store, run_id)
    assert (step["status"], step["result_code"]) == ("retry_wait", "execution_failed")
    assert 8_192 <= step["due_at_ms"] - clock.now_ms < 8_192 + 1_024
    assert acting.agenda(store, run_id)["retry"] == step["due_at_ms"]
    assert "frontier" not in acting.agenda(store, run_id)


def test_the_back_off_doubles_up_to_its_bound(store: Store, clock) -> None:
    acting.publish(
        store, {"a": []}, retry={"attempts": 4, "backoff_ms": 1_000, "max_backoff_ms": 3_000}
    )
    run_id = acting.start(store)
    for base in (1_000, 2_000, 3_000):
        acting.admit(store, run_id)
        acting.finish(store, run_id, a=1)
        delay = acting.step(store, run_id)["due_at_ms"] - clock.now_ms
        assert base <= delay <= base + base // 8
        clock.advance(delay)
        assert store.call("retry_run", p_run_id=run_id)[0]["outcome"] == "applied"
    acting.admit(store, run_id)
    acting.finish(store, run_id, a=1)
    assert acting.step(store, run_id)["status"] == "failed"


def test_what_is_not_listed_is_not_retried(store: Store) -> None:
    run_id, held = running(store, retry={"attempts": 2, "on": ["failed"]})
    acting.report(store, held, how="deadline", exit_code=None)
    assert acting.step(store, run_id)["status"] == "timed_out"


def test_a_listed_timeout_is_retried(store: Store) -> None:
    run_id, held = running(store, retry={"attempts": 2, "on": ["timed_out"]})
    acting.report(store, held, how="deadline", exit_code=None)
    assert acting.step(store, run_id)["status"] == "retry_wait"


def test_nothing_is_retried_under_an_intent(store: Store) -> None:
    run_id, held = running(store, retry={"attempts": 2})
    acting.cancel(store, run_id)
    acting.report(store, held, exit_code=1)
    assert acting.step(store, run_id)["status"] == "cancelled"


# What never started


@pytest.mark.parametrize("crossed", [False, True])
def test_not_started_gives_the_step_a_new_epoch_and_costs_no_retry(
    store: Store, crossed: bool
) -> None:
    run_id = acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    if crossed:
        acting.cross(store, held)
    epoch = acting.step(store, run_id)["version"]
    (row,) = acting.report(store, held, how="not_started", exit_code=None)
    assert (row["outcome"], row["status"]) == ("applied", "lost")
    step = acting.step(store, run_id)
    assert (step["status"], step["version"]) == ("ready", epoch + 1)
    assert (step["attempt_count"], step["claim_return_count"]) == (0, 1)
    assert acting.attempt(store, held.attempt_id)["result_code"] == "not_started"
    assert "task_admission" in acting.agenda(store, run_id)


def test_what_runs_cannot_claim_not_to_have_started(store: Store) -> None:
    _, held = running(store)
    (row,) = acting.report(store, held, how="not_started", exit_code=None)
    assert (row["outcome"], row["code"]) == ("blocked", "QL410")


def test_the_64th_return_fails_the_step(store: Store) -> None:
    acting.publish(store, {"a": []})
    run_id = acting.start(store)
    acting.register(store)
    for number in range(64):
        assert acting.step(store, run_id)["status"] == "ready"
        acting.admit(store, run_id)
        held = acting.lease(store, f"o{number}", worker="w1")["a"]
        acting.report(store, held, how="not_started", exit_code=None)
    step = acting.step(store, run_id)
    assert (step["status"], step["result_code"]) == ("failed", "claim_budget_exhausted")
    assert (step["claim_return_count"], step["attempt_count"]) == (64, 0)
    acting.advance(store, run_id)
    assert acting.ended(store, run_id) == ("failed", "workflow_step_failed")


# Authority and replay


def test_a_report_repeated_answers_as_before(store: Store, engine: Engine) -> None:
    run_id, held = running(store)
    first = acting.report(store, held, output='{"rows":3}')
    acting.advance(store, run_id)
    before = acting.everything(engine)
    assert acting.report(store, held, output='{"rows":3}') == first
    assert acting.everything(engine) == before


def test_a_report_with_another_content_is_refused(store: Store) -> None:
    _, held = running(store)
    acting.report(store, held, exit_code=0)
    (row,) = acting.report(store, held, exit_code=1)
    assert (row["outcome"], row["code"], row["status"]) == ("blocked", "QL410", None)
    assert acting.attempt(store, held.attempt_id)["status"] == "succeeded"


def test_a_report_repeated_with_another_token_is_refused(store: Store) -> None:
    _, held = running(store)
    acting.report(store, held)
    (row,) = acting.report(store, replace(held, token="guessed"))
    assert (row["outcome"], row["code"], row["status"]) == ("blocked", "QL410", None)


def test_a_report_may_come_after_the_expiry_while_the_fence_stands(store: Store, clock) -> None:
    _, held = running(store)
    clock.advance(10 * LEASE_MS)
    (row,) = acting.report(store, held)
    assert (row["outcome"], row["status"]) == ("applied", "succeeded")


def test_an_end_before_the_barrier_is_refused(store: Store) -> None:
    acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    (row,) = acting.report(store, held)
    assert (row["outcome"], row["code"]) == ("blocked", "QL410")
    assert acting.attempt(store, held.attempt_id)["status"] == "claimed"


def test_a_late_report_is_kept_and_changes_nothing(store: Store, engine: Engine, clock) -> None:
    run_id, held = running(store)
    clock.advance(10 * LEASE_MS)
    acting.recover(store, run_id)
    before = acting.everything(engine)
    (row,) = acting.report(store, held)
    assert (row["outcome"], row["code"]) == ("blocked", "QL410")
    after = acting.everything(engine)
    assert {name for name in after if after[name] != before[name]} == {"refused_report"}
    (kept,) = store.read("refused_state", run_id=run_id)
    assert (kept["attempt_id"], kept["how"], kept["exit_code"], kept["fence"]) == (
        held.attempt_id, "exit", 0, held.fence,
    )  # fmt: skip
    acting.report(store, held)
    assert acting.everything(engine) == after


def test_at_most_eight_refusals_are_kept(store: Store, clock) -> None:
    run_id, held = running(store)
    clock.advance(10 * LEASE_MS)
    acting.recover(store, run_id)
    for number in range(12):
        acting.report(store, held, exit_code=number)
    kept = store.read("refused_state", run_id=run_id, order="ordinal")
    assert [(row["ordinal"], row["exit_code"]) for row in kept] == [
        (number + 1, number) for number in range(8)
    ]


def test_what_a_stranger_reports_is_not_even_kept(store: Store, engine: Engine) -> None:
    _, held = running(store)
    before = acting.everything(engine)
    for wrong in (replace(held, fence=9), replace(held, token="guessed")):
        assert acting.report(store, wrong)[0]["code"] == "QL410"
    assert acting.everything(engine) == before


@pytest.mark.parametrize(
    "fields",
    [
        {"how": "vanished"},
        {"how": None},
        {"how": "exit", "exit_code": None},
        {"how": "exit", "exit_code": "many"},
        {"output": "[1]"},
        {"output": "no json"},
        {"output": '{"x":"' + "y" * 16_384 + '"}'},
        {"error": "x" * 2_049},
    ],
)
def test_a_malformed_report_is_told_and_changes_nothing(
    store: Store, engine: Engine, fields: dict[str, object]
) -> None:
    _, held = running(store)
    before = acting.everything(engine)
    sent = {"how": "exit", "exit_code": 0} | fields
    (row,) = store.call("report_attempts", p_commands=acting.commands(held, **sent))
    assert (row["outcome"], row["code"]) == ("blocked", "QL400")
    assert acting.everything(engine) == before


def test_a_batch_ends_many_attempts_of_many_runs(store: Store) -> None:
    acting.publish(store, {"a": [], "b": []})
    runs = [acting.start(store, key=f"k{number}") for number in range(4)]
    for run_id in runs:
        acting.admit(store, run_id)
    acting.register(store)
    rows = acting.offer_rows(store, [f"o{number}" for number in range(8)])
    held = [
        Held(row["attempt_id"], row["fence"], acting.token(row["offer_id"]), row) for row in rows
    ]
    acting.run(store, *held)
    answers = acting.report(store, *reversed(held))
    assert [row["attempt_id"] for row in answers] == [one.attempt_id for one in reversed(held)]
    assert {row["outcome"] for row in answers} == {"applied"}
    for run_id in runs:
        acting.advance(store, run_id)
        assert acting.ended(store, run_id) == ("succeeded", None)


# Attested: gone, but nobody knows how it ended


def test_an_attested_execution_is_lost(store: Store, engine: Engine) -> None:
    run_id, held = running(store)
    batch = acting.commands(held, reason="the host was booted again")
    first = store.call("attest_attempts", p_commands=batch)
    assert first == [
        {"attempt_id": held.attempt_id, "outcome": "applied", "code": None, "status": "lost"}
    ]
    step = acting.step(store, run_id)
    assert (step["status"], step["result_code"]) == ("failed", "execution_lost")
    (row,) = store.read("attestation_state", run_id=run_id)
    assert (row["evidence"], row["actor"]) == ("attested", "w1")
    before = acting.everything(engine)
    assert store.call("attest_attempts", p_commands=batch) == first
    other = acting.commands(held, reason="something else")
    assert store.call("attest_attempts", p_commands=other)[0]["code"] == "QL410"
    assert acting.everything(engine) == before


def test_only_the_holder_attests(store: Store, engine: Engine) -> None:
    _, held = running(store)
    before = acting.everything(engine)
    for wrong in (replace(held, fence=2), replace(held, token="guessed")):
        batch = acting.commands(wrong, reason="gone")
        assert store.call("attest_attempts", p_commands=batch)[0]["code"] == "QL410"
    assert acting.everything(engine) == before


def test_what_was_attested_cannot_be_reported(store: Store) -> None:
    _, held = running(store)
    store.call("attest_attempts", p_commands=acting.commands(held, reason="gone"))
    assert acting.report(store, held)[0]["code"] == "QL410"


HUGE = '{"a":1e400000}'
DEEP = '{"a":' * 20_000 + "1" + "}" * 20_000


@pytest.mark.parametrize("bad", [HUGE, DEEP], ids=["huge", "deep"])
def test_an_output_that_cannot_be_read_blocks_no_other_report(store: Store, bad: str) -> None:
    batch = two_ends(store)
    batch[0]["output"] = bad
    rows = store.call("report_attempts", p_commands=json.dumps(batch))
    assert [(row["outcome"], row["code"]) for row in rows] == [
        ("blocked", "QL400"), ("applied", None),
    ]  # fmt: skip


# deeper than limits.JSON_DEPTH, and deeper than a function can call itself
@pytest.mark.parametrize("levels", [100, 5_000])
def test_an_output_that_cannot_be_walked_is_malformed(store: Store, levels: int) -> None:
    """A worker writes outputs as text; one that is an object makes the batch unreadable."""
    nested = '{"a":' * levels + "1" + "}" * levels
    text = json.dumps(two_ends(store)).replace('"output": null', f'"output": {nested}', 1)
    with pytest.raises(Malformed):
        store.call("report_attempts", p_commands=text)


@pytest.mark.parametrize("levels", [100, 5_000])
def test_sql_by_itself_takes_no_output_that_cannot_be_walked(
    store: Store, levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a login of another program calls it; SQLite, which has none, refuses the whole batch."""
    monkeypatch.setattr(f"qinglong_sql.store.{store.engine}.check_params", lambda *_: None)
    nested = '{"a":' * levels + "1" + "}" * levels
    text = json.dumps(two_ends(store)).replace('"output": null', f'"output": {nested}', 1)
    if store.engine == "sqlite":
        with pytest.raises(Malformed):
            store.call("report_attempts", p_commands=text)
        return
    rows = store.call("report_attempts", p_commands=text)
    assert [(row["outcome"], row["code"]) for row in rows] == [
        ("blocked", "QL400"), ("applied", None),
    ]  # fmt: skip


@pytest.mark.parametrize("bad", [HUGE, DEEP], ids=["huge", "deep"])
def test_a_batch_that_cannot_be_read_is_malformed(store: Store, bad: str) -> None:
    """As a whole, or the command in it."""
    try:
        codes = [row["code"] for row in store.call("report_attempts", p_commands=f"[{bad}]")]
    except Malformed:
        codes = ["QL400"]
    assert codes == ["QL400"]


def two_ends(store: Store) -> list[acting.Row]:
    """The reports of two running executions that exit with 0 and without output."""
    acting.begun(store, {"a": [], "b": []})
    held = acting.lease(store, "o1", "o2")
    acting.run(store, *held.values())
    ended = {"how": "exit", "exit_code": 0, "output": None, "error": None}
    rows = json.loads(acting.commands(*held.values(), **ended))
    assert isinstance(rows, list)
    return rows


def test_a_batch_after_a_clock_that_stepped_back_keeps_the_time_of_each_run(
    store: Store, clock: FakeClock
) -> None:
    acting.publish(store, {"a": []})
    acting.register(store)
    times = {}
    for key, ms in (("one", 0), ("two", -60_000)):
        at_ms = clock.advance(ms)
        times[acting.start(store, key=key)] = at_ms
        acting.admit(store, list(times)[-1])
    rows = acting.offer_rows(store, ["o1", "o2"])
    held = [
        Held(one["attempt_id"], one["fence"], acting.token(one["offer_id"]), one) for one in rows
    ]
    assert {row["outcome"] for row in acting.cross(store, *held)} == {"applied"}
    assert {row["outcome"] for row in acting.report(store, *held)} == {"applied"}
    for run_id, at_ms in times.items():
        assert acting.step(store, run_id)["finished_at_ms"] == at_ms
        told = store.read("event_log", run_id=run_id, order="sequence")
        assert {row["created_at_ms"] for row in told} == {at_ms}
        assert [row["sequence"] for row in told] == list(range(1, len(told) + 1))
    assert acting.unbroken(store)
