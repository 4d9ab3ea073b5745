"""A dump that was restored is the same database: the only way back has to work (migrations/README).

PostgreSQL reads a view's printed text when it restores, and may print it otherwise afterwards; the
decision views are written so that it does not.
"""

import subprocess
from collections.abc import Iterator

import psycopg
import pytest

from qinglong_sql.readiness import assert_shipped
from tests import around, server
from tests.binaries import environment
from tests.catalog import catalog
from tests.server import Server

pytestmark = pytest.mark.all_versions


@pytest.fixture
def restored(postgres_server: Server, postgres_dsn: str) -> Iterator[str]:
    folder = postgres_server.binaries.folder
    dumped = subprocess.run(
        [folder / "pg_dump", around.direct(postgres_dsn)], env=environment(folder), check=True,
        capture_output=True,
    ).stdout  # fmt: skip
    with psycopg.connect(server.dsn(postgres_server), autocommit=True) as dba:
        dba.execute("drop database if exists restored")
        dba.execute("create database restored template template0")
        again = around.direct(server.dsn(postgres_server, "restored"))
        subprocess.run(
            [folder / "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-d", again], input=dumped,
            env=environment(folder), check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        yield again
        dba.execute("drop database restored with (force)")


def test_a_restored_dump_is_ready(restored: str, postgres_dsn: str) -> None:
    with psycopg.connect(restored) as connection:
        assert_shipped(connection)
    assert catalog(restored) == catalog(postgres_dsn)
