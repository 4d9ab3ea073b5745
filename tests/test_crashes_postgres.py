"""A backend terminated before, inside of and while it waits in a step: nothing of it is durable.

After the call and before its answer is test_answers' matter. `tests.stopping` says how; the long
proof (tests.prove.crashes) stops at every row.
"""

import threading
import time
from contextlib import ExitStack, closing

import psycopg
import pytest

from qinglong_sql.store import Call
from tests import acting
from tests.losing import Pair
from tests.pgbouncer import UNNOTICED
from tests.server import Server
from tests.stopping import STOPS, stop_everywhere, stopped
from tests.test_replay import PUBLISHED

STOPPED = 100  # times in a life, at least
WRITTEN = ("run", "run_input", "step_run", "run_event", "agenda")  # by an admission, in this order
START: Call = (
    "start_run",
    {
        "p_package_key": "nightly",
        "p_kind": "workflow",
        "p_target_key": "flow",
        "p_run_key": "one",
        "p_input": "{}",
    },
)


def test_a_step_that_is_stopped_anywhere_leaves_nothing(postgres_server: Server) -> None:
    told = list(stopped(postgres_server, step=6))
    assert [line for _, _, wrong in told for line in wrong] == []
    assert sum(count for _, count, _ in told) > STOPPED


def published(server: Server, stack: ExitStack) -> Pair:
    pair = Pair(server, stack, None)
    for store in (pair.direct, pair.calm):
        store.call("publish_package", **PUBLISHED)
    return pair


def test_a_backend_that_is_gone_before_the_call_leaves_nothing(postgres_server: Server) -> None:
    if postgres_server.entry:
        pytest.skip(UNNOTICED)
    with ExitStack() as stack:
        pair = published(postgres_server, stack)
        before = pair.rows[0].all()
        terminate(pair, pair.dsn)
        with pytest.raises(psycopg.OperationalError):
            pair.direct.call(START[0], **START[1])
        assert pair.rows[0].all() == before
        assert pair.direct.call(START[0], **START[1]) == pair.calm.call(START[0], **START[1])
        assert pair.parted() == ""


def terminate(pair: Pair, dsn: str) -> None:
    connection = pair.direct._connection
    assert connection
    with closing(psycopg.connect(dsn, autocommit=True)) as other:
        other.execute("select pg_terminate_backend(%s, 5000)", [connection.info.backend_pid])


@pytest.mark.parametrize("table", WRITTEN)
def test_a_backend_that_is_terminated_while_it_waits_leaves_nothing(
    table: str, postgres_server: Server
) -> None:
    with ExitStack() as stack:
        pair = published(postgres_server, stack)
        before, waited = pair.rows[0].all(), list[bool]()
        other = stack.enter_context(psycopg.connect(pair.dsn))
        other.execute(f"lock table ql.{table} in share mode")  # type: ignore[arg-type]

        def strike() -> None:  # nobody else waits in this database
            asked = (
                "select pg_terminate_backend(l.pid) from pg_locks as l where not l.granted"
                " and l.database = (select oid from pg_database where datname = current_database())"
            )
            end = time.monotonic() + 10  # the step itself gives up after a second
            while not waited and time.monotonic() < end:
                waited.extend(hit for (hit,) in other.execute(asked).fetchall())

        thread = threading.Thread(target=strike)
        thread.start()
        with pytest.raises(psycopg.errors.AdminShutdown):
            pair.direct.call(START[0], **START[1])
        thread.join()
        other.rollback()
        assert waited and pair.rows[0].all() == before
        assert pair.direct.call(START[0], **START[1]) == pair.calm.call(START[0], **START[1])
        assert pair.parted() == ""


def test_a_commit_in_two_is_found(postgres_server: Server) -> None:
    with ExitStack() as stack:
        pair = published(postgres_server, stack)
        control = stack.enter_context(psycopg.connect(pair.dsn, autocommit=True))
        control.execute(STOPS)
        run_id = acting.start(pair.calm, text="{}")
        wanted = pair.calm.call("admit_tasks", p_run_id=run_id)
        calls = [START, ("admit_tasks", {"p_run_id": run_id})]
        count, wrong = stop_everywhere(pair, control, calls, 1, wanted)
        assert count > 20 and any(line.startswith("at ") for line in wrong)
