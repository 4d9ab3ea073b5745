"""A primary and a hot standby of our own, and what befalls them: `pair` (tests/server.py is one).

Both are on loopback and in memory; the standby streams with the superuser's password.
"""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

from tests import server as servers
from tests.binaries import Binaries, environment
from tests.scratch import discard, scratch_folder
from tests.server import Server

WITHIN_S = 60.0  # a machine may be busy with other things


@contextlib.contextmanager
def pair(binaries: Binaries) -> Iterator[tuple[Server, Server]]:
    """A primary, and a standby that streams from it."""
    primary = servers.start(binaries, options={"wal_keep_size": "64MB"})
    with contextlib.ExitStack() as stack:
        stack.callback(servers.stop, primary)
        standby = standby_of(primary)
        stack.callback(servers.stop, standby)
        yield primary, standby


def standby_of(primary: Server) -> Server:
    """A hot standby of that server. Raises NoServer with its own words."""
    scratch, alive = scratch_folder(durable=False)
    user = servers._server_user()
    try:
        (scratch / "socket").mkdir(mode=0o755)
        if user:
            for path in (scratch, scratch / "socket"):
                os.chown(path, user.pw_uid, user.pw_gid)
        folder = primary.binaries.folder
        subprocess.run(
            [folder / "pg_basebackup", "-D", scratch / "data", "-X", "stream", "-c", "fast", "-R",
             "--no-sync", "-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres"],
            env=environment(folder) | {"PGPASSWORD": primary.password},
            cwd=scratch, check=True, **servers._as_user(user),
        )  # fmt: skip
        return started(scratch, alive, primary)
    except BaseException:
        discard(scratch, alive)
        raise


def started(scratch: Any, alive: int, like: Server) -> Server:
    """A server on a folder that has its files already, on a port of its own."""
    port = servers._free_port()
    settings = {
        "port": str(port), "listen_addresses": "127.0.0.1", "fsync": "off",
        "unix_socket_directories": str(scratch / "socket"), "shared_buffers": "64MB",
        "max_wal_size": "128MB", "wal_keep_size": "64MB", "timezone": "UTC",
    }  # fmt: skip
    child = servers._spawn(like.binaries, scratch, servers._server_user(), settings)
    found = Server(like.binaries, scratch, port, like.password, child, alive, os.getpid())
    if not servers._answers(found):
        raise servers.NoServer(f"the standby did not start:\n{servers.log(found)[-2000:]}")
    return found


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """A port of loopback on which nobody ever answers, as of a host that is cut off."""
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):  # beyond its backlog the kernel drops what comes
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        yield full.getsockname()[1]


def dba(server: Server, text: str, *values: object) -> Any:
    """The first value of a statement, as the superuser and past every pooler."""
    with psycopg.connect(servers.dsn(server), autocommit=True) as connection:
        found = connection.execute(text, values)  # type: ignore[arg-type]
        row = found.fetchone() if found.description else None
    return None if row is None else row[0]


def promote(server: Server) -> None:
    """Make a standby the primary, in its own timeline."""
    assert dba(server, "select pg_promote()") is True


def make_read_only(server: Server, *, on: bool = True) -> None:
    """As a DBA demotes a node that still runs: every session only reads when this is over.

    A transaction that began before may still write, so those are waited for.
    """
    dba(server, f"alter system set default_transaction_read_only = {'on' if on else 'off'}")
    dba(server, "select pg_reload_conf()")
    until(lambda: dba(server, "show transaction_read_only") == ("on" if on else "off"))
    since = dba(server, "select clock_timestamp()")
    older = (
        "select count(*) from pg_stat_activity"
        " where backend_type = 'client backend' and xact_start < %s"
    )
    until(lambda: dba(server, older, since) == 0)


def make_synchronous(server: Server, names: str) -> None:
    """Commits wait for these standbys; a name that nobody has: for good. Empty: for none."""
    dba(server, f"alter system set synchronous_standby_names = '{names}'")
    dba(server, "select pg_reload_conf()")
    until(lambda: dba(server, "show synchronous_standby_names") == names)


def waiting(server: Server) -> list[int]:
    """Backends whose commit waits for a standby."""
    return list(dba(
        server,
        "select coalesce(array_agg(pid), '{}') from pg_stat_activity where wait_event = 'SyncRep'",
    ))  # fmt: skip


def caught_up(primary: Server, standby: Server) -> None:
    """Wait until the standby has all that the primary has."""
    position = dba(primary, "select pg_current_wal_lsn()::text")
    reached = "select pg_last_wal_replay_lsn() >= %s::pg_lsn"
    until(lambda: dba(standby, reached, position))


def until(true: Callable[[], object], within_s: float = WITHIN_S) -> None:
    """Wait until it is so."""
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.02)
