"""One place where packages really run: a fresh database, a state folder, real launchers.

At its end nothing may be left of it: no process, no descriptor, no execution folder.
"""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from qinglong_sql.drive import drive
from qinglong_sql.package import parse_package
from qinglong_sql.store import Store, open_store
from qinglong_sql.worker import Worker

PATIENCE_S = 30.0
Row = dict[str, Any]

WORKER_PROGRAM = """
import os, sys
from pathlib import Path
from qinglong_sql.drive import drive
from qinglong_sql.store import open_store
from qinglong_sql.worker import Worker

dsn, state, lease_ms = sys.argv[1:]
store = open_store(dsn)
drive(store, Worker(store, Path(state), lease_ms=int(lease_ms)), lambda: os.getppid() == 1)
"""


class Site:
    """A store, and workers that are closed at the end."""

    def __init__(self, dsn: str, root: Path) -> None:
        self.dsn = dsn
        self.root = root
        self.work = root / "work"
        self.work.mkdir()
        self.state = root / "state"
        self.store: Store = open_store(dsn)
        self.workers: list[Worker] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.errors: list[Exception] = []

    def publish(self, steps: str, *, head: str = "") -> None:
        """Publish package `p` with one workflow `w`, its steps as indented YAML."""
        text = "package: p\n" + textwrap.dedent(head)
        text += "workflows:\n  w:\n    steps:\n" + textwrap.indent(textwrap.dedent(steps), " " * 6)
        package = parse_package(text.encode(), str(self.work / "package.yaml"))
        self.store.call(
            "publish_package",
            p_package_key=package.key,
            p_manifest=package.manifest,
            p_base_dir=str(package.base_dir),
        )

    def start(self, key: str = "k", text: str = "{}") -> str:
        row = self.store.call(
            "start_run",
            p_package_key="p",
            p_kind="workflow",
            p_target_key="w",
            p_run_key=key,
            p_input=text,
        )[0]
        assert row["outcome"] in ("created", "existing"), row
        return str(row["run_id"])

    def cancel(self, run_id: str) -> None:
        self.store.call("request_cancel", p_run_id=run_id, p_reason="user", p_actor="test")

    def worker(self, store: Store | None = None, **options: Any) -> Worker:
        options.setdefault("stop_grace_ms", 500)
        worker = Worker(store or self.store, self.state, **options)
        self.workers.append(worker)
        return worker

    def process(self, lease_ms: int = 30_000, first: str = "") -> subprocess.Popen[bytes]:
        """A process of its own with a worker and the loop; `first` is Python to run before."""
        program = first + WORKER_PROGRAM
        argv = [sys.executable, "-c", program, self.dsn, str(self.state), str(lease_ms)]
        home = str(Path(__file__).parent.parent)
        one = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": home})
        self.processes.append(one)
        return one

    def drive(
        self,
        worker: Worker,
        until: Callable[[], bool],
        within_s: float = PATIENCE_S,
        **options: Any,
    ) -> None:
        """Drive until it is so. Fails when it takes too long or a tick raised."""
        end = time.monotonic() + within_s

        def enough() -> bool:
            if until():
                return True
            assert time.monotonic() < end, f"in vain; {self.told()}"
            return False

        options.setdefault("idle_ms", 50)
        options.setdefault("on_error", self.errors.append)
        drive(options.pop("store", self.store), worker, enough, **options)

    def finish(self, run_id: str, worker: Worker | None = None, **options: Any) -> Row:
        """Drive a run to its end and the worker to rest; returns the run.

        A run that has ended may have left a folder: the worker takes over before it is asked.
        """
        worker = worker or self.worker()
        worker.own()

        def rests() -> bool:
            ended = self.run(run_id)["status"] != "running"
            return ended and not worker.held and worker.due_at_ms() is None

        self.drive(worker, rests, **options)
        return self.run(run_id)

    def run(self, run_id: str) -> Row:
        return self.store.read("run_state", run_id=run_id)[0]

    def step(self, run_id: str, step_key: str) -> Row:
        return self.store.read("step_state", run_id=run_id, step_key=step_key)[0]

    def attempts(self, run_id: str) -> list[Row]:
        return self.store.read("attempt_state", order="number", run_id=run_id)

    def told(self) -> str:
        views = ("run_state", "step_state", "attempt_state", "agenda_state", "fault_state")
        return "\n".join(f"{view}: {self.store.read(view)}" for view in views) + f"\n{self.errors}"

    def path(self, name: str) -> Path:
        return self.work / name

    def lines(self, name: str) -> list[str]:
        path = self.path(name)
        return path.read_text().splitlines() if path.exists() else []

    def pid(self, name: str) -> int:
        """The pid that a step wrote to a file of that name."""
        wait(lambda: self.lines(name) != [], f"{name} is written")
        return int(self.lines(name)[0])

    def log(self, run_id: str, name: str) -> str:
        return (self.state / "log" / run_id / f"{name}.log").read_text()

    def folders(self) -> list[str]:
        at = self.state / "exec"
        return sorted(path.name for path in at.iterdir()) if at.exists() else []

    def close(self) -> None:
        for worker in self.workers:
            worker.stop("shutdown", grace_ms=0)
            worker.close()
        for one in self.processes:
            one.kill()
            one.wait()
        self.store.close()


def running(site: Site, steps: str, worker: Worker, pid: str = "pid", head: str = "") -> str:
    """Start a run and drive it until a step has written its pid."""
    site.publish(steps, head=head)
    run_id = site.start()
    site.drive(worker, lambda: site.lines(pid) != [])
    site.drive(worker, lambda: all(one.told_running for one in worker.held.values()))
    return run_id


def wait(true: Callable[[], object], what: str, within_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def processes_of(root: Path) -> dict[int, str]:
    """Live processes that name `root` in their command line or work below it."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, UnicodeDecodeError):
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            cwd = str((entry / "cwd").readlink())
            if (str(root) in line or cwd.startswith(str(root))) and alive(int(entry.name)):
                found[int(entry.name)] = line
    found.pop(os.getpid(), None)
    return found


def kill_all_of(root: Path) -> None:
    """KILL everything of a site: workers, fork servers, launchers, commands."""
    while found := processes_of(root):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def descriptors() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


@contextmanager
def opened(dsn: str, root: Path) -> Iterator[Site]:
    """A site; at the end its executions are ended, and nothing of it is left."""
    before = descriptors()
    site = Site(dsn, root)
    try:
        yield site
        held = [one for worker in site.workers for one in worker.held]
        assert held or site.folders() == [], "execution folders are left"
    finally:
        site.close()
        try:
            wait(lambda: not processes_of(root), f"nothing runs: {processes_of(root)}", 5)
        finally:
            kill_all_of(root)
    assert descriptors() == before
