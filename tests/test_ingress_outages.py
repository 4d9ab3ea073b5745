"""When a door does not serve: its database is away or slow, it stops, or it may not begin."""

import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from qinglong_sql.control_log import Log
from qinglong_sql.errors import NotReady
from qinglong_sql.ingress import Ingress
from qinglong_sql.ingress_calls import Calls
from tests.conftest import ServerOf, _server
from tests.doors_remote import Site, site_of, site_on
from tests.engines import drop_postgres, fresh_postgres
from tests.server import Server


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, server_of: ServerOf) -> Server:
    return _server(None, request.config, server_of)


@pytest.fixture(scope="module")
def shared(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One ingress for all tests that leave it as it was."""
    with site_on(server, tmp_path_factory.mktemp("ingress")) as site:
        yield site


@pytest.fixture
def site(shared: Site) -> Site:
    shared.out.seek(0)
    shared.out.truncate()
    return shared


def test_a_call_that_takes_too_long_is_the_database_s_absence(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its machine stands still: four calls wait, and the next ones are told at once."""
    over = threading.Event()
    monkeypatch.setattr("qinglong_sql.ingress_answer.CALL_S", 0.3)
    monkeypatch.setattr("qinglong_sql.ingress_answer.WAIT_S", 0.3)
    monkeypatch.setattr(Calls, "answer", lambda *_: over.wait(20) and b"{}")
    try:
        for worker in ("stuck1", "stuck1", "stuck2", "stuck2", "stuck3"):
            with site.client(worker) as client:
                status, found = client.ask("heartbeat", session_id="s")
                assert (status, found["code"]) == (503, "QL503")
        assert site.ingress.refusal() is not None
    finally:
        over.set()
    monkeypatch.undo()
    with site.client("stuck3") as client:
        assert client.ask("heartbeat", session_id="s")[0] == 404
    assert site.ingress.refusal() is None


def test_a_database_that_is_away_is_told_and_waited_for(site: Site) -> None:
    name = site.dsn.rpartition("/")[2]
    server = site.dsn.replace(name, "postgres")
    with site.client("waits") as client, psycopg.connect(server, autocommit=True) as dba:
        assert client.ask("heartbeat", session_id="s")[0] == 404
        dba.execute(f"alter database {name} allow_connections off")  # type: ignore[arg-type]
        dba.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s",
                    [name])  # fmt: skip
        try:
            until_s = time.monotonic() + 5
            while client.ask("heartbeat", session_id="s")[0] != 503:
                assert time.monotonic() < until_s
            status, found = client.ask("end", session_id="s")
            assert (status, found["code"]) == (503, "QL503")
            assert found["message"] == "the database does not answer now; ask again"
            assert client.headers["Retry-After"] == "1"
            assert site.ingress.refusal() == "the database does not answer now"
        finally:
            dba.execute(f"alter database {name} allow_connections on")  # type: ignore[arg-type]
        until_s = time.monotonic() + 15
        while client.ask("heartbeat", session_id="s")[0] != 404:
            assert time.monotonic() < until_s
            time.sleep(0.05)
        assert site.ingress.refusal() is None
    said = site.out.getvalue()
    assert "Traceback" not in said and "terminat" not in said


def test_a_stop_lets_what_is_answered_end_and_nobody_in(
    server: Server, shared: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fresh_postgres(server)
    within, found = threading.Event(), list[Any]()
    real = Calls.answer

    def slow(*words: Any) -> Any:
        within.set()
        time.sleep(0.5)
        return real(*words)

    monkeypatch.setattr(Calls, "answer", slow)
    with site_of(url, shared.authority, tmp_path) as site:
        client, idle = site.client("w1"), site.client("w2")
        idle.line.connect()
        asking = threading.Thread(
            target=lambda: found.append(client.ask("heartbeat", session_id="s"))
        )
        asking.start()
        assert within.wait(5)
        began = time.monotonic()
        assert site.ingress.stop(5)
        assert time.monotonic() - began < 2
        asking.join(5)
        assert found[0][0] == 404 and client.headers["Connection"] == "close"
        with pytest.raises(OSError):
            site.client("w1").ask("heartbeat", session_id="s")
        with pytest.raises((OSError, ssl.SSLError, ValueError)):
            idle.ask("heartbeat", session_id="s")
        with psycopg.connect(url) as dba:
            left = (
                "select count(*) from pg_stat_activity"
                " where application_name = 'qinglong-ingress' and datname = current_database()"
            )
            assert dba.execute(left).fetchone() == (0,)
    drop_postgres(server, url)


def test_a_login_with_more_or_less_than_a_worker_s_rights_is_refused(
    site: Site, tmp_path: Path
) -> None:
    from dataclasses import replace

    settings = replace(site.settings, dsn=site.dsn)
    with pytest.raises(NotReady, match="superuser"):
        Ingress(settings, Log("text", "info", site.out)).start()
    missing = replace(site.settings, key=tmp_path / "none.key")
    with pytest.raises(NotReady, match=r"none\.key: No such file"):
        Ingress(missing, Log("text", "info", site.out)).start()
    taken = replace(site.settings, listen=("127.0.0.1", site.ingress.port))
    with pytest.raises(OSError, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use"):
        Ingress(taken, Log("text", "info", site.out)).start()
