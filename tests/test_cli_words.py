"""Sentences of commands: which one to run, who may, why many steps failed alike."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from qinglong_sql.cli.steps import once, shortened, step_table
from qinglong_sql.edge_log import Log
from qinglong_sql.migrate import ALEMBIC_TABLE, VERSION_SCHEMA
from qinglong_sql.store import open_store
from tests import acting
from tests.engines import NEWEST
from tests.shell import Shell

SEVERAL = """\
package: p
tasks: {both: {run: x}, t: {run: x}}
workflows: {both: {steps: {a: {run: x}}}, w: {steps: {a: {run: x}}}}
"""


def test_one_of_several_must_be_named(sqlite_dsn: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path, sqlite_dsn)
    shell.write("jobs.yaml", SEVERAL)
    choices = "workflows both, w; tasks both, t; both is both, and means the workflow"
    done = shell("run", "jobs.yaml")
    assert done.returncode == 2 and f"say which one: {choices}" in done.stderr
    done = shell("run", "jobs.yaml", "nothing")
    assert done.returncode == 5 and f"there are: {choices}" in done.stderr
    assert shell("publish", "jobs.yaml").returncode == 0
    done = shell("start", "p", "nothing")
    assert done.returncode == 5 and f"there are: {choices}" in done.stderr
    assert shell("runs", "--json").stdout == "[]\n"


@pytest.mark.parametrize(
    "given",
    ['{"k":"a b","q":"it\'s"}', '{"n":{"deep":[1,2.5,null,"é"]}}', '{"a=b":"1"}',
     '{"k":"a\\nb"}'],
)  # fmt: skip
def test_the_command_of_a_retry_joins_it_whatever_its_input_is(
    given: str, sqlite_dsn: str, tmp_path: Path
) -> None:
    shell = Shell(tmp_path, sqlite_dsn)
    shell.write("jobs.yaml", "package: p\ntasks: {t: {run: 'test -e mended'}}\n")
    shell.write("input.json", given)
    assert shell("run", "jobs.yaml", "--input-file", "input.json").returncode == 1
    (old,) = json.loads(shell("runs", "--json").stdout)
    shown = shell("show", old["run_id"], "--input").stdout
    assert json.loads(shown) == json.loads(given)
    assert "input" not in json.loads(shell("show", old["run_id"], "--json").stdout)
    whole = json.loads(shell("show", old["run_id"], "--json", "--input").stdout)
    assert whole["input"] == json.loads(given)
    said = shell("retry", old["run_id"]).stdout.splitlines()
    line = next(one for one in said if one.startswith("to drive it: "))
    line = line.removeprefix("to drive it: ").removeprefix("an edge takes it, or ")
    line = line.replace("qinglong-sql", f"{sys.executable} -m qinglong_sql")
    (tmp_path / "mended").touch()
    done = subprocess.run(
        ["/bin/sh", "-c", line.replace("FILE", "jobs.yaml")],
        cwd=tmp_path, env=shell.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "going on with run" in done.stdout, line + done.stderr
    assert len(json.loads(shell("runs", "--json").stdout)) == 2


@pytest.fixture
def login(postgres_dsn: str) -> Iterator[str]:
    """A DSN of a login that is a member of the four groups of `run`."""
    with closing(psycopg.connect(postgres_dsn, autocommit=True)) as connection:
        stamp = ALEMBIC_TABLE.replace("alembic_version (", f"{VERSION_SCHEMA}.alembic_version (")
        with connection.transaction():
            made = f"create schema {VERSION_SCHEMA} authorization ql_migrator"
            connection.execute(made.encode())
            connection.execute("set local role ql_migrator")
            connection.execute(stamp.encode())
            for text in (
                f"insert into {VERSION_SCHEMA}.alembic_version values ('{NEWEST}')",
                f"grant usage on schema {VERSION_SCHEMA} to ql_reader",
                f"grant select on {VERSION_SCHEMA}.alembic_version to ql_reader",
            ):
                connection.execute(text.encode())
        connection.execute("create role four login password 'four'")
        connection.execute("grant ql_reader, ql_admission, ql_scheduler, ql_worker to four")
        try:
            yield f"postgresql://four:four@{postgres_dsn.rpartition('@')[2]}"
        finally:
            connection.execute("drop owned by four")
            connection.execute("drop role four")


def test_status_and_doctor_say_the_same_of_the_revision(login: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path, login, {"QINGLONG_STATE_DIR": str(tmp_path / "state")})
    for command in ("status", "doctor"):
        done = shell(command)
        assert done.returncode == 0, done.stderr
        assert f"revision {NEWEST}" in " ".join(done.stdout.split())


def test_who_may_purge_is_named(login: str, postgres_dsn: str, tmp_path: Path) -> None:
    with closing(open_store(postgres_dsn)) as store:
        acting.publish(store, {"a": []})
        run_id = acting.start(store)
        acting.cancel(store, run_id)
        acting.converge(store, run_id)
    shell = Shell(tmp_path, login, {"QINGLONG_STATE_DIR": str(tmp_path / "state")})
    done = shell("purge", "--older-than", "1ms", "--yes")
    assert done.returncode == 5 and "it needs `grant ql_operator to LOGIN`" in done.stderr


def test_a_word_is_never_cut() -> None:
    assert shortened("a bc  def", 4) == "a bc …"
    assert shortened("a bcdef gh", 4) == "a bcdef …"
    assert shortened("abcdef", 4) == "abcdef"
    assert shortened("abcdef g", 4) == "abcdef …"
    assert shortened("x" * 1000, 100) == "x" * 100 + "…"


def test_what_many_steps_share_is_told_once_with_its_count() -> None:
    long = "it could not be started: cannot run /opt/tool/of/ours: no such file"
    reasons = [("a", long), ("b", "it was stopped"), ("c", long), ("d", long), ("e", "")]
    assert once(reasons) == [f"{long} (3 steps)", "it was stopped", "as a", "as a", ""]
    assert once(reasons[:3]) == [long, "it was stopped", long]
    needs = [(key, "a step that it needs did not succeed") for key in "abcdefgh"]
    assert once(needs[:7]) == [needs[0][1]] * 7
    assert once(needs)[::7] == [f"{needs[0][1]} (8 steps)", "as a"]
    steps = [
        {"step_key": key, "status": "failed", "attempt_count": 1, "started_at_ms": 1,
         "finished_at_ms": 2, "result_code": "executor_start_failed"}
        for key in "abcd"
    ]  # fmt: skip
    error = "cannot run " + "/very/long/path" * 9 + ": no such file"
    attempts = [{"step_key": key, "error": error, "exit_code": None} for key in "abcd"]
    said = step_table(steps, attempts)
    assert said.count("cannot run") == 1 and said.count("as a") == 3
    assert "no such file (4 steps)" in " ".join(said.split())


def test_a_quiet_edge_says_faults_alone() -> None:
    said = io.StringIO()
    log = Log("json", True, said)
    for event in ("begin", "note", "open", "published", "purged", "fault", "trouble", "folder"):
        log.say(event, "words")
    told = [json.loads(line)["event"] for line in said.getvalue().splitlines()]
    assert told == ["fault", "trouble", "folder"]
