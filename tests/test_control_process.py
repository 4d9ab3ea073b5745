"""Real control processes: what they do, how each boot is refused, how they end (DESIGN §7)."""

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from qinglong_sql.store import open_store
from tests import acting, pgbouncer, server
from tests.binaries import default
from tests.controls import GROUPS, LOGIN, Process, login_of
from tests.server import Server
from tests.shell import Shell
from tests.test_control import BOOT, STOP

# With a server that is gone, a pgbouncer lets who asks wait for 2 minutes unless it is told less.
BOUNCED_S = 5


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def begun(stack: ExitStack, dsn: str, folder: Path, *words: str, **env: str) -> Process:
    return stack.enter_context(closing(Process(dsn, folder, *words, **env)))


def publish_ticking(store: Any) -> None:
    trigger = {"cron": "* * * * * *", "kind": "task", "misfire": "fire_once", "overlap": "allow",
               "target": "work", "tz": "Europe/Berlin"}  # fmt: skip
    model = acting.model({"work": acting.task(), "tick": acting.task(queue="far")},
                         {"flow": acting.workflow({"a": [], "b": ["a"]})})  # fmt: skip
    triggers = {"ticking": trigger | {"target": "tick"}}
    acting.publish_model(store, model | {"triggers": triggers})


def test_a_process_admits_fires_is_watched_executes_nothing_and_stops(
    postgres_dsn: str, postgres_server: Server, stack: ExitStack, tmp_path: Path
) -> None:
    store = stack.enter_context(closing(open_store(postgres_dsn)))
    publish_ticking(store)
    one = begun(stack, stack.enter_context(login_of(postgres_dsn)), tmp_path).ready()
    assert one.parts("boot") == [name for name in BOOT if name != "door"]
    assert one.get("/livez")[0] == one.get("/readyz")[0] == 200
    run_id = acting.start(store)
    claimed = lambda: store.read("attempt_state", run_id=run_id, status="claimed")  # noqa: E731
    one.until(claimed, "an attempt is admitted", 5)

    def work() -> bool:
        """As a worker that asks again when a cycle had the run, which it passes over."""
        acting.finish(store, run_id)
        return acting.statuses(store, run_id)["a"] == "succeeded"

    one.until(work, "step a is done")
    one.until(lambda: acting.statuses(store, run_id) == {"a": "succeeded", "b": "ready"} and
              claimed(), "the frontier has moved on", 5)  # fmt: skip
    one.until(lambda: len(store.read("run_state", target_key="tick")) >= 2, "it fires", 10)
    times = [row["scheduled_at_ms"] for row in store.read("run_state", target_key="tick")]
    assert len(set(times)) == len(times) and all(at % 1000 == 0 for at in times)
    assert {row["status"] for row in store.read("attempt_state", step_key="main")} == {"claimed"}
    status, text = one.get("/metrics")
    assert status == 200 and "qinglong_sql_ready 1.0" in text
    assert re.search(r'qinglong_sql_cycles_total\{lifecycle="scheduler",outcome="applied"\} [1-9]',
                     text), text  # fmt: skip
    assert "qinglong_sql_sample_success 1.0" in text and "qinglong_sql_pool_connections 4.0" in text
    with psycopg.connect(postgres_dsn) as dba:
        who = (
            "select usename, count(*) from pg_stat_activity where application_name = %s group by 1"
        )
        found = dba.execute(who, ["qinglong-control"]).fetchall()
        assert found == [(LOGIN, 4)] or postgres_server.entry  # a pgbouncer's sessions are its own
    assert one.stop() == 0
    assert one.parts("stop") == [name for name in STOP if name != "door"]
    assert one.lines()[-1]["message"] == "stopped" and one.get("/livez")[0] == 0
    cycles = one.lines("cycle")
    assert {line["lifecycle"] for line in cycles} == {"scheduler"}
    assert all(any(part.get("applied") for part in line["stages"].values()) for line in cycles)
    assert not one.lines("trouble") and acting.unbroken(store)


FAILURES = {
    "a changed body": (
        "create or replace function ql.now_ms() returns bigint language plpgsql volatile"
        " set search_path = pg_catalog, pg_temp as 'begin return 7; end'",
        "function ql.now_ms(): body is changed",
    ),
    "a grant too many": (
        "grant select on ql.run to ql_reader",
        "table ql.run: ql_reader has SELECT too many",
    ),
    "a grant too few": (
        "revoke select on ql.run_state from ql_reader",
        "view ql.run_state: ql_reader lacks SELECT",
    ),
    "an object that is missing": ("drop view ql.violation", "view ql.violation is missing"),
    "sessions that may only read": (
        "alter database {} set default_transaction_read_only = on",
        "sessions are read-only here",
    ),
}


def refused(folder: Path, dsn: str, *words: str) -> str:
    """The last line of a boot that fails, all of which is told in the log; its exit code is 6."""
    done = Shell(folder, dsn)("control", "--listen", "127.0.0.1:0", *words)
    assert (done.returncode, done.stdout) == (6, ""), done.stderr
    last = done.stderr.splitlines()[-1].partition("error: not ready: ")[2]
    step = last.partition(":")[0]
    begun = BOOT[: BOOT.index(step)]
    said = [part for part in ("pool", "listener") if part in begun]
    assert re.findall(r"stopping: (\w+) ended", done.stderr) == said, done.stderr
    return last


@pytest.mark.parametrize("name", FAILURES)
def test_a_database_that_is_not_as_shipped_is_refused_with_what_is_wrong(
    postgres_dsn: str, stack: ExitStack, tmp_path: Path, name: str
) -> None:
    change, words = FAILURES[name]
    login = stack.enter_context(login_of(postgres_dsn))
    with psycopg.connect(postgres_dsn, autocommit=True) as dba:
        dba.execute(change.format(postgres_dsn.rpartition("/")[2]))  # type: ignore[arg-type]
    assert refused(tmp_path, login).startswith(f"readiness: QL503 {words}")


def test_a_login_or_an_address_that_is_not_right_is_refused(
    postgres_server: Server, postgres_dsn: str, empty_dsn: str, stack: ExitStack, tmp_path: Path
) -> None:
    login = stack.enter_context(login_of(postgres_dsn))
    narrow = stack.enter_context(login_of(postgres_dsn, "narrow_login", "ql_reader"))
    wide = stack.enter_context(login_of(postgres_dsn, "wide_login", f"{GROUPS}, ql_worker"))
    assert "ql_scheduler" in refused(tmp_path, narrow)
    assert "wide_login is a member of ql_worker" in refused(tmp_path, wide)
    assert "qinglong-sql migrate" in refused(tmp_path, empty_dsn)
    taken = f"127.0.0.1:{postgres_server.port}"
    words = refused(tmp_path, login, "--listen", taken)
    assert words == f"listener: cannot listen on {taken}: Address already in use"


def test_a_server_that_does_not_answer_or_let_it_in_is_told_and_no_password(
    postgres_dsn: str, stack: ExitStack, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    secret.write_text("s3cr3t-file\n")
    wrong = re.sub(r"//postgres:[^@]*@", "//postgres:s3cr3t-word@", postgres_dsn)
    failures = [
        (begun(stack, re.sub(r":\d+/", ":1/", wrong), tmp_path), "Connection refused"),
        (begun(stack, wrong, tmp_path), "authentication failed"),
        (begun(stack, wrong, tmp_path, "--password-file", str(secret)), "authentication failed"),
    ]
    for process, words in failures:
        assert process.ended() == 6, process.text()
        last = process.lines()[-1]
        assert (last["level"], last["event"], last["part"]) == ("error", "boot", "pool"), last
        assert last["message"].startswith("not ready: pool: PostgreSQL: "), last
        assert words in last["message"] and "s3cr3t" not in process.text()
        assert process.parts("stop") == ["listener"] and not process.lines("ready")


@pytest.fixture
def own_server(pytestconfig: pytest.Config) -> Iterator[Server]:
    one = server.start(default())
    server.install(server.dsn(one), folder=one.binaries.folder)
    if pytestconfig.getoption("--pgbouncer"):
        one = pgbouncer.in_front_of(one, wait_s=BOUNCED_S)
    yield one
    server.stop(one)


def test_a_postgres_that_hangs_does_not_keep_it_and_one_that_dies_ends_it(
    own_server: Server, stack: ExitStack, tmp_path: Path
) -> None:
    dsn = stack.enter_context(login_of(server.dsn(own_server)))
    short = ("--drain-timeout", "500ms", "--stop-timeout", "1s")
    dies, hangs, left = [begun(stack, dsn, tmp_path, *more) for more in (short, short, ())]
    for one in (dies, hangs, left):
        one.ready()
    children = Path(f"/proc/{own_server.child.pid}/task/{own_server.child.pid}/children")
    backends = list(map(int, children.read_text().split()))
    for pid in [own_server.child.pid, *backends]:  # no new ones either, which a pgbouncer would ask
        os.kill(pid, signal.SIGSTOP)
    time.sleep(1)  # a cycle of each lifecycle waits by now
    left.child.send_signal(signal.SIGTERM)
    assert hangs.stop(within_s=20) == 1
    assert hangs.lines()[-1]["late"] == ["cancellation", "scheduler"]
    assert {"pool", "listener"} <= set(hangs.parts("stop"))
    assert left.stop(within_s=5) == 130, "the second one is not waited for"
    killed = time.monotonic()
    own_server.child.kill()
    for pid in backends:
        os.kill(pid, signal.SIGCONT)
    assert dies.ended(20) == 6, dies.text()
    assert time.monotonic() - killed < 15
    assert [line["level"] for line in dies.lines("fence")] == ["error"]
    assert "the database is gone, stopping for the supervisor" in dies.lines("fence")[0]["message"]
