"""Sessions of workers, and what the holder of a lease may ask (DESIGN §8, DOMAIN §3.5)."""

import json
from typing import Any

import pytest

from qinglong_sql.errors import Fenced, Malformed, Unknown
from qinglong_sql.store import Store
from tests import acting
from tests.acting import Held, Row
from tests.engines import Engine
from tests.stores import FakeClock


def beat(store: Store, worker: str = "w1", session: str = "s1") -> Row:
    return store.call("heartbeat_worker", p_worker_id=worker, p_session_id=session)[0]


def drain(store: Store, worker: str = "w1", step: str = "drain_worker") -> Row:
    return store.call(step, p_worker_id=worker)[0]


def told(store: Store, worker: str = "w1") -> Row:
    return store.read("worker_state", worker_id=worker)[0]


def standing(store: Store, *held: Held, **fields: Any) -> list[Row]:
    return store.call("attempt_standing", p_commands=acting.commands(*held, **fields))


def inputs(store: Store, *held: Held, **fields: Any) -> list[Row]:
    return store.call("attempt_inputs", p_commands=acting.commands(*held, **fields))


# -- heartbeat


def test_a_heartbeat_extends_the_current_session(store: Store, clock: FakeClock) -> None:
    acting.register(store)
    first = told(store)
    assert (first["seen_at_ms"], first["expires_at_ms"]) == (clock.now(), clock.now() + 300_000)
    for _ in range(2):  # a repeated one is seen again
        now_ms = clock.advance(10_000)
        assert beat(store) == {
            "worker_id": "w1", "session_id": "s1", "generation": 1, "status": "online"
        }  # fmt: skip
        row = told(store)
        assert (row["seen_at_ms"], row["expires_at_ms"]) == (now_ms, now_ms + 60_000)
    assert row == first | {"seen_at_ms": now_ms, "expires_at_ms": now_ms + 60_000}


def test_a_replaced_session_hears_of_the_other_and_extends_nothing(
    store: Store, clock: FakeClock
) -> None:
    acting.register(store)
    now_ms = clock.advance(10_000)
    acting.register(store, session="s2")
    before = told(store)
    assert (before["seen_at_ms"], before["expires_at_ms"]) == (now_ms, now_ms + 300_000)
    clock.advance(10_000)
    answer = beat(store)
    assert (answer["session_id"], answer["generation"], answer["status"]) == ("s2", 2, "online")
    assert told(store) == before


def test_a_session_that_has_ended_stays_so(store: Store, clock: FakeClock) -> None:
    acting.register(store)
    store.call("end_session", p_worker_id="w1", p_session_id="s1")
    before = told(store)
    clock.advance(10_000)
    assert beat(store)["status"] == "offline"
    assert told(store) == before


def test_an_unknown_worker_is_unknown(store: Store) -> None:
    for step in ("drain_worker", "undrain_worker"):
        with pytest.raises(Unknown, match="no worker w9"):
            drain(store, "w9", step)
    with pytest.raises(Unknown, match="no worker w9"):
        beat(store, "w9")


# -- drain


def test_a_drained_worker_leases_nothing_and_all_else_goes_on(
    store: Store, clock: FakeClock
) -> None:
    acting.begun(store, {"a": [], "b": [], "c": []})
    held = acting.lease(store, "o1", "o2")
    acting.cross(store, held["a"])
    now_ms = clock.advance(1_000)
    assert drain(store) == {"worker_id": "w1", "status": "draining", "outcome": "applied"}
    clock.advance(1_000)
    assert drain(store) == {"worker_id": "w1", "status": "draining", "outcome": "existing"}
    assert told(store)["drain_requested_at_ms"] == now_ms
    for names in (["o3"], ["o1", "o2"]):  # a replay as well
        with pytest.raises(Fenced, match="not online"):
            acting.offer_rows(store, names)

    assert beat(store)["status"] == "draining"
    assert told(store)["seen_at_ms"] == clock.now()
    assert [row["outcome"] for row in inputs(store, *held.values())] == ["applied"] * 2
    assert [row["outcome"] for row in acting.renew(store, *held.values())] == ["applied"] * 2
    assert acting.run(store, held["a"])[0]["outcome"] == "applied"
    assert acting.report(store, held["a"])[0]["status"] == "succeeded"
    given = acting.report(store, held["b"], how="not_started", exit_code=None)
    assert given[0]["outcome"] == "applied"
    assert acting.unbroken(store)


def test_a_drained_worker_stays_drained_until_it_is_undrained(store: Store) -> None:
    acting.begun(store, {"a": []})
    acting.register(store)
    drain(store)
    assert acting.register(store)["status"] == "draining"  # a replay
    assert acting.register(store, session="s2")["status"] == "draining"
    with pytest.raises(Fenced):
        acting.offer_rows(store, ["o1"], session="s2")
    answer = drain(store, step="undrain_worker")
    assert answer == {"worker_id": "w1", "status": "online", "outcome": "applied"}
    assert drain(store, step="undrain_worker") == answer | {"outcome": "existing"}
    assert told(store)["drain_requested_at_ms"] is None
    assert len(acting.offer_rows(store, ["o1"], session="s2")) == 1


def test_who_is_offline_stays_so_and_comes_back_as_it_was_asked(store: Store) -> None:
    acting.register(store)
    store.call("end_session", p_worker_id="w1", p_session_id="s1")
    assert drain(store)["status"] == "offline"
    assert acting.register(store)["status"] == "offline"  # the same session, which is over
    assert acting.register(store, session="s2")["status"] == "draining"
    store.call("end_session", p_worker_id="w1", p_session_id="s2")
    assert told(store)["status"] == "offline"
    assert drain(store, step="undrain_worker")["status"] == "offline"
    assert acting.register(store, session="s3")["status"] == "online"


def test_another_worker_is_not_drained_along(store: Store) -> None:
    acting.begun(store, {"a": []})
    acting.register(store)
    acting.register(store, "w2", "t1")
    drain(store)
    assert told(store, "w2")["status"] == "online"
    assert len(acting.offer_rows(store, ["o1"], worker="w2", session="t1")) == 1


# -- standing


def test_how_an_attempt_stands_is_told_from_its_lease_to_long_after_its_end(
    store: Store, clock: FakeClock
) -> None:
    run_id = acting.begun(store, {"a": [], "b": ["a"]})
    held = acting.lease(store)["a"]
    base = {"attempt_id": held.attempt_id, "outcome": "applied", "code": None,
            "run_id": run_id, "step_key": "a", "number": 1}  # fmt: skip
    end = {"expires_at_ms": held.row["expires_at_ms"], "lease_status": "leased"}
    assert standing(store, held) == [base | end | {"status": "claimed"}]
    acting.cross(store, held)
    assert standing(store, held) == [base | end | {"status": "starting"}]
    acting.run(store, held)
    clock.advance(1_000)
    end["expires_at_ms"] = acting.renew(store, held)[0]["expires_at_ms"]
    assert standing(store, held) == [base | end | {"status": "running"}]
    acting.report(store, held)
    clock.advance(10**9)
    over = base | {"expires_at_ms": None, "lease_status": "completed", "status": "succeeded"}
    assert standing(store, held) == [over]
    acting.advance(store, run_id)
    acting.finish(store, run_id)
    acting.advance(store, run_id)
    assert acting.ended(store, run_id)[0] == "succeeded"
    assert standing(store, held) == [over]
    clock.advance(10**9)
    store.call("purge_runs", p_before_ms=clock.now(), p_limit=32)
    gone = dict.fromkeys(over) | {"attempt_id": held.attempt_id}
    assert standing(store, held) == [gone | {"outcome": "blocked", "code": "QL404"}]


def test_a_lease_that_was_lost_or_given_back_is_told_as_that(
    store: Store, clock: FakeClock
) -> None:
    run_id = acting.begun(store, {"a": [], "b": []})
    held = acting.lease(store, "o1", "o2")
    acting.report(store, held["b"], how="not_started", exit_code=None)
    clock.advance(acting.LEASE_MS + 1)
    found = [(row["status"], row["lease_status"]) for row in standing(store, *held.values())]
    assert found == [("claimed", "leased"), ("lost", "released")]
    acting.recover(store, run_id)
    acting.admit(store, run_id)
    acting.lease(store, "o3", "o4")
    found = [(row["status"], row["lease_status"]) for row in standing(store, *held.values())]
    assert found == [("lost", "released")] * 2
    assert {row["expires_at_ms"] for row in standing(store, *held.values())} == {None}


STRANGE = {
    "another token": {"token": "x" * 64},
    "no token": {"token": None},
    "a later fence": {"fence": 2},
    "an earlier fence": {"fence": 0},
    "no fence": {"fence": None},
    "another worker": {"worker_id": "w2"},
    "an unknown attempt": {"attempt_id": "nobody's"},
}
MALFORMED = {"no token", "no fence"}


@pytest.mark.parametrize("how", STRANGE)
@pytest.mark.parametrize("ended", [False, True], ids=["live", "ended"])
def test_a_stranger_is_told_nothing(store: Store, engine: Engine, how: str, ended: bool) -> None:
    acting.begun(
        store,
        {"a": []},
    )
    held = acting.lease(store)["a"]
    if ended:
        acting.run(store, held)
        acting.report(store, held)
    code = "QL404" if how == "an unknown attempt" else "QL410"
    code = "QL400" if how in MALFORMED else code
    before = acting.everything(engine)
    for step in ("attempt_standing", "attempt_inputs"):
        (row,) = store.call(step, p_commands=acting.commands(held, **STRANGE[how]))
        assert (row.pop("outcome"), row.pop("code")) == ("blocked", code)
        assert row.pop("attempt_id") in (held.attempt_id, "nobody's")
        assert set(row.values()) == {None}, row
    assert acting.everything(engine) == before


def test_the_worker_itself_is_told_and_a_batch_is_answered_in_its_order(store: Store) -> None:
    acting.begun(store, {"a": [], "b": [], "c": []})
    held = acting.lease(store, "o1", "o2", "o3")
    names = ["c", "a", "b"]
    batch = [held[name] for name in names]
    for ask in (standing, inputs):
        rows = ask(store, *batch, worker_id="w1")
        assert [row["attempt_id"] for row in rows] == [one.attempt_id for one in batch]
        assert [row["outcome"] for row in rows] == ["applied"] * 3
    twice = standing(store, held["a"], held["a"])
    assert [row["code"] for row in twice] == [None, "QL400"]
    assert standing(store) == inputs(store) == []
    for text in ("{}", "[", "null"):
        for step in ("attempt_standing", "attempt_inputs"):
            with pytest.raises(Malformed):
                store.call(step, p_commands=text)
    many = json.dumps([{"attempt_id": str(number)} for number in range(129)])
    with pytest.raises(Malformed):
        store.call("attempt_standing", p_commands=many)


# -- inputs


def test_inputs_of_a_batch_are_those_of_its_attempts(store: Store) -> None:
    acting.publish(store, {"a": [], "b": [], "c": ["a", "b"], "d": ["a"]})
    run_id = acting.start(store, text='{"x":1}')
    acting.admit(store, run_id)
    first = acting.lease(store, "o1", "o2")
    acting.run(store, *first.values())
    acting.report(store, first["a"], output='{"made":"ä"}')
    acting.report(store, first["b"])
    acting.advance(store, run_id)
    held = acting.lease(store, "o3", "o4")
    assert [*held] == ["c", "d"]
    found = {row["attempt_id"]: row["input"] for row in inputs(store, *held.values())}
    for one in held.values():
        (row,) = store.call("attempt_input", p_attempt_id=one.attempt_id, p_token=one.token)
        assert found[one.attempt_id] == row["input"]
    assert json.loads(found[held["c"].attempt_id]) == {
        "input": {"x": 1}, "needs": {"a": {"made": "ä"}, "b": None}
    }  # fmt: skip
    assert inputs(store, first["a"])[0]["code"] == "QL410"  # its lease is over


def test_an_answer_ends_when_it_has_two_mebibytes(store: Store) -> None:
    """So that a door's memory is bounded; whoever is contended asks again."""
    wide = [f"s{number:03}" for number in range(100)]
    needs: dict[str, list[str]] = {key: [] for key in wide}
    needs |= {f"t{number}": wide for number in range(4)}
    acting.publish(store, needs)
    run_id = acting.start(store)
    acting.admit(store, run_id)
    held = acting.lease(store, *(f"o{number}" for number in range(100)))
    acting.run(store, *held.values())
    large = json.dumps({"x": "y" * 16_000})
    acting.report(store, *held.values(), output=large)
    acting.advance(store, run_id)
    last = [*acting.lease(store, *(f"p{number}" for number in range(4))).values()]
    asked, answers = last, []
    while asked:
        rows = inputs(store, *asked)
        assert rows[0]["outcome"] == "applied"
        answers.append(sum(row["outcome"] == "applied" for row in rows))
        for row in rows:
            assert row["code"] is None
            assert (row["input"] is None) == (row["outcome"] == "contended")
        asked = [one for one, row in zip(asked, rows, strict=True) if row["input"] is None]
    assert answers == [2, 2]


# -- audit


def audit(store: Store, worker: str = "w1", route: str = "lease", serial: str = "2a") -> Row:
    (row,) = store.call("audit_worker", p_worker_id=worker, p_route=route, p_certificate=serial)
    return row


def test_what_was_audited_has_one_row_a_minute(store: Store, clock: FakeClock) -> None:
    minute = clock.now() - clock.now() % 60_000
    clock.set(minute + 59_998)
    first = clock.now()
    for _ in range(2):
        assert audit(store) == {"minute_ms": minute}
        clock.advance(1)
    audit(store, route="renew")
    audit(store, serial="2b")
    audit(store, worker="w2")
    rows = store.read("worker_audit_log", order="minute_ms, worker_id, route, certificate")
    assert rows[0] == {"minute_ms": minute, "worker_id": "w1", "route": "lease",
                       "certificate": "2a", "first_at_ms": first}  # fmt: skip
    assert [row["minute_ms"] - minute for row in rows] == [0, 60_000, 60_000, 60_000]


@pytest.mark.parametrize(
    "wrong", [{"worker": ""}, {"worker": "w" * 37}, {"route": ""}, {"route": "r" * 65},
              {"serial": ""}, {"serial": "0" * 65}],
)  # fmt: skip
def test_an_audit_row_is_whole(store: Store, wrong: dict[str, str]) -> None:
    with pytest.raises(Malformed):
        audit(store, **wrong)
    assert store.read("worker_audit_log") == []


def test_old_audit_rows_go_the_oldest_first_and_the_newest_minute_stays(
    store: Store, clock: FakeClock
) -> None:
    for _ in range(5):
        audit(store)
        audit(store, worker="w2")
        clock.advance(60_000)
    left = [row["minute_ms"] for row in store.read("worker_audit_log", order="minute_ms")]

    def purge(before_ms: int, limit: int = 4096) -> int:
        (row,) = store.call("purge_audit", p_before_ms=before_ms, p_limit=limit)
        kept = [row["minute_ms"] for row in store.read("worker_audit_log", order="minute_ms")]
        assert kept == left[len(left) - len(kept) :]
        return int(row["purged"])

    assert purge(left[0]) == 0
    assert purge(left[2]) == 2
    assert purge(left[2]) == 0
    assert purge(clock.now(), limit=3) == 3
    assert purge(2 * clock.now()) == 3
    assert purge(2 * clock.now()) == 0
    assert len(store.read("worker_audit_log")) == 2
    for limit in (0, 4097, -1):
        with pytest.raises(Malformed):
            purge(clock.now(), limit)
