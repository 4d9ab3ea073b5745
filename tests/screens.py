"""Screens as a user sees them, from fixed facts at a fixed time, kept as golden text.

`prepared(folder)` makes a SQLite file with runs in every kind of state, `screen` shows a command on
it at a width, `same_as_golden` compares. `QINGLONG_GOLDEN=write` writes golden/screens anew.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from qinglong_sql.cli import words
from tests import acting
from tests.shell import Shell
from tests.stores import FakeClock, sqlite_store

FOLDER = Path(__file__).parent / "golden" / "screens"
SIZES = {
    "80": {"COLUMNS": "80"},
    "40": {"COLUMNS": "40"},
    "ascii": {"COLUMNS": "80", "LC_ALL": "C"},
}
ETL = {
    "extract": [],
    "clean": ["extract"],
    "check": ["clean"],
    "load": ["check"],
    "report": ["check"],
    "tell": ["load", "report"],
}
MINUTE_MS = 60_000
FULL = "磁盘已满: cannot write /mnt/backup/nightly.tar.gz (No space left on device)"


@dataclass(frozen=True, slots=True)
class Facts:
    """A prepared database: a shell on it, the time of its screens, and its runs by name."""

    shell: Shell
    now_ms: int
    runs: dict[str, str]

    def screen(self, command: str, run: str = "", *more: str, size: str = "80") -> str:
        """What a command prints; `run` is a name of `runs`."""
        ids = [self.runs[run]] if run else []
        with standing_still(self.now_ms):
            done = self.shell(command, *ids, *more, "--utc", env={**SIZES[size], "TERM": "xterm"})
        assert not done.stderr, done.stderr
        return re.sub(r"\d+(\.\d)? [KM]iB", "SIZE", done.stdout)


@contextmanager
def standing_still(now_ms: int) -> Iterator[None]:
    """Screens take this for now."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "time", SimpleNamespace(time=lambda: now_ms / 1000))
        yield


def same_as_golden(name: str, text: str) -> None:
    """Compare with golden/screens/NAME.txt, or write it."""
    path = FOLDER / f"{name}.txt"
    if os.environ.get("QINGLONG_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


def prepared(folder: Path) -> Facts:
    """A file `qinglong.db` with five ended runs and four open ones."""
    clock = FakeClock()
    store = sqlite_store(folder, clock)
    work = acting.task(retry={"attempts": 2, "backoff_ms": 20_000})
    tasks = {
        "work": work,
        "render": acting.task(queue="gpu"),
        "pay": acting.task(on_lost="hold"),
    }
    flows = {"etl": acting.workflow(ETL, timeout_ms=7_200_000)}
    steps = {"draw": {"needs": [], "task": "render"}, "send": {"needs": ["draw"], "task": "work"}}
    flows["film"] = {"steps": steps, "timeout_ms": None}
    triggers = {
        "night": {"cron": "0 3 * * *", "kind": "workflow", "misfire": "skip", "overlap": "skip",
                  "target": "etl", "tz": "Asia/Shanghai"},
    }  # fmt: skip
    acting.publish_model(store, acting.model(tasks, flows) | {"triggers": triggers})
    runs: dict[str, str] = {}

    def start(name: str, target: str, kind: str = "workflow") -> str:
        row = store.call("start_run", p_package_key="nightly", p_kind=kind, p_target_key=target,
                         p_run_key=name, p_input="{}")[0]  # fmt: skip
        runs[name] = row["run_id"]
        clock.advance(400)
        acting.admit(store, runs[name])
        return runs[name]

    def do(run_id: str, ms: int, error: str | None = None, **ends: int) -> None:
        clock.advance(900)
        count = len(store.read("attempt_state", run_id=run_id, status="claimed"))
        mark = len(store.read("event_log", run_id=run_id))
        held = acting.lease(store, *(f"{run_id[-8:]}.{mark}.{n}" for n in range(count)))
        acting.run(store, *held.values())
        clock.advance(ms)
        for key, one in held.items():
            code = ends.get(key, 0)
            acting.report(store, one, exit_code=code, error=error if code else None)
        acting.advance(store, run_id)

    good = start("good", "etl")
    for ms in (4_000, 11_000, 2_500, 6_000, 1_000):
        do(good, ms)
    clock.advance(26 * 60 * MINUTE_MS)  # the day after
    bad = start("bad", "etl")
    do(bad, 5_000)
    do(bad, 12_000)
    do(bad, 3_000, FULL, check=1)
    clock.advance(25_000)
    store.call("retry_run", p_run_id=bad)
    acting.admit(store, bad)
    do(bad, 7_000, FULL, check=1)
    stopped = start("stopped", "etl")
    do(stopped, 3_000)
    acting.cancel(store, stopped)
    acting.converge(store, stopped)
    clock.advance(5 * MINUTE_MS)

    held = start("held", "pay", "task")
    acting.run(store, *acting.lease(store, "held.1").values())
    start("queued", "film")
    clock.advance(3 * MINUTE_MS)
    acting.recover(store, held)
    moving = start("moving", "etl")
    do(moving, 8_000)
    do(moving, 41_000)
    acting.run(store, *acting.lease(store, "moving.3").values())
    faulty = start("faulty", "etl")
    error = 'QL500 step "clean" has 2 attempts past the barrier'
    store.call("record_fault", p_run_id=faulty, p_stage="frontier", p_error=error)
    acting.run(store, *acting.lease(store, "faulty.1").values())
    clock.advance(12_000)
    assert acting.unbroken(store)
    store.close()
    return Facts(Shell(folder, "sqlite:///qinglong.db"), clock.now_ms, runs)
