"""A worker's own login: its steps and no others, and an end for everything that waits."""

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from qinglong_sql.certificate import WORKER_PATTERN
from qinglong_sql.errors import NotReady
from qinglong_sql.port import WORKER_STEPS, Away, Port, Shut, within_s
from qinglong_sql.port_postgres import PostgresPort
from qinglong_sql.store.steps import STEPS
from qinglong_sql.worker_settings import NAME
from tests.controls import login_of
from tests.middle import middle
from tests.site import opened
from tests.tended import Tended
from tests.test_style import imported

LOGIN = "worker_login"
LEASE_MS = 6_000  # an answer is waited for one second
DECIDES = {
    f"qinglong_sql.{name}"
    for name in ("stage", "scheduler", "cycle", "schedule", "control", "control_cycle", "drive")
}
STORES = {"sqlite3", "qinglong_sql.store.sqlite"}


@pytest.fixture
def login(postgres_dsn: str) -> Iterator[str]:
    with login_of(postgres_dsn, LOGIN, "ql_worker") as dsn:
        yield dsn


def test_a_worker_brings_nothing_that_decides() -> None:
    """DESIGN §8: frontier and admission are out of its reach in Python as they are in SQL."""
    names = ("worker", "tending", "port", "watched", "session", "remote", "papers", "shipping",
             "port_postgres", "worker_settings", "cli.worker", "ingress")  # fmt: skip
    found = imported(*(f"qinglong_sql.{name}" for name in names))
    assert not DECIDES & found
    alone = ("worker", "tending", "remote", "papers", "port_postgres")
    assert not (DECIDES | STORES) & imported(*(f"qinglong_sql.{name}" for name in alone))


def test_a_workers_name_is_what_a_certificate_may_say() -> None:
    assert NAME == WORKER_PATTERN


def test_no_call_takes_a_third_of_a_lease() -> None:
    for lease_ms in (5_000, 30_000, 300_000):
        connect_s, answer_s = within_s(lease_ms)
        assert connect_s + answer_s <= lease_ms / 3000
    assert within_s(300_000) == (3.0, 5.0)


def test_a_run_goes_to_its_end_with_nothing_but_a_login_of_ql_worker(
    postgres_dsn: str, login: str, tmp_path: Path
) -> None:
    with opened(postgres_dsn, tmp_path) as site:
        one = Tended(site, PostgresPort(login, name="w1", lease_ms=LEASE_MS))
        try:
            site.publish("a: {run: 'echo a >> witness'}\nb: {run: 'cat $QL_INPUT', needs: [a]}")
            run_id = site.start(text='{"who":"you"}')
            assert one.finish(run_id) == "succeeded"
            assert site.log(run_id, "b.2") == '{"input":{"who":"you"},"needs":{"a":null}}'
            assert one.stop() == "stopped" and one.lines("trouble") == []
        finally:
            one.close()


def test_only_steps_of_workers_go_through(login: str) -> None:
    port = PostgresPort(login, name="w1", lease_ms=LEASE_MS)
    for step in STEPS.keys() - WORKER_STEPS:
        with pytest.raises(KeyError):
            port.call(step)


def test_a_login_without_the_right_is_told_what_it_needs(postgres_dsn: str) -> None:
    with login_of(postgres_dsn, LOGIN, "ql_reader") as dsn:
        port = PostgresPort(dsn, name="w1", lease_ms=LEASE_MS)
        with pytest.raises(Shut, match="grant ql_worker to LOGIN"):
            heartbeat(port)
        port.close()


def test_a_database_of_an_older_revision_is_told(empty_dsn: str) -> None:
    port = PostgresPort(empty_dsn, name="w1", lease_ms=LEASE_MS)
    with pytest.raises(NotReady, match=r"has no ql_worker\.heartbeat_worker"):
        heartbeat(port)
    port.close()


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def test_a_server_that_hangs_is_not_waited_for(login: str, postgres_dsn: str) -> None:
    port = PostgresPort(login, name="w1", lease_ms=LEASE_MS)
    register(port)
    with psycopg.connect(postgres_dsn, autocommit=True) as dba:
        # by the login, since the sessions of a pgbouncer have no name of ours
        text = "select pid from pg_stat_activity where usename = %s"
        backends = [int(pid) for (pid,) in dba.execute(text, (conninfo_to_dict(login)["user"],))]
        assert backends
        signal_all(backends, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(Away, match="no answer in time"):
                heartbeat(port)
            assert 0.8 < time.monotonic() - began < 2
            assert heartbeat(port) == "s1"  # by another connection
        finally:
            signal_all(backends, signal.SIGCONT)
    port.close()


def test_a_line_that_forgets_answers_is_given_up_in_time(login: str) -> None:
    found = re.search(r":(\d+)/", login)
    assert found
    with middle(int(found[1])) as between:
        port = PostgresPort(
            login.replace(f":{found[1]}/", f":{between.port}/"), name="w1", lease_ms=LEASE_MS
        )
        register(port)
        between.held = True
        began = time.monotonic()
        with pytest.raises(Away):
            heartbeat(port)
        assert time.monotonic() - began < 2
        between.held = False
        assert heartbeat(port) == "s1"
        between.close()
        with pytest.raises(Away):
            heartbeat(port)
        port.close()


def test_nobody_there_is_told_without_a_password() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
    port = PostgresPort(
        f"postgresql://u:hidden@127.0.0.1:{number}/db", name="w1", lease_ms=LEASE_MS
    )
    with pytest.raises(Away, match="refused") as raised:
        heartbeat(port)
    assert "hidden" not in str(raised.value)
    with pytest.raises(ValueError, match="cannot be read") as odd:
        PostgresPort("postgresql://u:hidden@/db?nothing=1", name="w1", lease_ms=LEASE_MS)
    assert "hidden" not in str(odd.value)


def test_a_password_is_handed_over_apart(login: str) -> None:
    port = PostgresPort(login, name="w1", lease_ms=LEASE_MS, password="hidden")
    register(port)  # the server trusts loopback
    port.close()
    port.close()
    with pytest.raises(RuntimeError):
        heartbeat(port)


def register(port: Port) -> None:
    port.call(
        "register_worker", p_worker_id="w1", p_session_id="s1", p_queues='["default"]', p_slots=1,
        p_self_fencing=1, p_grace_ms=2_000,
    )  # fmt: skip


def heartbeat(port: Port) -> str:
    return str(port.call("heartbeat_worker", p_worker_id="w1", p_session_id="s1")[0]["session_id"])
