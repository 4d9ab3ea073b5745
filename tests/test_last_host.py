"""Of several hosts the one that answered last is asked first (qinglong_sql/store/last_host.py)."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from qinglong_sql.store import last_host
from qinglong_sql.store.last_host import several
from qinglong_sql.store.link import HOST_S, connect
from tests import standby
from tests.shell import Shell


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_answered", "_refused"):
        monkeypatch.setattr(last_host, name, {})
    for name in last_host.VARIABLES.values():
        monkeypatch.delenv(name, raising=False)


def end(host: str, port: int) -> Any:
    """A connection to there, as far as it is asked."""
    return cast(Any, SimpleNamespace(info=SimpleNamespace(host=host, port=port)))


@pytest.mark.parametrize(
    ("dsn", "answered", "first"),
    [
        ("host=a,b,c", ("b", 5432), {"host": "b,a,c"}),
        ("host=a,b,c", ("a", 5432), {}),
        ("host=a,b port=1,2", ("b", 2), {"host": "b,a", "port": "2,1"}),
        ("host=a,b port=7", ("b", 7), {"host": "b,a", "port": "7,7"}),
        ("host=a,a port=1,2", ("a", 2), {"host": "a,a", "port": "2,1"}),
        ("host=a,b port=1,", ("b", 5432), {"host": "b,a", "port": ",1"}),
        ("hostaddr=10.0.0.1,10.0.0.2", ("10.0.0.2", 5432), {"hostaddr": "10.0.0.2,10.0.0.1"}),
        (
            "host=a,b hostaddr=10.0.0.1,10.0.0.2", ("b", 5432),
            {"host": "b,a", "hostaddr": "10.0.0.2,10.0.0.1"},
        ),
        ("host=/run/a,/run/b", ("/run/b", 5432), {"host": "/run/b,/run/a"}),
        ("host=a,b", ("elsewhere", 5432), {}),
    ],
)  # fmt: skip
def test_the_host_that_answered_comes_first(
    dsn: str, answered: tuple[str, int], first: dict[str, str]
) -> None:
    found = several(dsn, {})
    assert found is not None and found.in_order() == {}
    found.answered(end(*answered))
    again = several(dsn, {})
    assert again is not None and again.in_order() == first


@pytest.mark.parametrize("dsn", ["", "host=a", "host=a port=1", "host=a,b port=1,2,3"])
def test_where_there_is_no_choice_nothing_is_kept(dsn: str) -> None:
    assert several(dsn, {}) is None


def test_a_host_that_was_refused_comes_last_even_when_it_answers_again() -> None:
    found = several("host=a,b,c", {})
    assert found is not None
    found.answered(end("c", 5432))
    found.refused(end("a", 5432))
    assert found.in_order() == {"host": "c,b,a"}
    found.answered(end("a", 5432))
    assert found.in_order() == {"host": "b,c,a"}


def test_other_hosts_and_another_kind_of_server_have_an_answer_of_their_own() -> None:
    found = several("host=a,b", {"target_session_attrs": "read-write"})
    assert found is not None
    found.answered(end("b", 5432))
    for dsn, options in (
        ("host=a,b", {"target_session_attrs": "standby"}),
        ("host=a,b,c", {"target_session_attrs": "read-write"}),
    ):
        other = several(dsn, options)
        assert other is not None and other.in_order() == {}


def test_hosts_of_the_environment_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "a,b")
    monkeypatch.setenv("PGPORT", "1,2")
    found = several("dbname=q", {})
    assert found is not None
    found.answered(end("b", 2))
    assert found.in_order() == {"host": "b,a", "port": "2,1"}


def test_a_silent_first_host_costs_a_process_its_time_once(postgres_dsn: str) -> None:
    with standby.silent_port() as port:
        dsn = postgres_dsn.replace("127.0.0.1:", f"127.0.0.1:{port},127.0.0.1:")
        took = list[float]()
        for _ in range(3):
            began = time.monotonic()
            connect(dsn, connect_timeout=2).close()
            took.append(time.monotonic() - began)
    assert took[0] >= 2 and max(took[1:]) < 1, took


def test_a_command_asks_a_silent_host_once(postgres_dsn: str, tmp_path: Path) -> None:
    """It makes several connections: of its store, for the server's words, for the revision."""
    with standby.silent_port() as port:
        dsn = postgres_dsn.replace("127.0.0.1:", f"127.0.0.1:{port},127.0.0.1:")
        began = time.monotonic()
        done = Shell(tmp_path, dsn)("status")
        took = time.monotonic() - began
    assert done.returncode == 0 and HOST_S <= took < 2 * HOST_S, (took, done)
