"""The client's side of two real nodes: every command finds the one that takes writes, or is told.

DESIGN §7, §8 and DOMAIN §8. Without pgbouncer in between: this is about what a connection leads to.
"""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from qinglong_sql.errors import WAY_TO_PRIMARY
from qinglong_sql.host_words import NOBODY_WRITES
from qinglong_sql.store import open_store
from qinglong_sql.store.link import InDoubt
from qinglong_sql.store.pooled import open_pool
from qinglong_sql.store.postgres import PostgresStore
from tests import acting, server, standby
from tests.controls import LOGIN, Process
from tests.nodes import PACKAGE, Nodes, in_thread, nodes_here
from tests.server import Server
from tests.shell import Shell

NOBODY = "nobody_is_called_so"


@pytest.fixture(scope="module")
def calm() -> Iterator[Nodes]:
    """Two nodes whose roles no test changes."""
    with nodes_here() as found:
        yield found


@pytest.fixture
def hang(calm: Nodes) -> Iterator[Nodes]:
    """Commits wait for a standby that does not exist."""
    standby.make_synchronous(calm.primary, NOBODY)
    try:
        yield calm
    finally:
        standby.make_synchronous(calm.primary, "")


def test_every_kind_of_command_goes_to_the_node_that_takes_writes(
    calm: Nodes, tmp_path: Path
) -> None:
    shell = Shell(tmp_path, calm.dsn())
    file = shell.write("package.yaml", PACKAGE.replace("p\n", "everywhere\n", 1))
    for words in (["migrate"], ["publish", file], ["start", "everywhere", "--key", "k"], ["runs"],
                  ["doctor"], ["trigger", "--help"]):  # fmt: skip
        done = shell(*words)
        assert done.returncode == 0, (words, done.stderr)
    ports = ",".join(str(one.port) for one in (calm.other, calm.primary))
    env = {"PGHOST": "127.0.0.1,127.0.0.1", "PGPORT": ports, "PGUSER": "postgres",
           "PGPASSWORD": calm.primary.password, "PGDATABASE": "postgres"}  # fmt: skip
    done = Shell(tmp_path, "postgresql://", env)("start", "everywhere", "--key", "k2")
    assert done.returncode == 0 and "created" in done.stdout, done.stderr


def test_a_standby_alone_is_read_and_refuses_what_writes_with_the_way_out(
    calm: Nodes, tmp_path: Path
) -> None:
    shell = Shell(tmp_path, server.dsn(calm.other))
    assert shell("runs").returncode == 0
    file = shell.write("package.yaml", PACKAGE)
    commands: list[list[object]] = [
        ["publish", file],
        ["worker", "--dsn", server.dsn(calm.other, user="worker_login"), "--name", "w1"],
        ["control", "--dsn", server.dsn(calm.other, user=LOGIN), "--listen", "127.0.0.1:0"],
        ["publish", file, "--dsn", calm.dsn().replace(f":{calm.primary.port}/", ":1/")],
    ]
    for words in commands:
        done = shell(*words)
        assert done.returncode == 6, (words, done.stderr)
        way = NOBODY_WRITES if words[-2:-1] == ["--dsn"] else WAY_TO_PRIMARY
        assert way in done.stderr, done.stderr
        assert calm.primary.password not in done.stderr
    assert f"127.0.0.1:{calm.other.port}: session is read-only; 127.0.0.1:1: " in done.stderr


def test_a_person_is_told_which_server_answers_and_that_it_takes_no_writes(
    calm: Nodes, tmp_path: Path
) -> None:
    lack, at = "a standby: it takes no writes", f"127.0.0.1:{calm.other.port}"
    alone = Shell(tmp_path, server.dsn(calm.other))
    first = alone("status").stdout.splitlines()[0]
    assert alone("status").returncode == 0 and first.startswith(f"! {lack}"), first
    assert lack in " ".join(alone("status").stdout.split("database", 1)[1].split())
    said = json.loads(alone("status", "--json").stdout)["database"]
    assert (said["answered_by"], said["takes_writes"]) == (at, False)
    done = alone("doctor")
    assert done.returncode == 6 and done.stdout.startswith(f"not ready: postgres, {lack}, rev")
    assert done.stderr == f"not ready: PostgreSQL: {lack}; {WAY_TO_PRIMARY}\n"
    done = alone("doctor", "--json")
    assert done.returncode == 6 and json.loads(done.stdout)["takes_writes"] is False

    asked = Shell(tmp_path, f"{calm.dsn(first='primary')}?target_session_attrs=prefer-standby")
    done = asked("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"ready to read: postgres, {at} answers, {lack}, rev"), done
    both = Shell(tmp_path, calm.dsn())
    there = f"127.0.0.1:{calm.primary.port} answers, revision"
    for command in ("status", "doctor"):
        done = both(command)
        assert done.returncode == 0 and there in " ".join(done.stdout.split()), done
    assert "standby" not in both("status").stdout


@pytest.fixture
def silent() -> Iterator[int]:
    """A port of loopback on which nobody ever answers, as of a host that is cut off."""
    with standby.silent_port() as port:
        yield port


def test_a_first_host_that_is_silent_keeps_no_process_from_its_start(
    calm: Nodes, silent: int
) -> None:
    """All connections of a boot step are made within its time, although each asks that host."""
    dsn = server.dsn(calm.primary).replace("127.0.0.1:", f"127.0.0.1:{silent},127.0.0.1:")
    pool = open_pool(dsn, size=4, within_s=10)
    try:
        with pool.connection() as connection:
            assert connection.info.port == calm.primary.port
    finally:
        pool.close()


# -- a commit that no standby has


def give_up_waiting(primary: Server, stop: str = "pg_cancel_backend") -> None:
    """What an administrator does with commits that hang."""
    standby.until(lambda: standby.waiting(primary))
    for pid in standby.waiting(primary):
        standby.dba(primary, f"select {stop}(%s)", pid)


@pytest.mark.parametrize("stop", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_commit_whose_wait_was_cut_short_is_not_done_and_neither_is_its_replay(
    hang: Nodes, stop: str
) -> None:
    """B191: the row is seen here and lost with this node; a replay alone would write nothing."""
    standby.make_synchronous(hang.primary, "")
    with closing(PostgresStore(server.dsn(hang.primary))) as store:
        acting.publish_model(store, acting.model({"work": acting.task()}))
        standby.make_synchronous(hang.primary, NOBODY)

        def start() -> object:
            return store.call("start_run", p_package_key="nightly", p_kind="task",
                              p_target_key="work", p_run_key=stop, p_input="{}")  # fmt: skip

        thread, found = in_thread(start)
        standby.until(lambda: standby.waiting(hang.primary) or found)
        assert not found, found
        give_up_waiting(hang.primary, stop)
        thread.join(60)
        assert isinstance(found[0], psycopg.OperationalError), found
        assert isinstance(found[0], InDoubt) or stop == "pg_terminate_backend"
        count = "select count(*) from ql.run where run_key = %s"
        assert standby.dba(hang.primary, count, stop) == 1, "it is committed here"
        thread, found = in_thread(start)
        standby.until(lambda: standby.waiting(hang.primary))
        assert not found, "it answers for what no standby has"
        standby.make_synchronous(hang.primary, "")
        thread.join(60)
        assert found[0][0]["outcome"] == "existing", found  # type: ignore[index]


def test_a_person_is_told_that_it_is_in_doubt_and_how_to_repeat_it(
    hang: Nodes, tmp_path: Path
) -> None:
    standby.make_synchronous(hang.primary, "")
    shell = Shell(tmp_path, server.dsn(hang.primary))
    assert shell("publish", shell.write("package.yaml", PACKAGE)).returncode == 0
    standby.make_synchronous(hang.primary, NOBODY)
    thread, found = in_thread(lambda: shell.process("start", "p"))
    give_up_waiting(hang.primary)
    thread.join(60)
    (done,) = found
    assert (done.returncode, done.stdout) == (6, ""), done  # type: ignore[attr-defined]
    said = done.stderr  # type: ignore[attr-defined]
    key = re.search(r"in doubt: .*the same command again with --key (\S+) is safe", said)
    assert key, said
    standby.make_synchronous(hang.primary, "")
    again = shell("start", "p", "--key", key[1])
    assert again.returncode == 0 and "existing" in again.stdout, again


def test_who_interrupts_such_a_wait_is_told_as_well(hang: Nodes, tmp_path: Path) -> None:
    shell = Shell(tmp_path, server.dsn(hang.primary))
    file = shell.write("package.yaml", PACKAGE.replace("p\n", "interrupted\n", 1))
    child = subprocess.Popen(
        [sys.executable, "-m", "qinglong_sql", "publish", file], env=shell.environment(),
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    standby.until(lambda: standby.waiting(hang.primary) or child.poll() is not None)
    child.send_signal(signal.SIGINT)
    out, said = child.communicate(timeout=60)
    assert (child.returncode, out) == (130, ""), said
    assert said.startswith("interrupted: ") and "the same command again is safe" in said


def test_who_waits_for_a_commit_is_told_once_why_and_what_is_safe(
    hang: Nodes, tmp_path: Path
) -> None:
    standby.make_synchronous(hang.primary, "")
    shell = Shell(tmp_path, hang.dsn())
    assert shell("publish", shell.write("package.yaml", PACKAGE)).returncode == 0
    standby.make_synchronous(hang.primary, NOBODY)
    errors = tmp_path / "errors"
    with errors.open("w") as file:
        child = subprocess.Popen(
            [sys.executable, "-m", "qinglong_sql", "start", "p"], env=shell.environment(),
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=file, text=True,
        )  # fmt: skip
        standby.until(lambda: errors.read_text().endswith("\n") or child.poll() is not None)
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=60)
    assert (child.returncode, out) == (130, "")
    told, ended = errors.read_text().splitlines()
    key = re.search(r"^waiting: .*synchronous standby.*Ctrl-C is safe.* with --key (\S+)$", told)
    assert key, told
    assert ended.endswith(f"; the same command again with --key {key[1]} is safe"), ended
    standby.make_synchronous(hang.primary, "")
    again = shell("start", "p", "--key", key[1])
    assert again.returncode == 0 and "existing" in again.stdout, again
    assert again.stderr.count("waiting") == 0


def test_a_stop_does_not_wait_for_a_commit_that_hangs(hang: Nodes, tmp_path: Path) -> None:
    """B199: each lifecycle has its time, and the exit code says that it was not enough."""
    standby.make_synchronous(hang.primary, "")
    with closing(open_store(server.dsn(hang.primary))) as store:
        acting.publish_model(store, acting.model({"work": acting.task()}))
        acting.start(store, "task")
        standby.make_synchronous(hang.primary, NOBODY)
        words = ("--drain-timeout", "300ms", "--stop-timeout", "300ms", "--boot-timeout", "20s")
        one = Process(hang.dsn(LOGIN), tmp_path, *words)
        with closing(one):
            one.ready().until(lambda: standby.waiting(hang.primary), "a commit hangs")
            began = time.monotonic()
            assert one.stop(within_s=15) == 1, one.text()
            assert time.monotonic() - began < 10
            assert "scheduler" in one.lines("end")[-1]["late"]
        standby.make_synchronous(hang.primary, "")
        standby.until(lambda: not standby.waiting(hang.primary))
        assert acting.unbroken(store)
