"""How `run` comes to its run: equal ones meet in one, and a lost connection is waited for."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from qinglong_sql.cli import joining
from qinglong_sql.cli.joining import admit, joined, patiently
from qinglong_sql.cli.progress import Silent
from qinglong_sql.errors import NotReady
from qinglong_sql.package import Package, load_package
from qinglong_sql.store import Store, open_store
from qinglong_sql.store.postgres import PostgresStore
from tests import acting
from tests.engines import Engine
from tests.proxy import Loss, in_front_of
from tests.shell import Shell, ended

WITHIN_S = 60


@pytest.fixture
def store(engine: Engine) -> Iterator[Store]:
    """By the real clock: two of them are open at once."""
    with closing(open_store(engine.dsn)) as opened:
        yield opened


def target(store: Store) -> dict[str, Any]:
    (row,) = store.read("target_state", package_key="nightly", kind="workflow")
    return row


def together(dsn: str, each: Callable[[Store, threading.Barrier], str], count: int) -> list[str]:
    """What each of so many threads with a store of its own came to."""
    barrier, found = threading.Barrier(count, timeout=WITHIN_S), []

    def one() -> None:
        with closing(open_store(dsn)) as opened:
            found.append(each(opened, barrier))

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    assert len(found) == count, "one of them raised"
    return found


class Held:
    """A store of which everybody looks for an open run before anybody starts one."""

    def __init__(self, store: Store, barrier: threading.Barrier) -> None:
        self.store = store
        self.barrier = barrier

    def read(self, view: str, /, **which: Any) -> list[dict[str, Any]]:
        found = self.store.read(view, **which)
        if view == "open_run":
            assert found == []
            self.barrier.wait()
        return found

    def call(self, step: str, /, **params: object) -> list[dict[str, Any]]:
        return self.store.call(step, **params)


def test_equal_runs_that_find_none_at_one_moment_are_one(store: Store, engine: Engine) -> None:
    acting.publish(store, {"a": []})
    of = target(store)

    def each(opened: Store, barrier: threading.Barrier) -> str:
        return str(joined(Held(opened, barrier), of, '{"k":"1"}')["run_id"])  # type: ignore[arg-type]

    first = set(together(engine.dsn, each, 3))
    assert len(first) == 1 == len(store.read("run_state"))
    for run_id in first:
        acting.cancel(store, run_id)
        acting.converge(store, run_id)
    second = set(together(engine.dsn, each, 3))
    assert len(second) == 1 and not second & first
    assert joined(store, of, '{"k":"1"}')["run_id"] in second
    assert joined(store, of, '{"k":"2"}')["run_id"] not in second | first
    assert len(store.read("run_state")) == 3


def test_a_run_whose_key_has_ended_meanwhile_is_started_after_it(store: Store) -> None:
    acting.publish(store, {"a": []})
    of, runs = target(store), []
    for _ in range(3):
        runs.append(joined(_Blind(store), of, "{}")["run_id"])  # type: ignore[arg-type]
        acting.cancel(store, runs[-1])
        acting.converge(store, runs[-1])
    assert len(set(runs)) == 3


class _Blind:
    """A store in which no run of before is seen: a clock that was set back hides the last."""

    def __init__(self, store: Store) -> None:
        self.call = store.call

    def read(self, view: str, /, **which: Any) -> list[dict[str, Any]]:
        return []


def test_two_commands_at_one_moment_are_one_run(engine: Engine, tmp_path: Path) -> None:
    shell = Shell(tmp_path, engine.dsn, {"QINGLONG_STATE_DIR": str(tmp_path / "state")})
    shell.write("jobs.yaml", "package: p\ntasks: {t: {run: 'echo x >> ran; sleep 3'}}\n")
    both = [
        shell.begin("run", "jobs.yaml", "t", "--input", "k=1", output=tmp_path / name)
        for name in ("one", "two")
    ]
    codes = [ended(process) for process in both]
    said = [(tmp_path / name).read_text() for name in ("one", "two")]
    assert codes == [0, 0], said
    assert (tmp_path / "ran").read_text() == "x\n", said
    assert sum("going on with run" in words for words in said) == 1


@pytest.fixture
def package(tmp_path: Path) -> Package:
    path = tmp_path / "p.yaml"
    path.write_text("package: p\ntasks: {t: {run: 'true'}}\n")
    return load_package(path)


@pytest.mark.parametrize("loss", ["command", "answer"])
@pytest.mark.parametrize("key", [None, "mine"])
def test_a_connection_that_is_lost_on_the_way_to_a_run_is_waited_for(
    loss: Loss, key: str | None, postgres_dsn: str, package: Package
) -> None:
    (proxy, behind), seen = in_front_of(postgres_dsn), set()
    assert behind != postgres_dsn
    with closing(PostgresStore(behind)) as store:
        for after in range(8):
            proxy.lose(loss, after)
            row = patiently(
                lambda: admit(store, package, "task", "t", "{}", key, Silent(), ""), Silent()
            )
            seen.add(row["run_id"])
    lost = proxy.lost
    proxy.close()
    assert len(seen) == 1 and lost >= 4
    with closing(open_store(postgres_dsn)) as store:
        assert len(store.read("run_state")) == 1


def test_it_is_waited_for_a_minute_and_what_time_cannot_mend_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, slept = [0.0], []
    monkeypatch.setattr(joining.time, "monotonic", lambda: clock[0])

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(joining.time, "sleep", sleep)

    def away() -> None:
        raise psycopg.errors.AdminShutdown("terminating connection")

    with pytest.raises(psycopg.errors.AdminShutdown):
        patiently(away, Silent())
    assert sum(slept) == 60

    def never() -> None:
        raise NotReady("no schema")

    with pytest.raises(NotReady):
        patiently(never, Silent())
    assert sum(slept) == 60
