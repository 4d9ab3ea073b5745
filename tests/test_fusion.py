"""The fusion: what a tick says and what follows from it is one transaction (DESIGN §6).

History is the same as when each is sent by itself, which is what PostgreSQL does; what raises
leaves nothing and is done again alone; a KILL anywhere inside leaves nothing either.
"""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from qinglong_sql.drive import fusion
from qinglong_sql.errors import Fenced
from qinglong_sql.store import Call, Contended, Store
from qinglong_sql.store.sqlite import SqliteStore
from qinglong_sql.worker import Worker
from tests import acting
from tests.site import Site, alive, wait
from tests.wrapped import Wrapped

CHAIN = "one: {run: 'echo one >> witness'}\ntwo: {run: 'echo two >> witness', needs: [one]}"
WIDE = """
    a: {run: 'echo a >> witness'}
    b: {run: 'echo b >> witness'}
    c: {run: 'echo c >> witness', needs: [a]}
    d: {run: 'echo d >> witness', needs: [a, b]}
    e: {run: 'echo e >> witness', needs: [c, d]}
    """


def written(store: Store, work: Callable[[], object]) -> int:
    """How many transactions of a store changed its file meanwhile, by what another one sees."""
    assert isinstance(store, SqliteStore)
    count = 0
    with closing(sqlite3.connect(store.path)) as other:
        version = [other.execute("pragma data_version").fetchone()]

        def commit() -> None:
            nonlocal count
            own()
            version.append(other.execute("pragma data_version").fetchone())
            count += version[-1] != version[-2]

        own, store._commit = store._commit, commit  # type: ignore[method-assign]
        try:
            work()
        finally:
            del store._commit
    return count


def ended(worker: Worker) -> bool:
    """Whether every launcher has gone: its last word waits to be read."""
    launchers = [held.execution for held in worker.held.values() if held.execution]
    return not any(alive(one.identity["launcher_pid"]) for one in launchers)


def test_a_step_that_ended_and_the_lease_of_the_next_are_one_commit(site: Site) -> None:
    site.publish(CHAIN)
    run_id = site.start()
    worker, fuse = site.worker(), fusion(site.store)
    site.drive(worker, lambda: len(worker.held) == 1)
    wait(lambda: ended(worker), "the first step ended")
    assert written(site.store, lambda: worker.settle(fuse, lease=True)) == 1
    assert site.step(run_id, "one")["status"] == "succeeded"
    assert site.step(run_id, "two")["status"] == "ready"
    (held,) = worker.held.values()
    assert (held.step_key, held.phase) == ("two", "leased")
    assert site.finish(run_id, worker)["status"] == "succeeded"


def test_starts_share_the_commit_of_what_else_is_told(site: Site) -> None:
    site.publish("slow: {run: 'echo $$ > pid; sleep 60'}\n" + CHAIN)
    run_id = site.start()
    worker, fuse = site.worker(offers=1), fusion(site.store)
    site.drive(worker, lambda: {one.phase for one in worker.held.values()} >= {"live", "waiting"})
    (number,) = [held.number for held in worker.held.values() if held.phase == "waiting"]
    assert site.attempts(run_id)[number - 1]["status"] == "claimed"
    wait(lambda: site.lines("pid") or site.lines("witness"), "the first one runs")
    assert written(site.store, lambda: worker.settle(fuse, lease=True)) == 1
    assert site.attempts(run_id)[number - 1]["status"] == "starting"
    site.drive(worker, lambda: site.lines("witness") == ["one", "two"])
    worker.stop("shutdown", grace_ms=0)
    site.finish(run_id, worker)


def test_a_step_costs_at_most_three_commits(site: Site) -> None:
    site.publish(CHAIN)
    run_id = site.start()
    # three more: the session, the first admission, and a lease that nothing could be fused with
    assert written(site.store, lambda: site.finish(run_id)) <= 2 * 3 + 3
    assert site.store.read("violation") == []


def test_every_queue_is_served(site: Site) -> None:
    site.publish(
        "one: {run: 'echo one >> witness'}\n"
        "two: {run: 'echo two >> witness', needs: [one], queue: other}\n"
        "three: {run: 'echo three >> witness', needs: [two]}\n"
        "four: {run: 'echo four >> witness', needs: [two], queue: other}"
    )
    run_id = site.start()
    run = site.finish(run_id, site.worker(queues=["default", "other"]), idle_ms=60_000)
    assert run["status"] == "succeeded" and len(site.attempts(run_id)) == 4
    assert site.lines("witness")[:2] == ["one", "two"] and site.errors == []


# --- the same history


def reported(held: acting.Held, exit_code: int = 0) -> Call:
    text = acting.commands(held, how="exit", exit_code=exit_code, output=None, error=None)
    return "report_attempts", {"p_commands": text}


def lease_of(*names: str, session: str = "s1") -> Call:
    return "lease_attempts", {
        "p_worker_id": "w1", "p_session_id": session, "p_queue": "default",
        "p_offers": acting.offers(names), "p_lease_ms": acting.LEASE_MS, "p_run_id": None,
    }  # fmt: skip


def started(held: acting.Held) -> Call:
    return "start_attempts", {"p_commands": acting.commands(held, identity="pid 7")}


def follows(run_id: str) -> list[Call]:
    return [(step, {"p_run_id": run_id}) for step in ("advance_frontier", "admit_tasks")]


def told(store: Store, calls: list[Call]) -> None:
    """All of it in one transaction where there is such a thing, else each by itself."""
    together = getattr(store, "fuse", None)
    assert (together is None) == (store.engine == "postgres")
    if together is None:
        for step, params in calls:
            store.call(step, **params)
    else:
        assert together(calls) is not None


def test_history_is_the_same_on_both_engines(store: Store) -> None:
    run_id = acting.begun(store, {"a": [], "b": [], "c": ["a"], "d": ["b"]})
    held = acting.lease(store, "o1", "o2")
    acting.run(store, held["a"])
    mark = len(acting.events(store, run_id))
    told(
        store,
        [started(held["b"]), reported(held["a"]), *follows(run_id), lease_of("o3", "o4")],
    )
    assert acting.events(store, run_id, mark) == [
        "workflow.task_attempt.starting",
        "workflow.task_attempt.succeeded",
        "step.succeeded",
        "step.ready",
        "workflow.task_attempt_admitted",
        "workflow.task_dispatch_leased",
    ]
    mark = len(acting.events(store, run_id))
    told(store, [reported(held["b"], 1), *follows(run_id), lease_of("o4")])
    assert acting.events(store, run_id, mark) == [
        "step.running",
        "workflow.task_attempt.failed",
        "step.failed",
        "step.skipped",
    ]
    assert "frontier" not in acting.agenda(store, run_id)
    assert acting.unbroken(store)


# --- what raises


def test_what_raises_leaves_nothing(sqlite_dsn: str) -> None:
    store = SqliteStore(Path(sqlite_dsn.removeprefix("sqlite:///")))
    run_id = acting.begun(store, {"a": [], "b": ["a"]})
    held = acting.lease(store)["a"]
    acting.run(store, held)
    before = list(store._connection.iterdump())
    calls = [reported(held), *follows(run_id), lease_of("o2", session="another")]
    assert store.fuse(calls) is None
    with pytest.raises(Fenced):
        store.batch(calls)
    assert list(store._connection.iterdump()) == before
    assert store.fuse([*calls[:-1], lease_of("o2")])
    store.close()


def test_a_file_that_stays_locked_is_nobodys_fault(
    sqlite_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qinglong_sql.store.sqlite_lock.SQLITE_BUSY_MS", 20)
    store = SqliteStore(Path(sqlite_dsn.removeprefix("sqlite:///")))
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(Contended):
            store.fuse([("end_session", {"p_worker_id": "w", "p_session_id": "s"})])
    store.close()


def foreign(site: Site, statement: str) -> None:
    """Somebody else's hands in the file."""
    with closing(sqlite3.connect(site.dsn.removeprefix("sqlite:///"))) as other:
        other.execute(statement)
        other.commit()


POISON = """
create trigger poison before update on step_run
when new.run_id = '{}' and new.step_key = 'two' and new.status = 'ready' and old.status = 'pending'
begin select raise(abort, 'poisoned'); end
"""


def test_a_run_that_raises_is_redone_alone_and_holds_up_nobody(site: Site) -> None:
    site.publish(CHAIN)
    bad, good = site.start("bad"), site.start("good")
    foreign(site, POISON.format(bad))
    worker = site.worker()
    site.drive(worker, lambda: site.run(good)["status"] == "succeeded" and not worker.held)
    assert site.step(bad, "one")["status"] == "succeeded"
    assert site.step(bad, "two")["status"] == "pending"
    (fault,) = site.store.read("fault_state")
    assert (fault["run_id"], fault["stage"]) == (bad, "frontier")
    assert site.lines("witness").count("one") == 2 and site.errors == []
    foreign(site, "drop trigger poison")
    site.store.call("release_fault", p_run_id=bad, p_stage="frontier")
    assert site.finish(bad, worker)["status"] == "succeeded"
    assert site.lines("witness").count("two") == 2


class Unfused(Wrapped):
    """A store whose every transaction of several calls comes to nothing."""

    undone = 0

    def before(self, step: str, params: object) -> None:
        pass

    def _fuse(self, calls: object) -> None:
        self.undone += 1


def test_without_any_fusion_each_is_sent_alone(site: Site) -> None:
    site.publish(WIDE)
    store = Unfused(site.store)
    run_id = site.start()
    assert site.finish(run_id, site.worker(store=store))["status"] == "succeeded"
    assert store.undone and sorted(site.lines("witness")) == ["a", "b", "c", "d", "e"]
    assert site.store.read("violation") == [] and site.errors == []


# --- KILL inside it

KILLED = """
import os, signal, sys
from pathlib import Path
from qinglong_sql.drive import drive
from qinglong_sql.store import open_store
from qinglong_sql.worker import Worker

dsn, state, at = sys.argv[1:]
store, left = open_store(dsn), int(at)
fuse = store.fuse

def dying(calls):
    if "report_attempts" in dict(calls):
        def trace(statement):
            global left
            left -= 1
            if left == 0 or (left > 0 and statement.lower() == "commit"):
                os.kill(os.getpid(), signal.SIGKILL)
        store._connection.set_trace_callback(trace)
        fuse(calls)
        os.kill(os.getpid(), signal.SIGKILL)
    return fuse(calls)

store.fuse = dying
drive(store, Worker(store, Path(state)), lambda: False)
"""


def killed(site: Site, at: int) -> str:
    """A run whose process was killed at that statement of the first fusion, or after it for -1."""
    site.publish(CHAIN)
    run_id = site.start()
    argv = [sys.executable, "-c", KILLED, site.dsn, str(site.state), str(at)]
    home = str(Path(__file__).parent.parent)
    process = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": home})
    site.processes.append(process)
    assert process.wait(30) == -signal.SIGKILL
    return run_id


@pytest.mark.parametrize("at", [1, 2, 10, 40, 90, 140, 190, 10_000])
def test_a_kill_inside_it_leaves_nothing_and_nothing_runs_twice(site: Site, at: int) -> None:
    run_id = killed(site, at)
    assert [one["status"] for one in site.attempts(run_id)] in (["starting"], ["running"])
    assert site.step(run_id, "two")["status"] == "pending"
    assert site.finish(run_id)["status"] == "succeeded"
    assert site.lines("witness") == ["one", "two"]
    assert len(site.attempts(run_id)) == 2 and site.store.read("violation") == []


def test_a_kill_right_after_it_loses_nothing(site: Site) -> None:
    run_id = killed(site, -1)
    one, two = site.attempts(run_id)
    assert (one["status"], two["status"], two["lease_status"]) == ("succeeded", "claimed", "leased")
    began = time.monotonic()
    assert site.finish(run_id)["status"] == "succeeded"
    assert time.monotonic() - began < 10  # its offer is repeated, not waited for
    assert site.lines("witness") == ["one", "two"] and len(site.attempts(run_id)) == 2
