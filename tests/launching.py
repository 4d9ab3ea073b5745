"""A fork server and the executions of one test (DESIGN §9): real processes, nothing mocked.

`opened` starts a fork server, and at the end wants it gone, without a complaint, and without a
process, a descriptor or a receipt's leftovers behind it.
"""

import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from qinglong_sql import forkserver
from qinglong_sql.execution import (
    Execution,
    ForkServer,
    Receipt,
    Spec,
    boottime_ms,
    prepare,
    start_forkserver,
)

LEASE_MS = 30_000
ENV = {"PATH": "/usr/bin:/bin"}
PATIENCE_S = 10.0


def until(true: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.005)


def alive(pid: int) -> bool:
    return forkserver.start_ticks(pid) is not None


def processes_under(root: Path) -> list[str]:
    """Live processes that name `root` in their command line or work in it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            cwd = str((entry / "cwd").readlink())
        except OSError:
            continue
        if str(root) in line or cwd.startswith(str(root)):
            found.append(f"{entry.name} {line}")
    return found


def descriptors() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


class Bench:
    """One fork server and the executions of one test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.server: ForkServer = start_forkserver(root / "state")
        self.live: list[Execution] = []

    def spec(self, *argv: str, **change: object) -> Spec:
        cwd = str(self.root)
        spec = Spec(attempt="a-1", argv=argv, cwd=cwd, env=ENV, grace_ms=5_000)
        return replace(spec, **change)  # type: ignore[arg-type]

    def spawn(self, spec: Spec, name: str = "execution") -> Execution:
        folder = self.root / name
        prepare(folder, spec)
        one = self.server.spawn(folder)
        self.live.append(one)
        return one

    def start(self, *argv: str, lease_ms: int = LEASE_MS, **change: object) -> Execution:
        one = self.spawn(self.spec(*argv, **change))
        assert one.go(boottime_ms() + lease_ms)
        return one

    def shell(self, script: str, lease_ms: int = LEASE_MS, **change: object) -> Execution:
        return self.start("/bin/sh", "-c", script, lease_ms=lease_ms, **change)

    def path(self, name: str) -> Path:
        return self.root / name

    def pid(self, name: str) -> int:
        """The pid that a command wrote to a file of that name."""
        path = self.path(name)
        until(lambda: path.exists() and path.read_text().endswith("\n"), f"{name} is written")
        return int(path.read_text())


def ended(one: Execution) -> Receipt:
    """Drive one execution to its receipt."""
    end = time.monotonic() + PATIENCE_S
    while one.fileno() >= 0:
        assert select.select([one], [], [], max(0, end - time.monotonic()))[0], "it does not end"
        one.poll()
    until(one.receipt, "the receipt is there")
    receipt = one.receipt()
    assert receipt
    return receipt


def started(one: Execution) -> int:
    while one.child is None:
        assert select.select([one], [], [], PATIENCE_S)[0]
        assert one.poll() == "started"
    return one.child


@contextmanager
def opened(root: Path) -> Iterator[Bench]:
    before = descriptors()
    bench = Bench(root)
    yield bench
    for one in bench.live:
        one.stop("the test is over", grace_ms=0)
        one.close()
    assert bench.server.close(PATIENCE_S), "the fork server stays although its launchers are gone"
    assert (root / "state/forkserver.log").read_text() == ""
    assert processes_under(root) == []
    assert descriptors() == before
    for folder in root.glob("execution*"):
        left = {path.name for path in folder.iterdir()} - {"journal.json"}
        assert left <= {"spec.json", "child", "log", "receipt.json"}, f"{folder.name} keeps {left}"
