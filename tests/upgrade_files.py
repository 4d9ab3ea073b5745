"""An upgrade of a SQLite file that an old `edge` and an old `run` have open (DESIGN §10)."""

import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from qinglong_sql import migrate
from tests.engines import NEWEST
from tests.prove import CannotRun
from tests.server import ROOT
from tests.test_migration import schema
from tests.upgrade_history import filled_file
from tests.upgrades import Story
from tests.upgrading import STEPS, WITHIN_S, Crew, Ended, archived


def under_load(folder: Path, before: str, rows: int) -> Story:
    """What runs goes on to its end, what old code begins is refused in words, the new goes on."""
    story, path = Story(), folder / "file.db"
    code = archived(before, folder)
    crew = Crew(folder, f"sqlite:///{path}", code, "old")
    first = crew.one("run", "flow.yaml", "flow", "--new", "--quiet")
    assert first.code == 0, first
    with closing(sqlite3.connect(path)) as connection:
        (run_id,) = connection.execute("select run_id from run").fetchone()
    if rows:
        story.counts["rows"] = filled_file(path, run_id, rows)
    edge = crew.begun("edge", "--packages", str(folder))
    slow = crew.begun("run", "flow.yaml", "slow", "--quiet")
    until_marked(crew, STEPS + 2)
    measured(story, crew, path)
    late = crew.one("run", "flow.yaml", "flow", "--new", "--quiet")
    words = f"stands at revision {NEWEST}, not {before}"
    story.check(late.code == 6 and words in late.said, f"old code on the new file: {late}")
    told = slow.communicate(timeout=WITHIN_S)[0]
    story.check((slow.returncode, told) == (0, ""), f"the old run: {slow.returncode} {told}")
    story.check(edge.poll() is None, "the old edge has ended")
    story.wrong += restarted(crew, edge)
    story.wrong += crew.wrong(more_runs=4)
    with closing(sqlite3.connect(path)) as connection:
        sound = connection.execute("pragma integrity_check").fetchall()
        story.check(sound == [("ok",)], f"integrity_check: {sound[:3]}")
    return story


def until_marked(crew: Crew, count: int) -> None:
    """Wait until so many steps have run."""
    end = time.monotonic() + WITHIN_S
    while len(crew.marks.read_text().splitlines()) < count:
        assert time.monotonic() < end, "the old run does not begin"
        time.sleep(0.02)


def measured(story: Story, crew: Crew, path: Path) -> None:
    before, began = whole_size(path), time.monotonic()
    with waiting(path) as waits:
        done = crew.one("migrate", code=ROOT, who="migrate")
    story.counts |= {
        "migrate_ms": round((time.monotonic() - began) * 1000),
        "longest_wait_ms": round(max(waits) * 1000),
        "mib": whole_size(path) >> 20,
        "grown_kib": (whole_size(path) - before) >> 10,
    }
    story.check((done.code, done.said) == (0, f"now at revision {NEWEST}\n"), f"migrate: {done}")


def whole_size(path: Path) -> int:
    """Bytes of a file and of its log."""
    return sum(one.stat().st_size for one in path.parent.glob(f"{path.name}*"))


@contextmanager
def waiting(path: Path) -> Iterator[list[float]]:
    """Ask for the file's one lock all the time; how many seconds each had to wait for it."""
    over, waits = threading.Event(), [0.0]

    def ask() -> None:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=WITHIN_S)) as connection:
            while not over.wait(0.02):
                began = time.monotonic()
                connection.execute("begin immediate")
                waits.append(time.monotonic() - began)
                connection.execute("rollback")

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield waits
    finally:
        over.set()
        thread.join()


def restarted(crew: Crew, edge: subprocess.Popen[str]) -> list[str]:
    """The old edge executes what is started on the new file, and ends; a new one does the same."""
    found = [done(crew)]
    edge.send_signal(signal.SIGTERM)
    said = edge.communicate(timeout=WITHIN_S)[0]
    if edge.returncode or "rror" in said or "trouble" in said:
        found.append(f"the old edge ended {edge.returncode}: {said}")
    new = crew.begun("edge", "--packages", str(crew.folder), code=ROOT, who="new")
    try:
        found.append(done(crew))
    finally:
        new.send_signal(signal.SIGTERM)
        said = new.communicate(timeout=WITHIN_S)[0]
    if new.returncode:
        found.append(f"the new edge ended {new.returncode}: {said}")
    return [one for one in found if one]


def done(crew: Crew) -> str:
    """Start a run for the edge and wait for its end; what was wrong."""
    words = ("start", "upgrade", "flow", "--key", str(time.monotonic_ns()), "--wait")
    one: Ended = crew.one(*words, code=ROOT, who="new")
    return "" if one.code == 0 else f"a run for the edge: {one}"


def broken_off(path: Path, folder: Path, after_s: float) -> str:
    """KILL a migration of a copy of a file after so long; the revision at which the copy stands.

    Raises AssertionError when it is neither whole nor can be brought to the newest.
    """
    copy = folder / "copy.db"
    for one in folder.glob("copy.db*"):
        one.unlink()
    shutil.copyfile(path, copy)
    script = "from qinglong_sql import migrate\nprint('ready', flush=True)\ninput()\n"
    child = subprocess.Popen(
        [sys.executable, "-c", f"{script}migrate.upgrade('sqlite:///{copy}')"],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdin and child.stdout and child.stdout.readline() == "ready\n"
    child.stdin.write("go\n")
    child.stdin.flush()
    time.sleep(after_s)
    child.kill()
    child.communicate(timeout=WITHIN_S)
    stands = migrate.current(f"sqlite:///{copy}") or ""
    wanted = folder / f"whole-{stands}.db"
    if not wanted.exists():
        migrate.upgrade(f"sqlite:///{wanted}", stands)
    assert schema(copy) == schema(wanted), f"half of a revision is left after {after_s:.3f} s"
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    assert migrate.upgrade(f"sqlite:///{copy}") == NEWEST
    return stands


def whole_of(folder: Path, before: str) -> Path:
    """A file at a revision."""
    path = folder / f"at-{before}.db"
    if migrate.upgrade(f"sqlite:///{path}", before) != before:
        raise CannotRun(f"no file at {before}")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
    return path
