"""The client's side of a failover: two real nodes, and every process and command finds its way.

DESIGN §7, §8 and DOMAIN §8. Without pgbouncer in between: this is about what a connection leads to.
"""

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from qinglong_sql.errors import WAY_TO_PRIMARY
from qinglong_sql.host_words import NOBODY_WRITES
from qinglong_sql.migrate import upgrade
from qinglong_sql.port_postgres import PostgresPort
from qinglong_sql.store import last_host, open_store
from qinglong_sql.store.link import InDoubt, NotPrimary, Place, connect, reach
from qinglong_sql.store.pooled import PooledStore, open_pool
from qinglong_sql.store.postgres import PostgresStore
from tests import acting, server, standby
from tests.binaries import default, run_tool
from tests.controls import GROUPS, LOGIN, Process
from tests.server import Server
from tests.shell import Shell
from tests.site import opened
from tests.tended import Tended

COMMANDS = 30  # of each person, at least
NOBODY = "nobody_is_called_so"
PACKAGE = "package: p\nworkflows:\n  w:\n    steps:\n      a: {run: 'true'}\n"
ENVIRONMENT = ("PGHOST", "PGPORT", "PGSERVICE", "PGSERVICEFILE", "PGTARGETSESSIONATTRS")
READ_WRITE = {"target_session_attrs": "read-write", "connect_timeout": 5}


# -- which hosts, without a server


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("dsn", "added"),
    [
        ("postgresql://h1/q", {}),
        ("postgresql:///q", {}),
        ("postgresql://h1,h2/q", READ_WRITE),
        ("postgresql://h1:1,h2:2/q", READ_WRITE),
        ("postgresql:///q?host=h1,h2", READ_WRITE),
        ("postgresql:///q?hostaddr=10.0.0.1,10.0.0.2", READ_WRITE),
        ("host=h1,h2 dbname=q", READ_WRITE),
        ("postgresql://h1,h2/q?connect_timeout=9", {"target_session_attrs": "read-write"}),
        ("postgresql://h1,h2/q?target_session_attrs=any", {"connect_timeout": 5}),
        ("postgresql://h1,h2/q?target_session_attrs=standby", {"connect_timeout": 5}),
    ],
)
def test_several_hosts_mean_the_one_that_takes_writes_unless_the_dsn_says_another(
    bare: pytest.MonkeyPatch, dsn: str, added: dict[str, object]
) -> None:
    assert reach(dsn) == added


def test_hosts_of_the_environment_and_of_a_service_file_count_as_well(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    services = tmp_path / "services"
    services.write_text("[two]\nhost=s1,s2\nport=1,2\n[far]\nhost=s1,s2\n"
                        "target_session_attrs=standby\n")  # fmt: skip
    bare.setenv("PGSERVICEFILE", str(services))
    of_two = {"host": "s1,s2", "port": "1,2", **READ_WRITE}
    assert reach("postgresql:///q?service=two") == of_two
    assert "target_session_attrs" not in reach("postgresql:///q?service=far")
    bare.setenv("PGSERVICE", "two")
    assert reach("postgresql:///q") == of_two
    bare.delenv("PGSERVICE")
    bare.setenv("PGHOST", "e1,e2")
    assert reach("postgresql:///q")["target_session_attrs"] == "read-write"
    assert reach("postgresql://alone/q") == {}
    bare.setenv("PGTARGETSESSIONATTRS", "any")
    assert "target_session_attrs" not in reach("postgresql:///q")


def test_a_timeline_never_goes_back() -> None:
    def row(timeline: int | None, *, recovery: bool = False, only: bool = False) -> dict[str, Any]:
        return {"in_recovery": recovery, "read_only": only, "timeline": timeline}

    place = Place()
    assert not place.meet(row(3)) and not place.meet(row(3))
    assert place.meet(row(4)), "promoted: what is connected to the one before is left"
    for late in (row(3), row(None, recovery=True), row(4, only=True)):
        with pytest.raises(NotPrimary) as caught:
            place.meet(late)
        assert caught.value.sqlstate == "25006"
    assert not place.meet(row(4))


# -- two nodes, as they are


class Nodes:
    """A primary and a standby, or what has become of them."""

    def __init__(self, primary: Server, other: Server) -> None:
        self.primary, self.other = primary, other

    def dsn(self, login: str = "", *, first: str = "other") -> str:
        """Both nodes, the one that takes no writes in front."""
        names = (self.other, self.primary) if first == "other" else (self.primary, self.other)
        where = ",".join(f"127.0.0.1:{one.port}" for one in names)
        return f"postgresql://{login or f'postgres:{self.primary.password}'}@{where}/postgres"

    def caught_up(self) -> None:
        standby.caught_up(self.primary, self.other)

    def fail_over(self) -> None:
        """The primary is made read-only and the standby promoted: both answer all the time."""
        standby.make_read_only(self.primary)
        self.caught_up()  # nothing is lost: what was acknowledged is there
        standby.promote(self.other)
        self.primary, self.other = self.other, self.primary


@contextlib.contextmanager
def nodes_here() -> Iterator[Nodes]:
    with standby.pair(default()) as pair:
        nodes = Nodes(*pair)
        role = server.SQL_ROOT / "postgres" / "role.sql"
        run_tool(default().folder, "psql", "-Xq", "-d", server.dsn(nodes.primary), "-f", str(role))
        upgrade(nodes.dsn())
        standby.dba(nodes.primary, f"create role {LOGIN} login in role {GROUPS}")
        standby.dba(nodes.primary, "create role worker_login login in role ql_worker")
        nodes.caught_up()
        yield nodes


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


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    found: list[object] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, found


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


# -- a failover while everybody works


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
