"""Fresh databases of both engines, each a copy of a template made once a session.

Templates are made from the living `sql/` tree, so that a test sees the SQL that was just edited;
that the frozen revisions give the same is `test_migration`'s matter. `store` fixtures build on the
`engine` fixture of conftest.py.
"""

import contextlib
import itertools
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psycopg
from psycopg import sql
from pytest_postgresql.janitor import DatabaseJanitor

from qinglong_sql import migrate
from qinglong_sql.store.sqlite_shipped import newest_revision
from scripts import frozen
from tests import coverage
from tests.server import SQL_ROOT, Server, dsn, install

TEMPLATE = "ql_template"
NEWEST = newest_revision()
_number = itertools.count(1)
_connected: dict[tuple[int, str], psycopg.Connection] = {}


@dataclass(frozen=True, slots=True)
class Engine:
    """One fresh database with the schema in it."""

    kind: Literal["sqlite", "postgres"]
    dsn: str
    server: Server | None  # None on sqlite


def sqlite_template(folder: Path, sql_root: Path = SQL_ROOT) -> Path:
    """Install the living SQL into a file, to be copied by `fresh_sqlite`."""
    path = folder / "template.db"
    migrate.install_sqlite(path, frozen.frozen_text("sqlite", sql_root=sql_root), NEWEST)
    return path


def fresh_sqlite(folder: Path, template: Path) -> str:
    """`sqlite:///…` of a new copy of the template in `folder`."""
    path = folder / "qinglong.db"
    shutil.copyfile(template, path)
    return f"sqlite:///{path}"


def postgres_template(server: Server, sql_root: Path = SQL_ROOT) -> None:
    """Install the living SQL into the template database of a server."""
    janitor(server, TEMPLATE, template=None).init()
    url = dsn(server, TEMPLATE)
    install(url, folder=server.binaries.folder, sql_root=sql_root)
    coverage.prepare(url)


def fresh_postgres(server: Server, template: str | None = TEMPLATE) -> str:
    """URL, as superuser, of a new database; with template None it is empty. Drop it afterwards."""
    name = f"ql_{os.getpid()}_{next(_number)}"
    janitor(server, name, template=template).init()
    return dsn(server, name)


def drop_postgres(server: Server, url: str) -> None:
    """Drop a database of `fresh_postgres`, whoever is still connected to it."""
    found = re.search(r"/([a-z0-9_]+)$", url)
    assert found, url
    coverage.collect(url)
    janitor(server, found[1], template=None).drop()


class Janitor(DatabaseJanitor):
    """pytest-postgresql's, with one connection a server; a copy is of files and not of pages."""

    @contextlib.contextmanager
    def cursor(self, dbname: str | None = None) -> Iterator[psycopg.Cursor]:
        key = (os.getpid(), str(self.password))  # no fork uses ours, and no two servers share one
        if key not in _connected or _connected[key].closed:
            _connected[key] = psycopg.connect(
                host=self.host,
                port=self.port,
                user=self.user,
                password=self.password,
                dbname=dbname or self.maintenance_dbname,
                autocommit=True,
            )
        with _connected[key].cursor() as cursor:
            yield cursor

    def _build_create_database_sql(self) -> sql.Composed:
        return super()._build_create_database_sql() + sql.SQL(" strategy file_copy")


def janitor(server: Server, name: str, *, template: str | None) -> Janitor:
    """pytest-postgresql's janitor for a database of our own server."""
    return Janitor(
        user="postgres",
        host="127.0.0.1",
        port=server.port,
        dbname=name,
        template_dbname=template,
        password=server.password,
    )
