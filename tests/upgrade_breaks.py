"""Migrations that are killed in their middle, and two at once: nothing is half (DESIGN §10)."""

import subprocess
import sys
import time

import psycopg

from qinglong_sql import migrate
from tests import engines
from tests.catalog import catalog
from tests.engines import NEWEST
from tests.server import ROOT
from tests.upgrading import WITHIN_S

NAMED = "^qinglong-migrate "


def two_at_once(url: str) -> list[str]:
    """Two start together: one waits for the other and finds nothing to do. What was wrong."""
    script = f"from qinglong_sql import migrate\nprint(migrate.upgrade({url!r}))"
    pair = [begun(script) for _ in "ab"]
    said = [(one.communicate(timeout=WITHIN_S)[0], one.returncode) for one in pair]
    return [] if said == [(f"{NEWEST}\n", 0)] * 2 else [f"two at once: {said}"]


def begun(script: str) -> subprocess.Popen[str]:
    """Some Python of this tree."""
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT, text=True,
    )  # fmt: skip


def broken_off(url: str, before: str, whom: str, after_s: float) -> str:
    """Kill who migrates (`client`), or its server process (`server`: recovery of all), and look.

    after_s: counted from when it has its first lock. The revision at which it stands then; raises
    AssertionError when that is half of one. Migrated again, it is at the newest.
    """
    there = catalog(url)
    child = begun(f"from qinglong_sql import migrate\nmigrate.upgrade({url!r})")
    backend = first_lock(url, child)
    time.sleep(after_s)
    if whom == "client":
        child.kill()
    elif backend:
        subprocess.run(["kill", "-9", str(backend)], check=False, stderr=subprocess.DEVNULL)
        for connection in engines._connected.values():  # they do not outlive it
            connection.close()
    child.communicate(timeout=WITHIN_S)
    quiet(url)
    stands = migrate.current(url) or ""
    if stands == before:
        assert catalog(url) == there, f"half of a revision is left after {after_s:.3f} s"
    assert stands in (before, NEWEST), f"it stands at {stands}, between two"
    assert migrate.upgrade(url) == NEWEST
    return stands


def first_lock(url: str, child: subprocess.Popen[str]) -> int:
    """The server process of who migrates, as soon as it has locked something; 0: it was quicker."""
    asked = (
        "select l.pid from pg_locks as l join pg_stat_activity as a on a.pid = l.pid"
        " where a.application_name ~ %s and l.locktype = 'relation' and l.granted"
        " and l.mode = 'AccessExclusiveLock' limit 1"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        while child.poll() is None:
            if row := connection.execute(asked, [NAMED]).fetchone():
                return int(row[0])
    return 0


def quiet(url: str) -> None:
    """Wait until the server takes connections again and nobody migrates."""
    asked = "select count(*) from pg_stat_activity where application_name ~ %s"
    end = time.monotonic() + WITHIN_S
    while time.monotonic() < end:
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                if connection.execute(asked, [NAMED]).fetchone() == (0,):
                    return
        except psycopg.OperationalError:
            pass
        time.sleep(0.02)
    raise AssertionError("the server does not come back, or still migrates")
