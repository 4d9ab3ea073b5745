"""scripts/deploy/haproxy.cfg and pgbouncer.ini with real programs in front of two real nodes.

    python -m tests.balanced HAPROXY PGBOUNCER

Shows that the balancer tells the node that takes writes from one that takes none, that it cuts the
sessions of a node that was demoted, and that the store comes through both. A check of `.ci/run
deploy` and no test of the suite, since not every machine has the two programs.
"""

import contextlib
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from qinglong_sql.store.pooled import PooledStore, open_pool
from tests import server, standby
from tests.binaries import default
from tests.server import ROOT, Server

DEPLOY = ROOT / "scripts" / "deploy"
WITHIN_S = 10.0


def main(haproxy: str, pgbouncer: str) -> None:
    """Run all; raises AssertionError with what was not so."""
    with contextlib.ExitStack() as stack:
        primary, other = stack.enter_context(standby.pair(default()))
        server.install(server.dsn(primary))
        standby.dba(primary, "create role haproxy_check login")
        standby.dba(primary, "create role control_login login in role ql_scheduler, ql_reader")
        standby.caught_up(primary, other)
        folder = primary.scratch
        writes, reads, pooled = (server._free_port() for _ in range(3))
        config = balanced(folder, (primary, other), writes, reads)
        stack.enter_context(program([Path(haproxy), "-db", "-f", config], folder, primary, writes))
        ini = bounced(folder, writes, pooled)
        copy = Path(shutil.copy2(pgbouncer, folder / "pgbouncer"))
        stack.enter_context(program([copy, ini], folder, primary, pooled))

        assert where(writes) == (str(primary.port), "off"), "writes lead to the primary"
        standby.until(lambda: where(reads)[1] == "on", WITHIN_S)  # both nodes are looked at
        dsn = f"postgresql://control_login@127.0.0.1:{pooled}/postgres"
        pool = stack.enter_context(open_pool(dsn, size=2, within_s=10))
        store = PooledStore(pool)
        assert store.clock() > 0
        session = stack.enter_context(psycopg.connect(dsn_of(writes), autocommit=True))

        began = time.monotonic()
        standby.make_read_only(primary)
        standby.promote(other)
        standby.until(lambda: where(writes) == (str(other.port), "off"), WITHIN_S)
        took_s = time.monotonic() - began
        with contextlib.suppress(psycopg.OperationalError):
            session.execute("select 1")
            raise AssertionError("a session of the demoted node was not cut")
        standby.until(lambda: works(store), WITHIN_S)
        print(f"haproxy led to the new primary {took_s:.1f} s after the old one was demoted")


def balanced(folder: Path, nodes: tuple[Server, Server], writes: int, reads: int) -> Path:
    """The example with our addresses in it."""
    text = (DEPLOY / "haproxy.cfg").read_text(encoding="utf-8")
    for number, node in enumerate(nodes, 1):
        text = text.replace(f"192.0.2.1{number}:5432", f"127.0.0.1:{node.port}")
    text = text.replace("127.0.0.1:5000", f"127.0.0.1:{writes}")
    text = text.replace("127.0.0.1:5001", f"127.0.0.1:{reads}")
    assert "192.0.2" not in text.split("\nglobal")[1]
    path = folder / "haproxy.cfg"
    path.write_text(text, encoding="utf-8")
    return path


def bounced(folder: Path, host: int, port: int) -> Path:
    """The example with our addresses, and without passwords: our servers trust loopback."""
    text = (DEPLOY / "pgbouncer.ini").read_text(encoding="utf-8")
    users = folder / "userlist.txt"
    users.write_text('"control_login" ""\n', encoding="utf-8")
    for key, value in (
        ("qinglong", f"host=127.0.0.1 port={host} dbname=postgres\npostgres = host=127.0.0.1"
                     f" port={host}"),
        ("listen_port", str(port)), ("auth_type", "trust"), ("auth_file", str(users)),
    ):  # fmt: skip
        text, count = re.subn(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
        assert count == 1, key
    path = folder / "pgbouncer.ini"
    path.write_text(text, encoding="utf-8")
    return path


@contextlib.contextmanager
def program(words: list[Path | str], folder: Path, like: Server, port: int) -> Iterator[None]:
    """A program of our own that answers at a port."""
    user = server._server_user()
    name = Path(words[0]).name
    as_server = user if name == "pgbouncer" else None  # it refuses root
    log = folder / f"{name}.log"
    child = server.child(list(words), log, as_server, end=signal.SIGKILL, env=dict(os.environ))
    try:
        standby.until(lambda: child.poll() is not None or answers(port), WITHIN_S)
        assert child.poll() is None, log.read_text(errors="replace")
        yield
    finally:
        child.kill()
        child.wait()


def dsn_of(port: int) -> str:
    return f"postgresql://control_login@127.0.0.1:{port}/postgres?connect_timeout=3"


def answers(port: int) -> bool:
    return where(port) != ("", "")


def where(port: int) -> tuple[str, str]:
    """The port of the node that a port leads to, and whether it only reads; empty for none."""
    look: Any = "select current_setting('port'), current_setting('transaction_read_only')"
    try:
        with psycopg.connect(dsn_of(port), autocommit=True) as connection:
            found = connection.execute(look).fetchone()
    except psycopg.OperationalError:
        return "", ""
    assert found is not None
    return str(found[0]), str(found[1])


def works(store: PooledStore) -> bool:
    try:
        return bool(store.call("due_page", p_stage="frontier", p_after_due_at_ms=0,
                               p_after_run_id="", p_limit=1) is not None
                    and store.clock())  # fmt: skip
    except psycopg.Error:
        return False


if __name__ == "__main__":
    main(*sys.argv[1:])
