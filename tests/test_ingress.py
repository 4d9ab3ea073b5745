"""The workers' door: who is let in, in which order it is looked, what is kept and what is told."""

import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from qinglong_sql.certificate import holder_of
from qinglong_sql.control_log import Log
from qinglong_sql.ingress_calls import Calls
from qinglong_sql.ingress_refusal import LINES_A_SECOND, Told
from qinglong_sql.store.postgres import PostgresStore
from qinglong_sql.wire import KIB
from tests import acting
from tests.doors_remote import Client, Site


@pytest.fixture
def site(ingress_site: Site) -> Site:
    return ingress_site


@pytest.fixture(scope="module")
def store(shared_ingress: Site) -> Iterator[PostgresStore]:
    with closing(PostgresStore(shared_ingress.dsn)) as store:
        yield store


def audited(site: Site, worker: str) -> list[tuple[str, str]]:
    """Routes and certificates that are audited of a worker."""
    with psycopg.connect(site.dsn) as dba:
        text = "select distinct route, certificate from ql.worker_audit where worker_id = %s"
        return sorted(dba.execute(text, [worker]).fetchall())


# --- who asks for what


def test_an_attempt_lives_through_the_door(site: Site, store: PostgresStore) -> None:
    acting.publish(store, {"a": [], "b": ["a"]})
    run_id = acting.start(store, key="lives")
    acting.page(store, "task_admission_page")
    session = {"worker": "w1", "session": "s1"}
    with site.client("w1") as door:
        acting.register(door, **session)  # type: ignore[arg-type]
        for step in ("a", "b"):
            one = acting.lease(door, f"lives {step}", run_id=run_id, **session)[step]  # type: ignore[arg-type]
            command = {"attempt_id": one.attempt_id, "fence": one.fence, "token": one.token}
            assert json.loads(
                door.call("attempt_inputs", p_commands=json.dumps([command]))[0]["input"]
            )["needs"] == ({} if step == "a" else {"a": {"x": 1}})
            acting.run(door, one)  # type: ignore[arg-type]
            assert acting.renew(door, one)[0]["stop_reason"] is None  # type: ignore[arg-type]
            acting.report(door, one, output='{"x":1}')  # type: ignore[arg-type]
            acting.advance(store, run_id)
        beat = door.call("heartbeat_worker", p_session_id="s1")
        assert (beat[0]["worker_id"], beat[0]["session_id"]) == ("w1", "s1")
        assert door.call("end_session", p_session_id="s1")[0]["status"] == "offline"
    assert acting.ended(store, run_id)[0] == "succeeded"
    assert acting.unbroken(store)


def test_who_asks_is_who_the_certificate_says(site: Site, store: PostgresStore) -> None:
    acting.publish(store, {"a": [], "b": []})
    run_id = acting.start(store, key="theft")
    acting.page(store, "task_admission_page")
    with site.client("w2") as door, site.client("thief") as thief:
        acting.register(door, "w2", "s1")  # type: ignore[arg-type]
        held = acting.lease(door, "theft", run_id=run_id, worker="w2", session="s1")["a"]  # type: ignore[arg-type]
        status, found = thief.ask(
            "register", worker_id="w2", session_id="s9", queues=["default"], slots=1,
            self_fencing=0, grace_ms=0,
        )  # fmt: skip
        assert (status, found["rows"][0]["worker_id"]) == (200, "thief")
        command = {"attempt_id": held.attempt_id, "fence": held.fence, "token": held.token}
        for route, more in (("running", {}), ("start", {}), ("attest", {"reason": "gone"})):
            said = {**command, **more, "worker_id": "w2"}
            (row,) = thief.ask(route, commands=[said], worker_id="w2")[1]["rows"]
            assert (row["outcome"], row["code"]) == ("blocked", "QL410")
        assert thief.log(held, 0, b"forged")[0] == 410
        status, found = thief.ask("lease", session_id="s1", queue="default", lease_ms=5000,
                                  offers=[{"offer_id": "x", "token_digest": "0" * 64}])  # fmt: skip
        assert (status, found["code"]) == (410, "QL410")
    rows = store.read("worker_state", worker_id="w2")
    assert (rows[0]["session_id"], rows[0]["status"]) == ("s1", "online")


def test_it_is_looked_at_route_then_certificate_then_audit_then_body(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body that nobody would take is not asked for when something before it is wrong."""
    huge = {"Content_Length": str(10**9)}

    def asked(client: Client, path: str, method: str = "POST") -> int:
        client.line.putrequest(method, path)
        client.line.putheader("Content-Type", "application/json")
        client.line.putheader("Content-Length", huge["Content_Length"])
        client.line.endheaders()
        status, found = client.heard()
        client.close()
        assert found.keys() == {"code", "message"}
        return status

    with site.client("order") as client:
        assert asked(client, "/v1/nothing") == 404
        assert asked(client, "/v1/start/") == 404
        assert asked(client, "/v1/start", "PUT") == 405
        assert audited(site, "order") == []
        monkeypatch.setattr(Calls, "audit", lambda *_: (_ for _ in ()).throw(AssertionError))
        assert asked(client, "/v1/heartbeat") == 500  # nothing is done without an audit row
        monkeypatch.undo()
        assert asked(client, "/v1/start") == 413
    serial = holder_of(site.authority.worker("order").certificate).serial
    assert audited(site, "order") == [("start", serial)]
    line = site.lines("refused")[0]
    assert line["message"] == "404 no such route, asked by order at 127.0.0.1"
    assert (line["code"], line["route"], line["worker"]) == ("route", "none", "order")
    said = [one["message"] for one in site.lines("refused")]
    assert "405 another method than POST, asked by order at 127.0.0.1" in said
    assert "413 large for start, asked by order at 127.0.0.1" in said


def test_a_minute_of_a_worker_on_a_route_is_one_row(site: Site) -> None:
    with site.client("often") as one, site.client("often") as two:
        for _ in range(3):
            one.ask("heartbeat", session_id="s")
            two.ask("end", session_id="s")
    with psycopg.connect(site.dsn) as dba:
        rows = dba.execute(
            "select route, minute_ms, first_at_ms from ql.worker_audit where worker_id = 'often'"
        ).fetchall()
    assert {row[0] for row in rows} == {"heartbeat", "end"} and len(rows) <= 4  # a minute may turn
    assert len({row[:2] for row in rows}) == len(rows)
    assert all(row[1] <= row[2] < row[1] + 60_000 and row[1] % 60_000 == 0 for row in rows)


@pytest.mark.parametrize(
    ("headers", "body", "status", "code"),
    [
        ({"Content_Type": "text/plain"}, b"{}", 415, "media"),
        ({"Content_Encoding": "gzip"}, b"{}", 415, "media"),
        ({"Transfer_Encoding": "chunked"}, None, 411, "length"),
        ({}, b"x" * (96 * KIB + 1), 413, "large"),
        ({}, b"", 400, "QL400"),
        ({}, b"[]", 400, "QL400"),
        ({}, b'{"commands":[]', 400, "QL400"),
    ],
)
def test_what_is_no_request_is_refused_in_json(
    site: Site, headers: dict[str, str], body: bytes | None, status: int, code: str
) -> None:
    with site.client("odd") as client:
        if "Transfer_Encoding" in headers:
            client.line.putrequest("POST", "/v1/standing")
            client.line.putheader("Content-Type", "application/json")
            client.line.putheader("Transfer-Encoding", "chunked")
            client.line.endheaders(b"2\r\n{}\r\n0\r\n\r\n")
            found = client.heard()
        else:
            found = client.send("/v1/standing", body, **headers)
        assert (found[0], found[1]["code"]) == (status, code)
        assert found[1]["message"] and client.headers["Server"] == "qinglong-sql"
        assert client.send("/v1/standing", b'{"commands":[]}') == (200, {"rows": []})


def test_who_asks_first_whether_to_go_on_is_told(site: Site) -> None:
    with site.client("polite") as client:
        client.line.putrequest("POST", "/v1/standing")
        client.line.putheader("Content-Type", "application/json")
        client.line.putheader("Content-Length", "15")
        client.line.putheader("Expect", "100-continue")
        client.line.endheaders()
        assert isinstance(client.line.sock, ssl.SSLSocket)
        assert client.line.sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.line.send(b'{"commands":[]}')
        assert client.heard() == (200, {"rows": []})


def test_sql_s_refusals_have_their_status(site: Site) -> None:
    with site.client("stranger") as client:
        assert client.ask("heartbeat", session_id="s")[0] == 404
        assert client.ask("end", session_id="s")[1] == {
            "code": "QL404", "message": "no worker stranger",
        }  # fmt: skip
        rows = client.ask("standing", commands=[{"attempt_id": "none", "fence": 1, "token": "x"}])[
            1
        ]["rows"]
        assert [(row["outcome"], row["code"]) for row in rows] == [("blocked", "QL404")]


def test_the_document_is_read_by_workers_alone(site: Site) -> None:
    with site.client("reader") as client:
        status, found = client.send("/v1/openapi.json", None, "GET")
        assert (status, found["openapi"]) == (200, "3.1.0")
        assert client.send("/v1/openapi.json")[0] == 405 and client.headers["Allow"] == "GET"
    assert [route for route, _ in audited(site, "reader")] == ["openapi"]


# --- what is told


def test_a_fault_is_told_without_what_was_asked(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise LookupError("s3cret")

    with site.client("w1") as client:
        client.ask("heartbeat", session_id="s")
        monkeypatch.setattr(PostgresStore, "call", breaks)
        status, found = client.ask("heartbeat", session_id="s3cret")
    assert (status, found["code"]) == (500, "QL500") and "s3cret" not in str(found)
    assert "LookupError at test_ingress.py:" in site.lines("trouble")[-1]["message"]
    assert "s3cret" not in site.out.getvalue()


def test_ten_lines_of_refusals_a_second_and_how_many_more(site: Site) -> None:
    now = [100.0]
    told = Told(Log("json", "info", site.out), lambda: now[0])
    for number in range(25):
        told.say("info", f"refusal {number}")
    assert len(site.lines("refused")) == LINES_A_SECOND == 10
    now[0] += 1
    told.say("info", "the next")
    assert site.lines("refused")[-1]["message"] == "the next (15 others before it are not told)"


def test_metrics_name_routes_and_reasons_and_no_worker(site: Site) -> None:
    with site.client("counted") as client:
        client.ask("heartbeat", session_id="s")
        client.send("/v1/secret-route")
        assert site.count("connections") >= 1
    assert site.count("requests_total", route="heartbeat", status="404") >= 1
    assert site.count("requests_total", route="none", status="404") >= 1
    assert site.count("in_flight") == 0
    from prometheus_client import generate_latest

    site.ingress.sample()
    text = generate_latest(site.ingress.meter.registry).decode()
    assert "counted" not in text and "secret" not in text
    assert "qinglong_sql_ingress_pool_connections 4.0" in text


def test_importing_the_ingress_brings_nothing_that_decides() -> None:
    text = (
        "import sys, qinglong_sql.ingress, qinglong_sql.ingress_process, qinglong_sql.cli.ingress;"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    loaded = {name.removeprefix("qinglong_sql.") for name in done.stdout.split()}
    deciding = {"stage", "scheduler", "cycle", "schedule", "control", "control_parts",
                "control_cycle", "drive", "cadence", "metrics", "worker", "edge"}  # fmt: skip
    assert {"ingress", "wire", "store.pooled"} <= loaded
    assert not loaded & deciding
    assert not any("frontier" in name or "admission" in name for name in loaded)
