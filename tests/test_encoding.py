"""Every text is UTF-8 on its way and in the database, whatever the environment or a role say."""

import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests import server
from tests.server import Server
from tests.shell import Shell

PACKAGE = "package: night\nname: 夜\nworkflows: {w: {steps: {a: {run: 'echo 日本 – ü'}}}}\n"


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "EUC_JP"])
def test_the_environment_says_nothing_about_it(
    postgres_dsn: str, tmp_path: Path, encoding: str
) -> None:
    shell = Shell(tmp_path, postgres_dsn)
    shell.write("p.yaml", PACKAGE)
    done = shell("run", "p.yaml", env={"PGCLIENTENCODING": encoding})
    assert done.returncode == 0, done
    told = shell("runs", "--json", env={"PGCLIENTENCODING": encoding})
    assert [run["status"] for run in json.loads(told.stdout)] == ["succeeded"], told
    with psycopg.connect(postgres_dsn, client_encoding="UTF8") as connection:
        found = connection.execute("select count(*) from ql.task_revision where spec like '%日本%'")
        assert found.fetchone() == (1,)


@pytest.fixture
def other(postgres_server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database in another encoding."""
    made = f"create database other encoding '{request.param}' locale 'C' template template0"
    with psycopg.connect(server.dsn(postgres_server), autocommit=True) as dba:
        dba.execute("drop database if exists other")
        dba.execute(made.encode())
        yield server.dsn(postgres_server, "other")
        dba.execute("drop database other with (force)")


@pytest.mark.parametrize("other", ["SQL_ASCII", "LATIN1"], indirect=True)
def test_a_database_in_another_encoding_is_refused_with_the_way_out(
    other: str, tmp_path: Path
) -> None:
    done = Shell(tmp_path, other)("migrate")
    told = " ".join(done.stderr.split())
    assert done.returncode == 6 and "database other has the encoding" in told, done
    assert "encoding 'UTF8' template template0" in told and "Traceback" not in told
