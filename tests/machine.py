"""A small machine: an edge in a control group of its own, and what it took to do a load.

The limits hold for the edge and for all that it starts. The edge itself tells how long it held the
lock of the file (tests/held.py); from outside is measured how long a second writer waits for it, as
another command on the device would, and what a bare commit costs on that disk meanwhile.
"""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from qinglong_sql.door import ask
from qinglong_sql.store.sqlite import Profile, SqliteStore, open_sqlite
from qinglong_sql.store.sqlite_lock import begin_immediate
from tests.held import EVERY
from tests.prove import CannotRun
from tests.shell import HOME
from tests.site import kill_all_of, wait

MEMORY, CPU, PIDS = (Path("/sys/fs/cgroup") / name for name in ("memory", "cpu", "pids"))
PERIOD_US = 100_000
SAMPLES = 64
WITHIN_S = 240.0
CHANGED_MS = 0.15  # a commit that takes less has written nothing
PAGES = 16
ROOT_WAY = "needs root and cgroup v1 with the controllers memory, cpu and pids"


@dataclass(frozen=True, slots=True)
class Machine:
    """MiB of memory, cores, and how many processes and threads; no swap."""

    mib: int
    cores: float
    tasks: int | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """One transaction of the edge: ms of work, of its commit, and of processor time in each."""

    work: float
    work_cpu: float
    instructions: int  # of SQLite, in the work
    commit: float
    commit_cpu: float
    steps: str


@dataclass(slots=True)
class Taken:
    """What a load cost. Memory in MiB, waits, holds and bare commits in ms."""

    steps: int
    seconds: float
    peak: float
    group: float
    kills: int
    waits: list[float]
    bare: list[float]
    holds: list[Hold]
    bytes_a_step: int
    wakes_a_minute: int | None

    def wait(self, share: float) -> float:
        return ranked(self.waits, share)

    def hold(self, share: float) -> float:
        return ranked((one.work + one.commit for one in self.holds), share)

    def work_cpu(self, share: float) -> float:
        return ranked((one.work_cpu for one in self.holds), share)

    def instructions(self, share: float) -> float:
        return ranked((one.instructions for one in self.holds), share)

    def commit(self, share: float) -> float:
        return ranked((one.commit for one in self.holds), share)

    def __str__(self) -> str:
        wakes = "" if self.wakes_a_minute is None else f", {self.wakes_a_minute} wakes/min"
        return (
            f"{self.peak:.1f} MiB, group {self.group:.1f}, wait {three(self.wait)} ms,"
            f" hold {three(self.hold)} ms of which work on the processor {three(self.work_cpu)} ms"
            f" ({self.instructions(0.95):.0f} instructions) and commit {three(self.commit)} ms,"
            f" a bare commit {ranked(self.bare, 0.5):.2f} ms, {self.bytes_a_step} B/step{wakes},"
            f" {self.steps / self.seconds:.1f} steps/s"
        )


def ranked(values: Iterable[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    order = sorted(values)
    return order[min(len(order) - 1, int(len(order) * share))]


def three(at: Callable[[float], float]) -> str:
    """p50/p95/max."""
    return "/".join(f"{at(share):.2f}" for share in (0.5, 0.95, 1))


def write_package(folder: Path, steps: int) -> None:
    """A tree of so many steps, each with up to eight that need it."""
    lines = ["package: p", "workflows:", "  w:", "    steps:"]
    for n in range(steps):
        lines.append(f"      s{n}: {{run: [/bin/true]{f', needs: [s{(n - 1) // 8}]' * (n > 0)}}}")
    folder.mkdir()
    (folder / "p.yaml").write_text("\n".join(lines) + "\n")
    os.utime(folder / "p.yaml", (1, 1))


@contextmanager
def group(machine: Machine) -> Iterator[list[Path]]:
    """The folders of a control group with these limits. Raises CannotRun."""
    name = f"ql-small-{os.getpid()}-{time.monotonic_ns()}"
    folders = [MEMORY / name, CPU / name, *([PIDS / name] if machine.tasks else [])]
    made = []
    limit = str(machine.mib * 1024 * 1024)
    try:
        try:
            for folder in folders:
                folder.mkdir()
                made.append(folder)
            (folders[0] / "memory.limit_in_bytes").write_text(limit)
            with suppress(FileNotFoundError):  # a kernel without accounts of swap
                (folders[0] / "memory.memsw.limit_in_bytes").write_text(limit)
            (folders[1] / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (folders[1] / "cpu.cfs_quota_us").write_text(str(int(PERIOD_US * machine.cores)))
            if machine.tasks:
                (folders[2] / "pids.max").write_text(str(machine.tasks))
        except OSError as error:
            raise CannotRun(f"{ROOT_WAY}: {error}") from None
        yield folders
    finally:
        for folder in made:
            _end(folder)


def _end(folder: Path) -> None:
    for _ in range(200):
        with suppress(OSError):
            folder.rmdir()
            return
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.02)


def taken(
    root: Path, profile: str, machine: Machine, steps: int, *, runs: int, idle_s: float
) -> Taken:
    """Do the load in an edge on that machine, in an empty folder. Raises CannotRun."""
    with group(machine) as folders:
        write_package(root / "packages", steps)
        join = "".join(f"echo $$ > {folder}/cgroup.procs; " for folder in folders)
        argv = ["/bin/sh", "-c", join + 'exec "$@"', "sh", sys.executable, "-m", "tests.held",
                "edge", "--packages", "packages", "--profile", profile]  # fmt: skip
        env = {**os.environ, "PYTHONPATH": str(HOME), "QINGLONG_DSN": "sqlite:///q.db",
               "QL_HELD": str(root / "held")}  # fmt: skip
        with (root / "log").open("wb") as log:
            edge = subprocess.Popen(
                argv, cwd=root, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            return _measured(root, edge, folders[0], steps, runs, idle_s)
        finally:
            edge.terminate()
            with suppress(subprocess.TimeoutExpired):
                edge.wait(20)
            kill_all_of(root)
            edge.wait()


def _measured(
    root: Path, edge: subprocess.Popen[bytes], memory: Path, steps: int, runs: int, idle_s: float
) -> Taken:
    state = root / "q.db.worker"

    def published() -> bool:
        assert edge.poll() is None, f"it ended with {edge.poll()}: {(root / 'log').read_text()}"
        found = ask(state, "status", 2.0) or {}
        return bool((found.get("packages") or {}).get("files"))

    wait(published, "the edge has looked at its files", 60)
    with closing(open_sqlite(root / "q.db")) as store:
        wait(lambda: store.read("package_state", state="active"), "it is published", 60)
        before, begun = counts(edge.pid)["wchar"], time.monotonic()
        (root / "held").write_text("")  # publication comes once
        waits, bare = _load(store, root, state, runs, edge)
        seconds = time.monotonic() - begun
        written = counts(edge.pid)["wchar"] - before
        ended = store.read("run_state")
        assert {run["status"] for run in ended} == {"succeeded"}, ended
    wakes = None
    if idle_s:
        wait(lambda: not list(state.glob("edge/exec/*")), "its folders are gone", 30)
        time.sleep(12)  # until the cadence is slow
        seen = counts(edge.pid)["voluntary_ctxt_switches"]
        time.sleep(idle_s)
        wakes = round((counts(edge.pid)["voluntary_ctxt_switches"] - seen) * 60 / idle_s)
    mib = 1024 * 1024
    oom = dict(line.split() for line in (memory / "memory.oom_control").read_text().splitlines())
    done = steps * len(ended)
    return Taken(
        done, seconds, counts(edge.pid)["VmHWM"] / 1024,
        int((memory / "memory.max_usage_in_bytes").read_text()) / mib,
        int(oom["oom_kill"]), waits, bare, _holds(root / "held"), round(written / done), wakes,
    )  # fmt: skip


def _holds(path: Path) -> list[Hold]:
    """What changed nothing is left out: it lets go at once."""
    lines = [line.split() for line in path.read_text().splitlines()]
    found = [
        Hold(float(a), float(b), int(ticks) * EVERY, float(c), float(d), steps)
        for a, b, ticks, c, d, steps in lines
    ]
    return [one for one in found if one.commit > CHANGED_MS]


def _load(
    store: SqliteStore, root: Path, state: Path, runs: int, edge: subprocess.Popen[bytes]
) -> tuple[list[float], list[float]]:
    """Start runs, wait for their end; feel the lock meanwhile, and a commit of one's own."""
    waits: list[float] = []
    bare: list[float] = []
    started, end = 0, time.monotonic() + WITHIN_S
    with (
        closing(sqlite3.connect(root / "q.db", timeout=5, isolation_level=None)) as second,
        closing(_apart(root / "bare.db", store.profile)) as other,
    ):
        cursor = second.cursor()
        while True:
            assert edge.poll() is None and time.monotonic() < end, "the load does not end"
            idle = not store.read("open_run", limit=1)
            if idle and started >= runs and len(waits) >= SAMPLES:
                return waits, bare
            if idle:
                store.call(
                    "start_run", p_package_key="p", p_kind="workflow", p_target_key="w",
                    p_run_key=f"k{started}", p_input="{}",
                )  # fmt: skip
                started += 1
                ask(state, "wake", 0.2)
            elif len(waits) < SAMPLES or started < runs:
                begun = time.perf_counter()
                begin_immediate(cursor)
                waits.append((time.perf_counter() - begun) * 1000)
                cursor.execute("rollback")
                if len(waits) % 4 == 0:
                    begun = time.perf_counter()
                    other.execute("update page set text = text || 'x'")
                    bare.append((time.perf_counter() - begun) * 1000)
            time.sleep(0.015)


def _apart(path: Path, profile: Profile) -> sqlite3.Connection:
    """A file with the journal of that profile, of which an update writes some pages."""
    connection = sqlite3.connect(path, isolation_level=None)
    mode = "wal" if profile == "standalone" else "truncate"
    for text in ("page_size = 1024", f"journal_mode = {mode}", "synchronous = full"):
        connection.execute(f"pragma {text}").fetchall()
    connection.execute("create table page (text)")
    connection.executemany("insert into page values (?)", [("x" * 800,)] * PAGES)
    return connection


def counts(pid: int) -> dict[str, int]:
    """Numbers of /proc/PID/status and /proc/PID/io; memory in KiB."""
    found = {}
    for name in ("status", "io"):
        for line in Path(f"/proc/{pid}/{name}").read_text().splitlines():
            key, _, text = line.partition(":")
            word = text.split()[:1]
            if word and word[0].isdigit():
                found[key] = int(word[0])
    return found
