"""A failover while everybody works: all leave the node that was demoted, and nothing is lost."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from qinglong_sql.port_postgres import PostgresPort
from qinglong_sql.store import last_host, open_store
from qinglong_sql.store.link import NotPrimary, connect
from qinglong_sql.store.pooled import PooledStore, open_pool
from qinglong_sql.store.postgres import PostgresStore
from tests import acting, server, standby
from tests.controls import LOGIN, Process
from tests.nodes import Nodes, in_thread, nodes_here
from tests.site import opened
from tests.tended import Tended

COMMANDS = 30  # of each person, at least


@pytest.fixture
def failing() -> Iterator[Nodes]:
    with nodes_here() as found:
        yield found


def test_all_leave_a_node_that_was_demoted_although_it_answers(
    failing: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B007, B198, B200: nobody breaks a connection here; who does not look, stays for good."""
    with ExitStack() as stack:
        site = stack.enter_context(opened(failing.dsn(first="primary"), tmp_path))
        site.publish("a: {run: 'echo a >> witness; while [ ! -e go ]; do sleep 0.1; done'}\n"
                     "b: {run: 'echo b >> witness', needs: [a]}")  # fmt: skip
        port = PostgresPort(
            failing.dsn("worker_login", first="primary"), name="w1", lease_ms=30_000
        )
        worker = Tended(site, port)
        stack.callback(worker.close)
        control = Process(failing.dsn(LOGIN, first="primary"), tmp_path)
        stack.enter_context(closing(control))
        login = failing.dsn("worker_login", first="primary")
        pool = stack.enter_context(open_pool(login, size=2, within_s=10, program="ingress"))
        ingress = stack.enter_context(closing(PooledStore(pool)))
        assert all(ingress.clock() > 0 for _ in range(4)), "each connection has been seen"
        run_id = site.start()
        worker.until(lambda: site.lines("witness") == ["a"], "a runs")
        control.ready()
        before = site.store.read("event_log", run_id=run_id)

        demoted = failing.primary
        failing.fail_over()
        assert control.ended(within_s=60) == 6, control.text()
        assert "stopping for the supervisor" in control.lines("fence")[-1]["message"]
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            ingress.clock()
        assert on_port(ingress, failing.primary.port)

        other = site.start("another")  # a person's command, on a connection to the demoted node
        assert on_port(site.store, failing.primary.port)
        site.path("go").touch()
        assert worker.finish(run_id) == "succeeded" and worker.finish(other) == "succeeded"
        assert site.lines("witness").count("a") == 2, "one execution of each run"
        assert len(site.attempts(run_id)) == 2
        events = site.store.read("event_log", run_id=run_id, order="sequence")
        assert [row["sequence"] for row in events] == list(range(1, len(events) + 1))
        assert events[: len(before)] == sorted(before, key=lambda row: row["sequence"])
        assert acting.unbroken(site.store)

        # what was the primary comes back, and nobody has fenced it
        standby.make_read_only(demoted, on=False)
        with (
            closing(connect(server.dsn(demoted))) as old,
            pytest.raises(NotPrimary, match="on timeline 1, from before the promotion to 2"),
        ):
            old.meet(port._store._place)
        for known in ({}, last_host._answered):  # who knows none asks it first, and leaves it
            monkeypatch.setattr(last_host, "_answered", dict(known))
            port._store._hang_up()
            assert on_port(port._store, failing.primary.port)
        assert worker.stop() == "stopped"


def test_commands_all_through_a_promotion_are_done_or_told(failing: Nodes) -> None:
    """B198: the check of the host may be right and the first write too late."""
    with closing(open_store(failing.dsn())) as store:
        acting.publish_model(store, acting.model({"work": acting.task()}))
    done: dict[str, str] = {}
    over = threading.Event()

    def person(number: int) -> int:
        """Commands, each on its own connection but for every second, which has looked before."""
        told = count = 0
        while not over.is_set() or count < COMMANDS:
            count += 1
            key = f"{number}-{count}"
            try:
                with closing(PostgresStore(failing.dsn())) as store:
                    if count % 2:
                        store.clock()
                        time.sleep(0.01)  # and is promoted, or demoted, meanwhile
                    done[key] = acting.start(store, "task", key)
            except psycopg.OperationalError as error:
                assert "read-only" in str(error), error
                told += 1
        return told

    people = [in_thread(partial(person, number)) for number in range(3)]
    standby.until(lambda: len(done) > COMMANDS)
    failing.fail_over()
    over.set()
    for thread, _ in people:
        thread.join(60)
    assert all(isinstance(found[0], int) for _, found in people), people
    with closing(PostgresStore(failing.dsn())) as store:
        runs = {row["run_id"] for row in store.read("run_state")}
        assert runs == set(done.values()) and len(runs) == len(done)
        for run_id in runs:
            rows = store.read("event_log", run_id=run_id)
            assert sorted(row["sequence"] for row in rows) == list(range(1, len(rows) + 1))
        assert acting.unbroken(store)


def on_port(store: Any, port: int) -> bool:
    """Whether a store works there, as soon as it does again."""

    def works() -> bool:
        try:
            store.call("register_worker", **REGISTER)
        except psycopg.OperationalError:
            return False
        with store._connected() as connection:
            return bool(connection.info.port == port)

    standby.until(works)
    return True


REGISTER: dict[str, Any] = {
    "p_worker_id": "other", "p_session_id": "s", "p_queues": '["nothing"]', "p_slots": 1,
    "p_self_fencing": 1, "p_grace_ms": 2_000,
}  # fmt: skip
