"""What goes wrong around a command: one clear line, its exit code, and no secret in it."""

import json
import os
import re
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from qinglong_sql.cli import COMMANDS
from qinglong_sql.cli.exits import Exit, told_as
from qinglong_sql.scheduler import Cycle, StageFailed, Turn
from tests.binaries import run_tool
from tests.engines import NEWEST
from tests.server import SQL_ROOT, Server, dsn
from tests.shell import Shell
from tests.site import kill_all_of

PACKAGE = """\
package: nightly
workflows:
  etl:
    steps:
      one: {run: "pwd; echo one"}
      two: {run: "sleep 0.3; echo two", needs: [one]}
"""
BAD = """\
package: x
workflows:
  w:
    steps:
      a: {run: "true", needs: [b, zz]}
      b: {run: "true", needs: [a], timeout: 3x}
"""


@pytest.fixture
def shell(sqlite_dsn: str, tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path, sqlite_dsn)
    shell.write("jobs.yaml", PACKAGE)
    try:
        yield shell
        shell.nothing_is_left()
    finally:
        kill_all_of(tmp_path)


# --- files and words


def test_all_faults_of_a_file_are_told_together(shell: Shell) -> None:
    shell.write("bad.yaml", BAD)
    done = shell("check", "bad.yaml", "--json")
    assert done.returncode == 2
    told = json.loads(done.stdout)
    assert told["ok"] is False
    assert {(one["code"], one["key"], one["line"]) for one in told["errors"]} == {
        ("cycle", "workflows.w.steps.a.needs[0]", 5),
        ("unknown_need", "workflows.w.steps.a.needs[1]", 5),
        ("bad_duration", "workflows.w.steps.b.timeout", 6),
    }
    for words in ("check", "run", "publish", "graph"):
        done = shell(words, "bad.yaml")
        assert done.returncode == 2 and not done.stdout
        for code, place in (("cycle", "5:"), ("unknown_need", "5:"), ("bad_duration", "6:")):
            assert re.search(rf"^bad\.yaml:{place}\d+: .* \({code}\)$", done.stderr, re.M), (
                done.stderr
            )
    assert json.loads(shell("runs", "--json").stdout) == []


def test_a_file_that_cannot_be_read_is_one_line(shell: Shell) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as strange:
        strange.bind(str(shell.folder / "strange.yaml"))
        for words in ("check", "run", "publish", "graph"):
            done = shell(words, "no.yaml")
            said = (done.returncode, done.stdout, done.stderr)
            if words in ("run", "publish"):
                done = shell(words, "-")
                assert done.returncode == 2 and "standard input has no folder" in done.stderr
            assert said == (2, "", "no.yaml: No such file or directory\n")
            done = shell(words, "strange.yaml")
            assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
            if words != "graph":
                done = shell(words, ".")
                assert done.returncode == 2 and "is a directory" in done.stderr
    if os.geteuid() != 0:
        shell.write("closed.yaml", PACKAGE, mode=0)
        assert shell("check", "closed.yaml").stderr == "closed.yaml: Permission denied\n"


def test_a_file_in_another_folder_runs_there(shell: Shell) -> None:
    shell.write("inner/jobs.yaml", PACKAGE)
    assert shell("run", "inner/jobs.yaml").returncode == 0
    (run,) = json.loads(shell("runs", "--json").stdout)
    assert shell("logs", run["run_id"], "one").stdout == f"{shell.folder}/inner\none\n"


def test_a_target_that_is_not_there_is_refused_with_the_choices(shell: Shell) -> None:
    for words, said in (
        (("run", "jobs.yaml", "nope"), "no workflow or task 'nope'; there are: workflows etl"),
        (("graph", "jobs.yaml", "nope"), "no workflow or task 'nope'; there are: workflows etl"),
        (("start", "nope"), "no active package 'nope'; `qinglong-sql publish FILE` makes one"),
    ):
        done = shell(*words)
        assert done.returncode == 5 and said in done.stderr
    shell("publish", "jobs.yaml")
    done = shell("start", "nightly", "nope")
    assert (
        done.returncode == 5
        and "has no workflow or task 'nope'; there are: workflows etl" in done.stderr
    )
    done = shell("start", "nightly", "--key", "")
    assert done.returncode == 5 and "run key" in done.stderr


def test_wrong_usage_is_exit_2(shell: Shell) -> None:
    for words in (
        ("nope",), ("run",), ("run", "jobs.yaml", "--lease-ms", "1"), ("runs", "--limit", "0"),
        ("runs", "--status", "nope"), ("graph", "jobs.yaml", "--format", "gif"),
        ("run", "jobs.yaml", "--slots", "0"), ("show",), ("runs", "--dsn", "sqlite:///"),
        ("run", "jobs.yaml", "--input", "a=1", "--input", "a=2"),
    ):  # fmt: skip
        done = shell(*words)
        assert done.returncode == 2 and "Error: " in done.stderr, words


def test_help_says_what_matters() -> None:
    shell = Shell(Path.cwd(), "sqlite:///never.db")
    said = shell.process("--help").stdout
    for word in (*COMMANDS, "Exit codes", "3 cancelled", "130", "check FILE"):
        assert word in said
    assert "..." not in said.partition("Commands:")[2]
    matters = {
        "init": "--json", "check": "--json", "schema": "JSON Schema", "import-crontab": "--output",
        "run": "Ctrl-C", "edge": "--packages", "publish": "Runs that are open", "start": "--key",
        "resume": "generation", "cancel": "Nothing new starts", "retry": "RUN",
        "attempt": "declare-stopped", "workers": "--json", "status": "--json", "runs": "--status",
        "show": "RUN", "watch": "Ctrl-C",
        "events": "--follow", "explain": "waits for", "logs": "--follow", "graph": "mermaid",
        "migrate": "--sql", "doctor": "Exit 6", "purge": "--older-than", "backup": "FILE",
        "restore": "FILE", "completion": "bash", "cron": "next",
        "schedules": "--between", "trigger": "resume", "control": "--listen",
        "ca": "issue", "worker": "--drain-timeout", "ingress": "TERM", "withdraw": "no new runs",
    }  # fmt: skip
    assert matters.keys() == COMMANDS.keys()
    no_json = ("schema", "edge", "control", "completion", "cron", "trigger", "ca", "attempt",
               "worker", "ingress")  # fmt: skip
    no_database = ("init", "check", "schema", "import-crontab", "completion", "cron", "trigger",
                   "ca", "attempt")  # fmt: skip
    for name, word in matters.items():
        said = shell(name, "--help").stdout
        assert word in said and ("--json" in said or name in no_json), name
        assert "--dsn" in said or name in no_database, name


# --- databases


def test_without_a_database_the_way_out_is_told_and_nothing_is_made(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "sqlite:///.qinglong/qinglong.db")
    for words in (
        ("runs",), ("show", "ru1"), ("events", "ru1"), ("explain", "ru1"), ("logs", "ru1", "a"),
        ("cancel", "ru1"), ("graph", "ru1"), ("start", "p"), ("doctor",), ("backup", "copy.db"),
    ):  # fmt: skip
        done = shell(*words)
        assert done.returncode == 6 and done.stderr.count("\n") == 1
        assert done.stderr == (
            f"not ready: QL503 no database {tmp_path}/.qinglong/qinglong.db; is this the right"
            " folder? else --dsn sqlite:////absolute/path or QINGLONG_DSN; a new one:"
            " qinglong-sql run FILE, or migrate\n"
        )
    done = shell("runs", "--dsn", f"sqlite:///{tmp_path}/no.db")
    assert f"no database {tmp_path}/no.db; is this the right path?" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_of_ours_is_not_ready(shell: Shell) -> None:
    with closing(sqlite3.connect(shell.folder / "other.db")) as other:
        other.execute("create table theirs (a)")
    shell.write("full.txt", "no database, " * 100)
    for name in ("other.db", "full.txt"):
        before = (shell.folder / name).read_bytes()
        for words in (("runs",), ("doctor",), ("run", "jobs.yaml"), ("migrate",)):
            done = shell(*words, "--dsn", f"sqlite:///{name}")
            assert done.returncode == 6, done.stderr
            assert done.stderr.startswith("not ready: ") and done.stderr.count("\n") == 1
        assert (shell.folder / name).read_bytes() == before
    done = shell("runs", "--dsn", "sqlite:///nope/nope.db")
    assert done.returncode == 6


def test_migrate_installs_once_and_prints_its_sql(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "sqlite:///new/folder/a.db")
    assert shell("migrate").stdout == f"now at revision {NEWEST}\n"
    assert shell("migrate").stdout == f"already at revision {NEWEST}\n"
    assert json.loads(shell("migrate", "--json").stdout) == {"before": NEWEST, "after": NEWEST}
    script = shell("migrate", "--sql").stdout
    with closing(sqlite3.connect(tmp_path / "offline.db", isolation_level=None)) as connection:
        connection.executescript(script)
    assert shell("doctor", "--dsn", "sqlite:///offline.db").returncode == 0
    done = shell("migrate", "--to", "0999")
    assert done.returncode == 5 and "no revision '0999'; there are: 0001" in done.stderr


def test_migrate_installs_postgres_as_its_migrator(
    postgres_server: Server, empty_dsn: str, tmp_path: Path
) -> None:
    login = dsn(postgres_server, empty_dsn.rsplit("/", 1)[1], user="ql_migrator")
    shell = Shell(tmp_path, login)
    done = shell("doctor")
    assert done.returncode == 6 and "run `qinglong-sql migrate`" in done.stderr
    done = shell("migrate")
    assert done.returncode == 6 and "sql/postgres/role.sql" in done.stderr, done.stderr
    folder = postgres_server.binaries.folder
    role = str(SQL_ROOT / "postgres" / "role.sql")
    run_tool(folder, "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-d", empty_dsn, "-f", role)
    assert shell("migrate").stdout == f"now at revision {NEWEST}\n"
    assert shell("migrate").stdout == f"already at revision {NEWEST}\n"
    assert shell("migrate", "--sql").stdout.startswith("BEGIN;")
    ready = f"ready: postgres, revision {NEWEST}\n"
    assert shell("doctor", "--dsn", empty_dsn).stdout.startswith(ready)


def test_a_login_is_told_what_it_lacks(
    postgres_server: Server, postgres_dsn: str, tmp_path: Path
) -> None:
    name = f"cli_{os.getpid()}"
    shell = Shell(tmp_path, dsn(postgres_server, postgres_dsn.rsplit("/", 1)[1], user=name))
    shell.write("jobs.yaml", PACKAGE)
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute(f"create role {name} login".encode())
        try:
            for words in (("runs",), ("doctor",), ("publish", "jobs.yaml")):
                done = shell(*words)
                assert done.returncode == 5 and "permission denied" in done.stderr
                assert "grant ql_reader" in done.stderr and done.stderr.count("\n") == 1
            here = postgres_dsn.rsplit("/", 1)[1]
            admin.execute(f'grant create on database "{here}" to ql_migrator'.encode())
            for given in ("", "ql_reader"):
                if given:
                    admin.execute(f"grant {given} to {name}".encode())
                done = shell("migrate")
                assert done.returncode == 5 and done.stderr.count("\n") == 1, done.stderr
                assert "permission denied" in done.stderr and "grant ql_migrator to" in done.stderr
            admin.execute(f"grant ql_reader to {name}".encode())
            assert shell("runs").stdout == "no runs\n"
            done = shell("doctor")
            assert done.returncode == 0 and "violations: none" in done.stdout, done.stderr
            for given, lacks in (
                ("ql_admission", "ql_scheduler, ql_worker"), ("ql_worker", "ql_scheduler")
            ):  # fmt: skip
                admin.execute(f"grant {given} to {name}".encode())
                done = shell("run", "jobs.yaml")
                assert done.returncode == 5 and f"the rights of {lacks}: " in done.stderr
                assert "grant ql_reader, ql_admission, ql_scheduler, ql_worker" in done.stderr
            assert admin.execute("select count(*) from ql.package").fetchone() == (0,)
            admin.execute(f"grant ql_scheduler to {name}; revoke ql_reader from {name}".encode())
            done = shell("run", "jobs.yaml")
            assert done.returncode == 5 and "the rights of ql_reader: " in done.stderr
            admin.execute(f"grant ql_reader to {name}".encode())
            done = shell("run", "jobs.yaml")
            assert done.returncode == 0, done.stderr
            shell.nothing_is_left()
        finally:
            kill_all_of(tmp_path)
            admin.execute(f"drop role {name}".encode())


def test_a_lost_database_is_not_ready_wherever_it_is_noticed() -> None:
    lost = psycopg.OperationalError("connection failed: refused\nIs the server running?")
    staged = StageFailed("frontier", Cycle({}, Turn()))
    staged.__cause__ = lost
    words = "not ready: PostgreSQL: connection failed: refused"
    for error in (lost, staged):
        assert told_as(error) == (Exit.NOT_READY, words)
    assert told_as(RuntimeError("a bug")) is None
