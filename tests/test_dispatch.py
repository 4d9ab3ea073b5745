"""Dispatch: sessions, offers, leases, and the input of an attempt (DOMAIN §3.5, DESIGN §5, §6)."""

import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from qinglong_sql.errors import Fenced, Malformed, Unknown
from qinglong_sql.limits import GRACE_MAX_MS
from tests import acting
from tests.acting import LEASE_MS, Engine, Store


@pytest.fixture(autouse=True)
def _nothing_broken(store: Store) -> Iterator[None]:
    yield
    assert acting.unbroken(store)


# Sessions


def test_a_session_registers_once(store: Store, engine: Engine) -> None:
    first = acting.register(store)
    assert first == {"worker_id": "w1", "generation": 1, "status": "online"}
    before = acting.everything(engine)
    assert acting.register(store) == first
    assert acting.everything(engine) == before


def test_a_new_session_takes_over(store: Store) -> None:
    acting.register(store)
    assert acting.register(store, session="s2")["generation"] == 2
    acting.begun(store, {"a": []})
    with pytest.raises(Fenced):
        acting.offer_rows(store, ["o1"], session="s1")
    assert len(acting.offer_rows(store, ["o1"], session="s2")) == 1


def test_an_ended_session_leases_nothing_more(store: Store, engine: Engine) -> None:
    acting.begun(store, {"a": []})
    acting.register(store)
    gone = {"worker_id": "w1", "status": "offline"}
    assert store.call("end_session", p_worker_id="w1", p_session_id="s1") == [gone]
    before = acting.everything(engine)
    assert store.call("end_session", p_worker_id="w1", p_session_id="s1") == [gone]
    with pytest.raises(Fenced):
        acting.offer_rows(store, ["o1"])
    assert acting.everything(engine) == before


@pytest.mark.parametrize("run_id", [None, "ru1"])
def test_who_asks_while_nothing_waits_writes_nothing(
    store: Store, engine: Engine, run_id: str | None
) -> None:
    """Idle workers ask four times a second: not even the row lock of their session is taken."""

    def marks() -> object:
        if engine.kind == "sqlite":
            files = sorted(Path(engine.dsn[10:]).parent.glob("*.db*"))
            return [(one, one.stat().st_size, one.stat().st_mtime_ns) for one in files]
        with psycopg.connect(engine.dsn) as connection:
            return connection.execute("select ctid, xmin, xmax from ql.worker_session").fetchall()

    acting.register(store)
    before = marks()
    for _ in range(3):
        assert acting.offer_rows(store, ["o1", "o2"], run_id=run_id) == []
    assert marks() == before
    with pytest.raises(Fenced):
        acting.offer_rows(store, ["o1"], session="s0")
    store.call("drain_worker", p_worker_id="w1")
    with pytest.raises(Fenced):
        acting.offer_rows(store, ["o1"])


@pytest.mark.parametrize("grace_ms", [-1, GRACE_MAX_MS + 1, 2**63 - 1])
def test_a_grace_is_bounded(store: Store, engine: Engine, grace_ms: int) -> None:
    """It is added to times by views that read all runs: one sum too large would break them all."""
    asked = {"p_worker_id": "w1", "p_session_id": "s1", "p_queues": '["default"]', "p_slots": 1}
    before = acting.everything(engine)
    with pytest.raises(Malformed):
        store.call("register_worker", **asked, p_self_fencing=1, p_grace_ms=grace_ms)
    assert acting.everything(engine) == before
    store.call("register_worker", **asked, p_self_fencing=1, p_grace_ms=GRACE_MAX_MS)


def test_only_the_current_session_may_end(store: Store) -> None:
    acting.register(store)
    with pytest.raises(Fenced):
        store.call("end_session", p_worker_id="w1", p_session_id="older")
    with pytest.raises(Unknown):
        store.call("end_session", p_worker_id="w9", p_session_id="s1")


# Leases


def test_an_offer_takes_the_lease_and_brings_what_a_worker_needs(store: Store, clock) -> None:
    run_id = acting.begun(store, {"a": []})
    row = acting.lease(store)["a"].row
    assert {key: row[key] for key in row if key != "spec"} == {
        "attempt_id": f"{run_id}-1",
        "run_id": run_id,
        "step_key": "a",
        "number": 1,
        "offer_id": "o1",
        "fence": 1,
        "expires_at_ms": clock.now_ms + LEASE_MS,
        "lease_ms": LEASE_MS,
        "timeout_ms": None,
        "package_key": "nightly",
        "base_dir": "/srv/nightly",
        "task_key": "work",
        "try_number": 1,
    }
    assert json.loads(row["spec"])["run"] == ["true"]
    assert acting.events(store, run_id)[-1] == "workflow.task_dispatch_leased"
    assert acting.agenda(store, run_id)["expiry"] == clock.now_ms + LEASE_MS


def test_the_oldest_attempts_go_first(store: Store, clock) -> None:
    acting.publish(store, {"a": []})
    runs = []
    for number in range(3):
        runs.append(acting.start(store, key=f"k{number}"))
        acting.admit(store, runs[-1])
        clock.advance(10)
    acting.register(store)
    assert [row["run_id"] for row in acting.offer_rows(store, ["o1", "o2"])] == runs[:2]


def test_an_offer_repeated_answers_with_the_same_lease(store: Store, engine: Engine) -> None:
    acting.begun(store, {"a": [], "b": [], "c": []})
    acting.register(store)
    first = acting.offer_rows(store, ["o1", "o2"])
    before = acting.everything(engine)
    assert acting.offer_rows(store, ["o1", "o2"]) == first
    assert acting.everything(engine) == before


def test_a_try_is_counted_from_the_start_barrier_and_told_again_the_same(
    store: Store, clock
) -> None:
    run_id = acting.begun(store, {"a": []}, retry={"attempts": 3})
    told = []
    for name, how in (("o1", "not_started"), ("o2", "exit"), ("o3", "exit")):
        held = acting.lease(store, name)["a"]
        told.append(held.row["try_number"])
        acting.cross(store, held)
        if how == "exit":
            acting.run(store, held)
        (again,) = acting.offer_rows(store, [name])
        assert again == held.row
        acting.report(store, held, how=how, exit_code=1 if how == "exit" else None)
        clock.advance(60_000)
        for row in store.read("agenda_state", run_id=run_id, stage="retry"):
            store.call("retry_run", p_run_id=row["run_id"])
        acting.admit(store, run_id)
    assert told == [1, 1, 2]


def test_an_offer_that_was_spent_gives_no_row(store: Store) -> None:
    acting.begun(store, {"a": [], "b": []})
    held = acting.lease(store)["a"]
    acting.run(store, held)
    acting.report(store, held)
    assert acting.offer_rows(store, ["o1"]) == []
    assert [row["step_key"] for row in acting.offer_rows(store, ["o2"])] == ["b"]


def test_an_offer_with_another_token_is_not_a_replay(store: Store) -> None:
    acting.begun(store, {"a": []})
    acting.lease(store)
    other = json.dumps([{"offer_id": "o1", "token_digest": "f" * 64}])
    assert (
        store.call(
            "lease_attempts",
            p_worker_id="w1",
            p_session_id="s1",
            p_queue="default",
            p_offers=other,
            p_lease_ms=LEASE_MS,
            p_run_id=None,
        )
        == []
    )


def test_a_leased_attempt_is_not_leased_again(store: Store) -> None:
    acting.begun(store, {"a": []})
    acting.lease(store)
    acting.register(store, "w2")
    assert acting.offer_rows(store, ["o2"], worker="w2") == []


def test_queues_keep_apart(store: Store) -> None:
    acting.begun(store, {"a": []}, queue="slow")
    acting.register(store)
    assert acting.offer_rows(store, ["o1"]) == []
    assert len(acting.offer_rows(store, ["o2"], queue="slow")) == 1


def test_nothing_is_leased_under_an_intent(store: Store) -> None:
    run_id = acting.begun(store, {"a": []})
    acting.cancel(store, run_id)
    assert acting.lease(store) == {}


@pytest.mark.parametrize(
    ("offers", "lease_ms"),
    [
        ("{}", LEASE_MS),
        ("no json", LEASE_MS),
        ('[{"offer_id":"o1"}]', LEASE_MS),
        ('[{"offer_id":"o1","token_digest":"short"}]', LEASE_MS),
        (acting.offers(["o1", "o1"]), LEASE_MS),
        (acting.offers(["o1"]), 4_999),
        (acting.offers(["o1"]), 300_001),
        (acting.offers([f"o{number}" for number in range(129)]), LEASE_MS),
    ],
)
def test_malformed_offers_are_refused(store: Store, offers: str, lease_ms: int) -> None:
    acting.register(store)
    with pytest.raises(Malformed):
        store.call(
            "lease_attempts",
            p_worker_id="w1",
            p_session_id="s1",
            p_queue="default",
            p_offers=offers,
            p_lease_ms=lease_ms,
            p_run_id=None,
        )


def test_the_input_holds_the_runs_input_and_the_outputs_of_direct_needs(store: Store) -> None:
    acting.publish(store, {"a": [], "b": ["a"], "c": ["b"], "d": ["b", "c"]})
    run_id = acting.start(store, text='{"day":"2024-01-01"}')
    for key, output in (("a", '{"rows":1}'), ("b", '{"rows":2}'), ("c", None)):
        acting.admit(store, run_id)
        held = acting.lease(store, key)
        acting.run(store, held[key])
        acting.report(store, held[key], output=output)
        acting.advance(store, run_id)
    held = acting.lease(store, "d")["d"]
    assert store.call("attempt_input", p_attempt_id=held.attempt_id, p_token=held.token) == [
        {
            "attempt_id": held.attempt_id,
            "input": '{"input":{"day":"2024-01-01"},"needs":{"b":{"rows":2},"c":null}}',
        }
    ]


def test_the_input_is_for_the_holder_of_the_token_alone(store: Store) -> None:
    acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    assert store.call("attempt_input", p_attempt_id=held.attempt_id, p_token="guessed") == []
    acting.run(store, held)
    acting.report(store, held)
    assert store.call("attempt_input", p_attempt_id=held.attempt_id, p_token=held.token) == []


def test_a_worker_may_lease_the_attempts_of_one_run_alone(store: Store) -> None:
    acting.publish(store, {"a": []})
    first, second = acting.start(store, key="one"), acting.start(store, key="two")
    acting.admit(store, first)
    acting.admit(store, second)
    acting.register(store)
    rows = acting.offer_rows(store, ["o1", "o2"], run_id=second)
    assert [row["run_id"] for row in rows] == [second]
    assert [row["run_id"] for row in acting.offer_rows(store, ["o3", "o4"])] == [first]
