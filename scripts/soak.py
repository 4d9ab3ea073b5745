"""An edge for long, with tasks at random, ended and killed in between: what grows, what leaks.

    python -m scripts.soak --minutes 30 --tasks 50 --seed 1 [--json FILE] [--profile standalone]

Starts an edge of its own in a fresh folder and starts runs beside it, by commands and from this
process. It is ended by TERM and by KILL at random and started again, once with everything it had
started. Samples memory, descriptors, threads, processes, files. A burst of short runs follows,
whose second half may not move the memory. At the end nothing may be left.
Exit 1 when a bound is broken; the report says which.
"""

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qinglong_sql.door import ask
from qinglong_sql.migrate import open_sqlite
from qinglong_sql.store import Store, open_store
from scripts.soak_burst import allowed_kib, burst

ROOT = Path(__file__).resolve().parent.parent
MB = 1024 * 1024
RSS_MIB = 48.0
# Until the page cache of SQLite, 4 MiB with the profile edge, is full; at most a fifth of all.
WARM_S = 360.0
PATIENCE_S = 60.0
SAMPLE_S = 1.0
SLOTS = 4


@dataclass(slots=True)
class Sample:
    """One look at the edge: seconds since the start, and what it holds then."""

    at_s: float
    life: int  # which edge it was, counted from 0
    rss: int
    descriptors: int
    threads: int
    processes: int
    folders: int
    file: int


@dataclass(slots=True)
class Soak:
    """One edge after another on one database, in a folder of its own."""

    folder: Path
    rng: random.Random
    profile: str
    lease_ms: int = 10_000
    process: subprocess.Popen[bytes] | None = None
    lives: int = -1
    samples: list[Sample] = field(default_factory=list)
    burst: dict[str, Any] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)
    started: dict[str, str] = field(default_factory=dict)  # by run: its kind of task
    cancelled: set[str] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)
    begun_s: float = field(default_factory=time.monotonic)
    next_s: float = 0.0

    @property
    def dsn(self) -> str:
        return f"sqlite:///{self.folder}/soak.db"

    @property
    def state(self) -> Path:
        return self.folder / "soak.db.worker"

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "qinglong_sql", *words, "--dsn", self.dsn]

    def begin(self) -> None:
        """Start an edge, and wait until it answers."""
        self.lives += 1
        with (self.folder / "edge.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command("edge", "--packages", str(self.folder / "packages"), "--profile",
                             self.profile, "--lease-ms", str(self.lease_ms), "--grace-ms", "500",
                             "--drain", "1s", "--slots", str(SLOTS),
                             "--status-file", str(self.folder / "status.json")),
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self.until(lambda: (self.status() or {}).get("pid") == self.process.pid, "the edge answers")

    def end(self, how: str) -> None:
        """End the edge: `term`, `kill`, or `all`, which kills everything that it has started."""
        assert self.process
        self.ends[how] += 1
        if how == "all":
            for pid in self.others():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.send_signal(signal.SIGTERM if how == "term" else signal.SIGKILL)
        code = self.process.wait(PATIENCE_S)
        if how == "term" and code:
            self.broken.append(f"TERM ended the edge with {code}")
        self.process = None

    def status(self) -> dict[str, Any] | None:
        return ask(self.state, "status", 5.0)

    def until(self, true: Any, what: str, within_s: float = PATIENCE_S) -> None:
        end = time.monotonic() + within_s
        while not true():
            if time.monotonic() >= end:
                raise SystemExit(f"in vain until {what}; see {self.folder}/edge.log")
            time.sleep(0.05)

    def start(self, store: Store, kind: str) -> None:
        """Start a run, one in ten by a command as people do."""
        if self.rng.random() < 0.1:
            done = subprocess.run(
                [*self.command("start", "soak", kind), "--json"],
                cwd=ROOT, capture_output=True, encoding="utf-8", check=True, timeout=PATIENCE_S,
            )  # fmt: skip
            run_id = json.loads(done.stdout)["run_id"]
        else:
            run_id = store.call(
                "start_run", p_package_key="soak", p_kind=kind_of(kind), p_target_key=kind,
                p_run_key=f"{len(self.started)}", p_input="{}",
            )[0]["run_id"]  # fmt: skip
            ask(self.state, "wake", 0.2)
        self.started[run_id] = kind

    def cancel(self, store: Store) -> None:
        open_runs = store.read("open_run", order="admitted_at_ms, run_id", limit=8)
        if not open_runs:
            return
        run_id = self.rng.choice(open_runs)["run_id"]
        row = store.call("request_cancel", p_run_id=run_id, p_reason="user", p_actor="soak")[0]
        if row["outcome"] == "accepted":
            self.cancelled.add(run_id)
            ask(self.state, "wake", 0.2)

    def sample(self) -> None:
        if self.process is None or time.monotonic() - self.begun_s < self.next_s:
            return
        self.next_s = time.monotonic() - self.begun_s + SAMPLE_S
        at = Path(f"/proc/{self.process.pid}")
        try:
            words = dict(
                line.split(":", 1)
                for line in (at / "status").read_text(encoding="utf-8").splitlines()
            )
            self.samples.append(Sample(
                at_s=time.monotonic() - self.begun_s,
                life=self.lives,
                rss=int(words["VmRSS"].split()[0]) * 1024,
                descriptors=len(os.listdir(at / "fd")),  # noqa: PTH208
                threads=int(words["Threads"]),
                processes=len(self.others()),
                folders=len(list((self.state / "edge" / "exec").glob("*"))),
                file=(self.folder / "soak.db").stat().st_size,
            ))  # fmt: skip
        except (OSError, KeyError):
            return

    def others(self) -> list[int]:
        """Fork servers, launchers and commands of this folder, without the edge."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                stat = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
                at = os.fsencode(entry.joinpath("cwd").readlink())
                mine = os.fsencode(self.folder) in line or at.startswith(os.fsencode(self.folder))
                edge = self.process is not None and int(entry.name) == self.process.pid
                if mine and stat != "Z" and not edge and int(entry.name) != os.getpid():
                    found.append(int(entry.name))
        return found


def kind_of(kind: str) -> str:
    return "workflow" if kind.startswith("flow") else "task"


def write_package(folder: Path, tasks: int, *, quick: bool) -> None:
    """`tasks` tasks, some of which fail, sleep, write or leave children, and a few workflows."""
    kinds = [
        "true", "sleep 0.2", "sleep 1", "echo out; echo err >&2; exit 3", "sleep 3",
        "head -c 20000 /dev/zero | tr '\\0' x", "sleep 30 & echo left one behind",
        "echo '{\"n\": 1}' > \"$QL_OUTPUT\"", "mktemp -p . >/dev/null; rm -f tmp.*", "sleep 6",
    ]  # fmt: skip
    kinds = [kind for kind in kinds if not quick or kind not in ("sleep 3", "sleep 6")]
    lines = ["package: soak", "tasks:", "  quick: {run: [/bin/true]}"]
    for number in range(tasks):
        more = [
            "", ", idempotent: true, on_lost: retry", ", retry: {attempts: 2, backoff: 500ms}",
            ", timeout: 2s",
        ][number % 4]  # fmt: skip
        command = json.dumps(kinds[number % len(kinds)])
        lines.append(f"  task{number}: {{run: {command}{more}}}")
    lines.append("workflows:")
    for number in range(5):
        first, *rest = [f"task{(number * 7 + step) % tasks}" for step in range(6)]
        lines += [f"  flow{number}:", "    steps:", f"      a: {{task: {first}}}"]
        lines += [f"      b{n}: {{task: {one}, needs: [a]}}" for n, one in enumerate(rest)]
    (folder / "soak.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def slope(samples: list[Sample], take: str) -> float:
    """By least squares over all lives, each with a level of its own: units a minute."""
    over = under = 0.0
    for life in {one.life for one in samples}:
        mine = [one for one in samples if one.life == life]
        at = sum(one.at_s for one in mine) / len(mine)
        level = sum(getattr(one, take) for one in mine) / len(mine)
        over += sum((one.at_s - at) * (getattr(one, take) - level) for one in mine)
        under += sum((one.at_s - at) ** 2 for one in mine)
    return 60.0 * over / under if under else 0.0


def warm(samples: list[Sample], warm_s: float) -> list[Sample]:
    """Without the first `warm_s` of each life."""
    first: dict[int, float] = {}
    for one in samples:
        first.setdefault(one.life, one.at_s)
    return [one for one in samples if one.at_s - first[one.life] >= warm_s]


def bytes_by_table(path: Path) -> tuple[dict[str, int], dict[str, int], int, int]:
    """Bytes by table, with its indexes; rows by table; free pages and page size.

    By dbstat if SQLite has it, else by the length of the rows alone.
    """
    with closing(open_sqlite(path)) as connection:

        def one(text: str) -> int:
            return int(connection.execute(text).fetchone()[0])

        owner = dict(connection.execute("select name, tbl_name from sqlite_schema").fetchall())
        tables = sorted({name for name in owner.values() if not name.startswith("sqlite_")})
        rows = {name: one(f'select count(*) from "{name}"') for name in tables}
        sizes: Counter[str] = Counter()
        try:
            found = connection.execute("select name, sum(pgsize) from dbstat group by name")
            for name, size in found.fetchall():
                sizes[owner.get(name, name)] += size
        except sqlite3.OperationalError:
            for name in tables:
                names = [r[1] for r in connection.execute(f'pragma table_info("{name}")')]
                length = " + ".join(f'coalesce(length(cast("{n}" as blob)), 0)' for n in names)
                sizes[name] += one(f'select coalesce(sum({length}), 0) from "{name}"')
        return dict(sizes), rows, one("pragma freelist_count"), one("pragma page_size")


def soaked(soak: Soak, minutes: float, tasks: int, runs: int) -> None:
    """Run the edge for that long, then through a burst, until nothing is open any more."""
    write_package(soak.folder / "packages", tasks, quick=minutes < 1)
    soak.begin()
    soak.until(lambda: (soak.status() or {}).get("packages", {}).get("files"), "a file is seen")
    end = time.monotonic() + minutes * 60
    quick = minutes < 1
    every_s = minutes * 60 / (4 if quick else 18)
    end_at = time.monotonic() + every_s
    hows = ["term", "kill", "all"]
    with closing(open_store(soak.dsn)) as store:
        soak.until(lambda: store.read("package_state", state="active"), "it is published")
        while time.monotonic() < end:
            open_runs = store.read("open_run", limit=tasks)
            if len(open_runs) < tasks:
                kinds = [f"task{n}" for n in range(tasks)] + [f"flow{n}" for n in range(5)]
                soak.start(store, soak.rng.choice(kinds))
            if soak.rng.random() < 0.05:
                soak.cancel(store)
            soak.sample()
            left = (end - time.monotonic()) / (minutes * 60)
            if time.monotonic() >= end_at and not 0.2 < left < 0.75:  # one long life between
                how = hows[sum(soak.ends.values()) % len(hows)]
                soak.end(how)
                time.sleep(soak.rng.random() * (0.5 if quick else 3))
                soak.begin()
                end_at = time.monotonic() + every_s * (0.5 + soak.rng.random())
            time.sleep(soak.rng.random() * (0.1 if quick else 0.5))
        soak.until(lambda: not store.read("open_run", limit=1), "all runs have ended", 600)
        if runs and soak.process:
            soak.burst = burst(store, soak.process.pid, soak.state, runs, 30 + runs / 4)
            soak.burst["allowed_kib"] = allowed_kib(runs)
            soak.started.update(dict.fromkeys(soak.burst.pop("runs"), "quick"))
        # The folders of ended executions go, and the edge comes to rest.
        soak.until(lambda: not list(soak.state.glob("edge/exec/*")), "its folders are gone", 15)
        time.sleep(1)
        soak.next_s = 0.0
        soak.sample()


def judged(soak: Soak, minutes: float) -> dict[str, Any]:
    """Look at what is left, end the edge, and say what is broken."""
    assert soak.process
    bad = soak.broken
    last = [one for one in soak.samples if one.life == soak.lives][-1]
    first = next(one for one in soak.samples if one.life == soak.lives)
    if last.folders:
        bad.append(f"{last.folders} execution folders are left")
    if last.processes > 1:  # its fork server
        bad.append(f"{last.processes} processes beside the edge, when nothing runs")
    if last.threads > 2:
        bad.append(f"{last.threads} threads")
    at_rest = sorted(fd_of(soak.process.pid))
    soak.end("term")
    time.sleep(1)
    if left := soak.others():
        bad.append(f"processes are left: {left}")
    temporary = [
        str(path.relative_to(soak.folder))
        for path in soak.folder.rglob("*")
        if path.suffix in (".new", ".tmp") or path.name == "edge.sock" or "exec" in path.parts[:-1]
    ]
    if temporary:
        bad.append(f"files are left: {temporary[:10]}")
    with closing(open_store(soak.dsn)) as store:
        violations = store.read("violation", limit=20)
        ended = Counter(run["status"] for run in store.read("run_state"))
        steps = len(store.read("step_state"))
        attempts = store.read("attempt_state")
    lost = sum(one["result_code"] == "execution_lost" for one in attempts)
    if lost > SLOTS * soak.ends["all"]:
        bad.append(f"{lost} executions were lost: what a killed edge started goes on without it")
    if violations:
        bad.append(f"violation: {violations[:5]}")
    if sum(ended.values()) != len(soak.started):
        bad.append(f"{len(soak.started)} runs were started, {sum(ended.values())} are there")
    sizes, rows, free, page = bytes_by_table(soak.folder / "soak.db")
    file = (soak.folder / "soak.db").stat().st_size
    settled = warm(soak.samples, min(WARM_S, minutes * 60 / 5)) or soak.samples
    longest = Counter(one.life for one in soak.samples).most_common(1)[0][0]
    course = [round(one.rss / MB, 1) for one in soak.samples if one.life == longest]
    grows = slope(settled, "rss") / 1024
    peak = max(one.rss for one in soak.samples) / MB
    if soak.burst and soak.burst["grows_kib"] > soak.burst["allowed_kib"]:
        bad.append(f"memory grew by {soak.burst['grows_kib']} KiB in the second half of the burst")
    if peak > RSS_MIB:
        bad.append(f"memory came to {peak:.1f} MiB")
    runs = max(1, len(soak.started))
    return {
        "minutes": round((time.monotonic() - soak.begun_s) / 60, 1),
        "profile": soak.profile,
        "runs": len(soak.started), "steps": steps, "attempts": len(attempts),
        "ended": dict(ended), "cancel_requested": len(soak.cancelled),
        "codes": dict(Counter(one["result_code"] or one["status"] for one in attempts)),
        "edge_ends": dict(soak.ends), "samples": len(soak.samples),
        "rss_mib": {"first": round(first.rss / MB, 1), "last": round(last.rss / MB, 1),
                    "peak": round(peak, 1)},
        "rss_slope_bytes_a_minute": round(grows * 1024),
        "rss_mib_of_longest_life": course[:: max(1, len(course) // 20)],
        "burst": soak.burst,
        "descriptors": {"at_rest": len(at_rest), "first": first.descriptors,
                        "most": max(one.descriptors for one in soak.samples)},
        "threads_most": max(one.threads for one in soak.samples),
        "processes_most": max(one.processes for one in soak.samples),
        "left": {"processes": len(left), "files": len(temporary), "folders": last.folders},
        "violations": len(violations),
        "file": {"bytes": file, "free_bytes": free * page, "bytes_a_run": round(file / runs),
                 "by_table": {
                     name: {"bytes": size, "rows": rows.get(name, 0),
                            "rows_a_run": round(rows.get(name, 0) / runs, 1)}
                     for name, size in sorted(sizes.items(), key=lambda one: -one[1])[:12]
                 }},
        "logs": sum(path.stat().st_size for path in soak.state.glob("*/log/*/*")),
        "broken": bad,
    }  # fmt: skip


def fd_of(pid: int) -> list[str]:
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found.append(str(path.readlink()))
    return found


def shown(report: dict[str, Any]) -> str:
    file = report["file"]
    lines = [
        f"{report['runs']} runs, {report['steps']} steps, {report['attempts']} attempts in"
        f" {report['minutes']} minutes ({report['profile']}): {report['ended']}",
        f"the edge was ended: {report['edge_ends']}; attempts: {report['codes']}",
        f"memory {report['rss_mib']} MiB, slope {report['rss_slope_bytes_a_minute']} bytes a minute"
        f" over {report['samples']} samples",
        f"memory of the longest life: {report['rss_mib_of_longest_life']}",
        f"memory through the burst: {report['burst']}",
        f"descriptors {report['descriptors']}, threads {report['threads_most']}, processes at most"
        f" {report['processes_most']}; left: {report['left']}; violations {report['violations']}",
        f"file {file['bytes']} bytes, {file['bytes_a_run']} a run, {file['free_bytes']} free;"
        f" logs {report['logs']} bytes",
        *(f"  {name:22} {row['bytes']:>10} bytes {row['rows']:>8} rows {row['rows_a_run']:>6} a run"
          for name, row in file["by_table"].items()),
        *(f"BROKEN: {words}" for words in report["broken"]),
    ]  # fmt: skip
    return "\n".join(lines)


def run(
    minutes: float, tasks: int, seed: int, profile: str, folder: Path, runs: int = 0
) -> dict[str, Any]:
    """A soak in a folder; the report. Ends all that it started, whatever happens."""
    (folder / "packages").mkdir()
    soak = Soak(folder, random.Random(seed), profile, 5_000 if minutes < 1 else 10_000)
    try:
        soaked(soak, minutes, tasks, runs)
        return judged(soak, minutes)
    finally:
        if soak.process:
            soak.process.kill()
            soak.process.wait()
        for pid in soak.others():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", choices=["edge", "standalone"], default="edge")
    parser.add_argument(
        "--burst", type=int, default=6000, help="short runs at the end, which show what is leaked"
    )
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qinglong-soak-") as folder:
        report = run(
            chosen.minutes, chosen.tasks, chosen.seed, chosen.profile, Path(folder), chosen.burst
        )
    print(shown(report))
    if chosen.json:
        chosen.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if report["broken"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
