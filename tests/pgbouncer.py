"""pgbouncer in transaction mode between the product and a server of ours: `pytest --pgbouncer`.

All connections go through it but those that the tests themselves make with psycopg or with
PostgreSQL's programs: they look and hold from outside. After each transaction whatever a session
could hold is taken from it, so that nothing works by the luck of getting the same one again.

It is Debian's program, found as PGBOUNCER says or where its package puts it. Its service is not
used: the package may as well be unpacked (`apt-get download pgbouncer; dpkg-deb -x`).
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg

from qinglong_sql.store.link import Link
from tests import server as servers
from tests.around import AROUND, direct
from tests.server import Server

SETTINGS = """
[databases]
* = host=127.0.0.1 port={server}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = hba
auth_hba_file = {folder}/hba
auth_file = {folder}/users
auth_user = postgres
auth_query = select rolname, coalesce(rolpassword, '') from pg_authid where rolname = $1
admin_users = postgres
pool_mode = transaction
server_round_robin = 1
server_reset_query_always = {always}
server_reset_query = {reset}
server_login_retry = 1
default_pool_size = {sessions}
query_wait_timeout = {wait_s}
max_client_conn = 500
ignore_startup_parameters = extra_float_digits,options
log_connections = 0
log_disconnections = 0
log_stats = 0
"""
# what `discard all` does but for the plans of functions, which are nobody's state and cost much
RESET = (
    "reset session authorization; reset all; deallocate all; close all; unlisten *;"
    " select pg_advisory_unlock_all(); discard sequences; discard temp"
)
# as the server has it: only its superuser has a password
HBA = "host all postgres 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"
START_S = 10
FIGURES = ("databases", "transactions", "queries")


@dataclass(slots=True)
class Pooler:
    """A running pgbouncer in front of one server."""

    server: Server
    port: int
    child: subprocess.Popen[bytes]
    log: Path

    def figures(self, database: str = "") -> dict[str, int]:
        """What has gone through it, to one database or to all: FIGURES."""
        rows = [row for row in self.show("stats") if row["database"] != "pgbouncer"]
        own = [row for row in rows if database in ("", row["database"])]
        return {
            "databases": len(own),
            "transactions": sum(int(row["total_xact_count"]) for row in own),
            "queries": sum(int(row["total_query_count"]) for row in own),
        }

    def show(self, what: str) -> list[dict[str, Any]]:
        """What its console shows: stats, servers, clients"""
        url = servers.dsn(self.server, "pgbouncer")
        with contextlib.closing(CONNECT(url, autocommit=True)) as console:
            cursor = console.execute(f"show {what}")  # type: ignore[arg-type]
            names = [column.name for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def stop(self) -> None:
        self.child.kill()
        self.child.wait()


CONNECT = psycopg.connect
LINK = vars(Link)["connect"]
UNNOTICED = "a pgbouncer takes another backend for one that is gone, and nobody notices"
_running: list[Pooler] = []


def of(server: Server) -> Pooler:
    """The pgbouncer in front of that server."""
    return next(one for one in _running if one.port == server.entry)


def find() -> Path | None:
    """The program, if it is here."""
    said = os.environ.get("PGBOUNCER")
    found = said or shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    return Path(found).resolve() if found else None


def in_front_of(
    server: Server, *, reset: str = RESET, sessions: int = 20, wait_s: int = 120
) -> Server:
    """The server with a pgbouncer of its own, through which `tests.server.dsn` leads from now on.

    reset: what is asked after each transaction; without it sessions keep what is left in them, as
    one in transaction mode has it by default. sessions: of each login and database, at most.
    wait_s: how long who asks may wait for one, such as when the server is gone.
    Raises servers.NoServer with its own words when it does not come up.
    """
    program = find()
    if program is None:
        raise servers.NoServer("no pgbouncer here: apt-get install pgbouncer, or set PGBOUNCER")
    user = servers._server_user()
    port = servers._free_port()
    folder = server.scratch / f"pgbouncer-{port}"
    folder.mkdir(mode=0o700)
    (folder / "hba").write_text(HBA, encoding="utf-8")
    (folder / "users").write_text(f'"postgres" "{server.password}"\n')
    (folder / "ini").write_text(
        SETTINGS.format(
            server=server.port,
            port=port,
            folder=folder,
            reset=reset,
            always=int(bool(reset)),
            sessions=sessions,
            wait_s=wait_s,
        )
    )
    if user:
        for path in (folder, *folder.iterdir()):
            os.chown(path, user.pw_uid, user.pw_gid)
        program = Path(shutil.copy2(program, folder.with_name(f"{folder.name}-program")))
    log = server.scratch / f"{folder.name}.log"
    child = servers.child(
        [program, folder / "ini"], log, user, end=signal.SIGKILL, cwd=server.scratch
    )
    pooler = Pooler(replace(server, entry=port), port, child, log)
    deadline = time.monotonic() + START_S
    while True:
        try:
            pooler.figures()
        except psycopg.OperationalError as error:
            if child.poll() is not None or time.monotonic() > deadline:
                pooler.stop()
                words = log.read_text(encoding="utf-8", errors="replace")[-2000:]
                raise servers.NoServer(f"pgbouncer did not start: {error}\n{words}") from error
            time.sleep(0.02)
        else:
            break
    _running.append(pooler)
    AROUND[f"127.0.0.1:{port}/"] = f"127.0.0.1:{server.port}/"
    psycopg.connect = _connect
    _instead(classmethod(_link))
    return pooler.server


def stop() -> dict[str, int]:
    """End all of this process; what has gone through them."""
    every = dict.fromkeys(FIGURES, 0) if _running else {}
    for one in _running:
        for name, count in one.figures().items():
            every[name] += count
        one.stop()
    _running.clear()
    AROUND.clear()
    psycopg.connect = CONNECT
    _instead(LINK)
    return every


def _instead(connect: Any) -> None:
    """How the product connects."""
    setattr(Link, "connect", connect)  # noqa: B010


def _connect(conninfo: str = "", **words: Any) -> psycopg.Connection[Any]:
    """psycopg.connect: direct for what tests do themselves, as it stands for the product.

    A product that would go around it is refused.
    """
    asks = sys._getframe(1).f_globals.get("__name__", "")
    if asks.startswith(("tests.", "pytest_postgresql.")):
        return CONNECT(direct(conninfo), **words)
    through(conninfo)
    return CONNECT(conninfo, **words)


def _link(kind: type[Link], conninfo: str = "", **words: Any) -> psycopg.Connection[Any]:
    """The product's own (qinglong_sql/store/link.py)."""
    through(conninfo)
    made: psycopg.Connection[Any] = LINK.__func__(kind, conninfo, **words)
    return made


def through(conninfo: str) -> None:
    """Fail for a connection of the product past every pgbouncer."""
    around = [one for one in AROUND.values() if one in conninfo]
    assert not around, "the product goes around pgbouncer"
