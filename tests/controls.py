"""A control process as its supervisor has it: its log, its pages, its end."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

HOME = Path(__file__).resolve().parent.parent
WITHIN_S = 60.0
LOGIN = "control_login"
GROUPS = "ql_scheduler, ql_reader"
Line = dict[str, Any]


@contextmanager
def login_of(dsn: str, name: str = LOGIN, groups: str = GROUPS) -> Iterator[str]:
    """The same database for a login that is a member of these groups; it is gone afterwards."""
    with psycopg.connect(dsn, autocommit=True) as dba:
        dba.execute(f"create role {name} login")  # type: ignore[arg-type]
        dba.execute(f"grant {groups} to {name}")  # type: ignore[arg-type]
    try:
        yield re.sub(r"//[^@]*@", f"//{name}@", dsn)
    finally:
        with suppress(psycopg.OperationalError), psycopg.connect(dsn, autocommit=True) as dba:
            dba.execute("set default_transaction_read_only = off")
            dba.execute(f"drop role {name}")  # type: ignore[arg-type]


def page(port: int, path: str) -> tuple[int, str]:
    """Status and text of a page on loopback; status 0 when nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


class Process:
    """One `qinglong-sql control` on loopback, its log in JSON; started at once. Close it."""

    def __init__(self, dsn: str, folder: Path, *words: str, **env: str) -> None:
        self.log = folder / f"control-{time.monotonic_ns()}.log"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("QINGLONG_", "PG"))}
        with self.log.open("wb") as sink:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "qinglong_sql", "control", "--listen", "127.0.0.1:0",
                 "--log-format", "json", *words],
                env={**kept, "PYTHONPATH": str(HOME), "QINGLONG_CONTROL_DSN": dsn, **env},
                cwd=folder, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
                start_new_session=True,
            )  # fmt: skip

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def lines(self, event: str = "") -> list[Line]:
        """What it has said, whole lines only; fails when a line is no JSON."""
        found = [json.loads(line) for line in self.text().splitlines(keepends=True)
                 if line.endswith("\n")]  # fmt: skip
        return [one for one in found if event in ("", one["event"])]

    def parts(self, event: str) -> list[str]:
        """The parts that lines of an event are about, in order."""
        return [one["part"] for one in self.lines(event) if "part" in one]

    def until(self, true: Callable[[], object], what: str, within_s: float = WITHIN_S) -> None:
        """Wait until it is so, as long as the process lives."""
        end = time.monotonic() + within_s
        while not true():
            assert self.child.poll() is None, f"ended {self.child.returncode}: {self.text()}"
            assert time.monotonic() < end, f"in vain until {what}: {self.text()}"
            time.sleep(0.02)

    def ready(self) -> "Process":
        self.until(lambda: self.lines("ready"), "it is ready")
        return self

    @property
    def port(self) -> int:
        told = next(one for one in self.lines("boot") if one["part"] == "listener")
        return int(told["message"].rpartition(" ")[2])

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a page; status 0 when nobody answers."""
        return page(self.port, path)

    def stop(self, number: int = signal.SIGTERM, within_s: float = WITHIN_S) -> int:
        """Send a signal and wait; the exit code."""
        self.child.send_signal(number)
        return self.ended(within_s)

    def ended(self, within_s: float = WITHIN_S) -> int:
        """Wait for its end; the exit code."""
        try:
            return self.child.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self.text()}") from None

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
