"""Recovery: back-offs that are over, silent workers, declarations (DESIGN §5, §9)."""

from collections.abc import Iterator

import pytest

from qinglong_sql.errors import Malformed, Unknown
from tests import acting
from tests.acting import GRACE_MS, LEASE_MS, Engine, Held, Store

PROVED_MS = LEASE_MS + GRACE_MS


@pytest.fixture(autouse=True)
def _nothing_broken(store: Store) -> Iterator[None]:
    yield
    assert acting.unbroken(store)


def running(
    store: Store, *, self_fencing: int = 1, started: bool = True, **work: object
) -> tuple[str, Held]:
    """A run of one step `a`: running, or starting only."""
    run_id = acting.begun(store, {"a": []}, **work)
    acting.register(store, self_fencing=self_fencing)
    held = acting.lease(store, worker="w1")["a"]
    (acting.run if started else acting.cross)(store, held)
    return run_id, held


# Claims that were never started


def test_an_expired_claim_comes_back_in_a_new_epoch(store: Store, clock) -> None:
    run_id = acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    clock.advance(LEASE_MS)
    assert acting.recover(store, run_id)["outcome"] == "applied"
    row = acting.attempt(store, held.attempt_id)
    assert (row["status"], row["result_code"]) == ("lost", "claim_expired")
    assert (row["lease_status"], row["fence"]) == ("released", 2)
    step = acting.step(store, run_id)
    assert (step["status"], step["claim_return_count"], step["attempt_count"]) == ("ready", 1, 0)
    acting.admit(store, run_id)
    assert acting.lease(store, "o2")["a"].attempt_id == f"{run_id}-2"


def test_before_its_expiry_nothing_is_proved(store: Store, engine: Engine, clock) -> None:
    run_id = acting.begun(store, {"a": []})
    acting.lease(store)
    clock.advance(LEASE_MS - 1)
    before = acting.everything(engine)
    assert acting.recover(store, run_id) == {
        "run_id": run_id, "outcome": "settled", "effects": 0,
    }  # fmt: skip
    assert acting.everything(engine) == before


def test_the_row_moves_to_the_real_expiry_of_a_renewed_lease(store: Store, clock) -> None:
    run_id = acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    first = acting.agenda(store, run_id)["expiry"]
    clock.advance(20_000)
    (row,) = acting.renew(store, held)
    assert acting.agenda(store, run_id)["expiry"] == first
    clock.advance(10_000)
    assert acting.recover(store, run_id)["outcome"] == "settled"
    assert acting.agenda(store, run_id)["expiry"] == row["expires_at_ms"] > first


def test_the_64th_expired_claim_fails_the_step(store: Store, clock) -> None:
    acting.publish(store, {"a": []})
    run_id = acting.start(store)
    acting.register(store)
    for number in range(64):
        acting.admit(store, run_id)
        acting.lease(store, f"o{number}", worker="w1")
        clock.advance(LEASE_MS)
        acting.recover(store, run_id)
    step = acting.step(store, run_id)
    assert (step["status"], step["result_code"]) == ("failed", "claim_budget_exhausted")
    assert step["claim_return_count"] == 64


def test_an_expired_claim_comes_back_even_under_an_intent(store: Store, clock) -> None:
    run_id = acting.begun(store, {"a": []})
    acting.lease(store)
    acting.cancel(store, run_id)
    assert acting.converge(store, run_id)["outcome"] == "blocked"
    clock.advance(LEASE_MS)
    acting.recover(store, run_id)
    assert "cancellation" in acting.agenda(store, run_id)
    assert acting.converge(store, run_id)["outcome"] == "settled"


# Work past the barrier


@pytest.mark.parametrize(
    ("started", "written"),
    [(True, ["step.lost", "step.failed"]), (False, ["step.failed"])],
)
def test_a_fenced_execution_is_lost_when_lease_and_grace_have_passed(
    store: Store, clock, started: bool, written: list[str]
) -> None:
    run_id, held = running(store, started=started)
    clock.advance(PROVED_MS - 1)
    assert acting.recover(store, run_id)["outcome"] == "settled"
    assert acting.agenda(store, run_id)["expiry"] == clock.now_ms + 1
    version = acting.run_row(store, run_id)["version"]
    clock.advance(1)
    assert acting.recover(store, run_id)["outcome"] == "applied"
    assert acting.events(store, run_id, after=version) == [
        "workflow.task_attempt.lost", *written,
    ]  # fmt: skip
    step = acting.step(store, run_id)
    assert (step["status"], step["result_code"]) == ("failed", "execution_lost")
    assert acting.attempt(store, held.attempt_id)["fence"] == held.fence + 1
    assert "expiry" not in acting.agenda(store, run_id)
    (row,) = store.read("attestation_state", run_id=run_id)
    assert (row["evidence"], row["actor"]) == ("fenced", "scheduler")


def test_recovery_repeated_adds_no_row(store: Store, engine: Engine, clock) -> None:
    run_id, _ = running(store)
    clock.advance(PROVED_MS)
    acting.recover(store, run_id)
    before = acting.everything(engine)
    assert acting.recover(store, run_id)["outcome"] == "settled"
    assert acting.everything(engine) == before


def test_idempotent_work_that_was_lost_is_retried(store: Store, clock) -> None:
    run_id, _ = running(store, on_lost="retry", retry={"attempts": 2})
    clock.advance(PROVED_MS)
    acting.recover(store, run_id)
    step = acting.step(store, run_id)
    assert (step["status"], step["result_code"]) == ("retry_wait", "execution_lost")
    assert acting.agenda(store, run_id)["retry"] == step["due_at_ms"] > clock.now_ms


def test_work_that_does_not_fence_itself_waits_for_evidence(store: Store, clock) -> None:
    run_id, held = running(store, self_fencing=0)
    clock.advance(100 * PROVED_MS)
    assert acting.recover(store, run_id)["outcome"] == "settled"
    assert acting.attempt(store, held.attempt_id)["status"] == "running"
    (row,) = store.read("recovery_blocked", run_id=run_id)
    assert row["waits_for"] == "evidence"
    assert "expiry" not in acting.agenda(store, run_id)
    assert acting.report(store, held)[0]["status"] == "succeeded"


def test_work_on_hold_waits_whatever_fenced_it(store: Store, clock) -> None:
    run_id, held = running(store, on_lost="hold")
    clock.advance(100 * PROVED_MS)
    assert acting.recover(store, run_id)["outcome"] == "settled"
    assert acting.attempt(store, held.attempt_id)["status"] == "running"
    (row,) = store.read("recovery_blocked", run_id=run_id)
    assert row["waits_for"] == "hold"


def test_what_was_lost_after_its_deadline_timed_out(store: Store, clock) -> None:
    run_id, held = running(store, timeout_ms=10_000)
    clock.advance(PROVED_MS)
    acting.recover(store, run_id)
    assert acting.attempt(store, held.attempt_id)["status"] == "timed_out"
    step = acting.step(store, run_id)
    assert (step["status"], step["result_code"]) == ("timed_out", "execution_timed_out")


def test_under_an_intent_the_step_is_lost_and_convergence_ends_it(store: Store, clock) -> None:
    run_id, _ = running(store, on_lost="retry", retry={"attempts": 3})
    acting.cancel(store, run_id)
    clock.advance(PROVED_MS)
    acting.recover(store, run_id)
    assert acting.step(store, run_id)["status"] == "lost"
    assert acting.converge(store, run_id)["outcome"] == "settled"
    assert acting.step(store, run_id)["status"] == "cancelled"


def test_a_page_of_expiries_lists_what_is_due(store: Store, clock) -> None:
    run_id, _ = running(store)
    due = {"p_stage": "expiry", "p_after_due_at_ms": -1, "p_after_run_id": "", "p_limit": 32}
    assert store.call("due_page", **due) == []
    clock.advance(LEASE_MS)
    assert [row["run_id"] for row in store.call("due_page", **due)] == [run_id]


# Declared


def declare(
    store: Store, attempt_id: str, follow: str | None = None, reason: str = "host burnt"
) -> acting.Row:
    return store.call(
        "declare_stopped",
        p_attempt_id=attempt_id,
        p_reason=reason,
        p_actor="ann",
        p_follow=follow,
    )[0]


def test_an_operator_may_declare_it_stopped(store: Store, engine: Engine) -> None:
    run_id, held = running(store, on_lost="hold")
    first = declare(store, held.attempt_id)
    assert first == {
        "attempt_id": held.attempt_id, "outcome": "applied", "code": None, "status": "lost",
    }  # fmt: skip
    assert acting.step(store, run_id)["status"] == "failed"
    (row,) = store.read("attestation_state", run_id=run_id)
    assert (row["evidence"], row["reason"], row["actor"]) == ("declared", "host burnt", "ann")
    before = acting.everything(engine)
    assert declare(store, held.attempt_id) == first
    assert declare(store, held.attempt_id, reason="other")["code"] == "QL410"
    assert acting.everything(engine) == before


@pytest.mark.parametrize(("follow", "status"), [("retry", "retry_wait"), ("fail", "failed")])
def test_an_operator_may_say_what_follows(store: Store, follow: str, status: str) -> None:
    run_id, held = running(store, on_lost="hold")
    declare(store, held.attempt_id, follow)
    assert acting.step(store, run_id)["status"] == status


def test_what_has_not_crossed_the_barrier_cannot_be_declared_stopped(
    store: Store, engine: Engine
) -> None:
    acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    before = acting.everything(engine)
    row = declare(store, held.attempt_id)
    assert (row["outcome"], row["code"], row["status"]) == ("blocked", "QL410", None)
    assert acting.everything(engine) == before


def test_a_declaration_needs_an_attempt_and_a_known_consequence(store: Store) -> None:
    _, held = running(store)
    with pytest.raises(Unknown):
        declare(store, "ru0-1")
    with pytest.raises(Malformed):
        declare(store, held.attempt_id, follow="forget")


# Back-offs


def test_a_back_off_that_is_over_opens_a_new_epoch(store: Store, engine: Engine, clock) -> None:
    run_id, held = running(store, retry={"attempts": 2})
    acting.report(store, held, exit_code=1)
    due = acting.step(store, run_id)["due_at_ms"]
    clock.advance(due - clock.now_ms - 1)
    assert acting.page(store, "retry_page") == []
    clock.advance(1)
    assert acting.page(store, "retry_page") == [
        {"run_id": run_id, "due_at_ms": due, "outcome": "applied", "effects": 1}
    ]
    step = acting.step(store, run_id)
    assert (step["status"], step["due_at_ms"], step["result_code"]) == ("ready", None, None)
    assert set(acting.agenda(store, run_id)) >= {"task_admission"}
    assert "retry" not in acting.agenda(store, run_id)
    before = acting.everything(engine)
    assert store.call("retry_run", p_run_id=run_id)[0]["outcome"] == "settled"
    assert acting.everything(engine) == before


def test_the_row_of_a_retry_moves_to_the_next_back_off(store: Store, clock) -> None:
    run_id = acting.begun(store, {"a": [], "b": []}, retry={"attempts": 2, "backoff_ms": 1_000})
    held = acting.lease(store, "o1", "o2")
    acting.run(store, *held.values())
    acting.report(store, held["a"], exit_code=1)
    clock.advance(600)
    acting.report(store, held["b"], exit_code=1)
    first, second = (acting.step(store, run_id, key)["due_at_ms"] for key in "ab")
    assert acting.agenda(store, run_id)["retry"] == first < second
    clock.advance(first - clock.now_ms)
    assert store.call("retry_run", p_run_id=run_id)[0]["effects"] == 1
    assert acting.agenda(store, run_id)["retry"] == second
