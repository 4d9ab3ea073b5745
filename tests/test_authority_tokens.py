"""The life of a run through five logins, and that a worker without a live token moves nothing."""

import json
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from qinglong_sql.store.steps import STEPS
from tests import acting
from tests.acting import Held
from tests.doors import Doors, life, logins_of
from tests.engines import Engine
from tests.server import Server


@pytest.fixture
def logins(postgres_server: Server, postgres_dsn: str) -> Iterator[dict[str, str]]:
    with logins_of(postgres_server, postgres_dsn) as found:
        yield found


@pytest.fixture
def doors(logins: dict[str, str]) -> Iterator[Doors]:
    with closing(Doors(logins)) as opened:
        yield opened


@pytest.mark.all_versions
def test_five_logins_lead_a_run_through_its_whole_life(doors: Doors) -> None:
    (done, _, events), (cancelled, _, _) = life(doors, "one")
    assert done == ("succeeded", None)
    assert cancelled == ("cancelled", "workflow_cancelled")
    assert len(events) > 15


# -- a worker without a live token moves nothing


def batches(held: dict[str, Held]) -> Iterator[str]:
    """Commands that lack authority in one way each; the attempt `d` has ended."""
    good = {
        key: {
            "attempt_id": one.attempt_id, "fence": one.fence, "token": one.token,
            "identity": "pid 9", "how": "exit", "exit_code": 9, "reason": "gone",
        }
        for key, one in held.items()
    }  # fmt: skip
    yield json.dumps([good["d"]])
    for key in "abc":
        one, other = good[key], good["a" if key != "a" else "b"]
        yield json.dumps([one | {"token": "x" * 64}])
        yield json.dumps([one | {"token": other["token"]}])
        yield json.dumps([one | {"token": None}])
        yield json.dumps([one | {"token": ""}])
        yield json.dumps([one | {"fence": one["fence"] + 1}])
        yield json.dumps([one | {"fence": one["fence"] - 1}])
        yield json.dumps([one | {"attempt_id": other["attempt_id"]}])
        yield json.dumps([one | {"worker_id": "w2"}])


def powerless(held: dict[str, Held]) -> dict[str, list[dict[str, object]]]:
    """For each function of ql_worker, calls of somebody who holds nothing."""
    one, other = held["a"], held["b"]
    commands = [{"p_commands": text} for text in batches(held)]
    asked: list[dict[str, object]] = [
        {"p_attempt_id": one.attempt_id, "p_token": token}
        for token in (other.token, "x" * 64, "", None, acting.digest(one.token))
    ] + [{"p_attempt_id": held["d"].attempt_id, "p_token": held["d"].token}]
    lease = {"p_queue": "default", "p_offers": acting.offers(["o9"]), "p_lease_ms": 30_000}
    who = [("w1", "s9"), ("w9", "s1"), ("w9", "s9"), (None, None)]
    session = [{"p_worker_id": worker, "p_session_id": name} for worker, name in who]
    new = {"p_worker_id": "w9", "p_session_id": "s9", "p_queues": '["default"]', "p_slots": 1}
    return {
        "register_worker": [new | {"p_self_fencing": 1, "p_grace_ms": 2_000}],
        "lease_attempts": [lease | {"p_run_id": None} | one for one in session],
        "heartbeat_worker": [*session],
        "attempt_input": asked,
        "attempt_inputs": [*commands],
        "attempt_standing": [*commands],
        "start_attempts": [*commands],
        "running_attempts": [*commands],
        "renew_attempts": [one | {"p_lease_ms": 300_000} for one in commands],
        "report_attempts": [*commands],
        "attest_attempts": [*commands],
        "end_session": [*session],
        "audit_worker": [{"p_worker_id": "w9", "p_route": "lease", "p_certificate": "2a"}],
    }


MAY_CHANGE = {
    "register_worker": {"worker_session"},  # a name of its own, and no attempt
    "audit_worker": {"worker_audit"},
    "report_attempts": {"refused_report"},  # kept, at most eight an attempt
    "attest_attempts": {"refused_report"},
}


NAMES_NO_ATTEMPT = {"register_worker", "heartbeat_worker", "audit_worker"}


@pytest.mark.all_versions
@pytest.mark.parametrize("step", [one.name for one in STEPS.values() if one.schema == "ql_worker"])
def test_a_worker_without_a_live_token_moves_nothing(
    doors: Doors, postgres_dsn: str, step: str
) -> None:
    acting.begun(doors, {"a": [], "b": [], "c": [], "d": [], "e": []})
    held = acting.lease(doors, "o1", "o2", "o3", "o4")
    assert [*held] == ["a", "b", "c", "d"]
    acting.cross(doors, held["b"])
    acting.run(doors, held["c"], held["d"])
    acting.report(doors, held["d"])
    engine = Engine("postgres", postgres_dsn, None)
    before = acting.everything(engine)
    calls = powerless(held)
    with psycopg.connect(postgres_dsn) as dba:  # one that nobody thought of is covered first
        shipped = "select proname from pg_proc where pronamespace = 'ql_worker'::regnamespace"
        assert {name for (name,) in dba.execute(shipped).fetchall()} == calls.keys()
    for params in calls[step]:
        try:
            rows = doors.call(step, **params)
        except psycopg.Error as error:
            rows = []
            assert str(error.sqlstate).startswith("QL4"), f"{step} {params}: {error}"
        if step not in NAMES_NO_ATTEMPT:  # an exact replay by the last holder answers as it did
            strange = [row for row in rows if row["attempt_id"] != held["d"].attempt_id]
            assert all(row.get("outcome") == "blocked" for row in strange), (
                f"{step} {params}: {rows}"
            )
    after = acting.everything(engine)
    changed = {name for name in after if after[name] != before[name]}
    assert changed <= MAY_CHANGE.get(step, set()), f"{step} without a live token moves {changed}"
