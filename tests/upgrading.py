"""Processes of a release that is gone, at work: what an upgrade meets (DESIGN §10).

Real are the code of 0.1.0 and 0.2.0 (`git archive`), its processes as logins of its groups, steps
that leave a mark when they run, and the clock of every call, which a `sitecustomize` in front of
each process writes down. `upgrades` tells the stories; this file has their people.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from tests.racing import NEVER
from tests.server import ROOT, SQL_ROOT, Server, tool
from tests.upgrade_watch import CLOCK, Call

RELEASES = {"0001": "128ff9c", "0002": "d882d9c"}  # 0.1.0 and 0.2.0, by their last revision
GROUPS = "ql_reader, ql_admission, ql_scheduler, ql_worker"
STEPS = 12
WITHIN_S = 120.0
OF_HISTORY = "rh"  # how the ids of copied runs begin; others are ru and hexadecimal digits
STEP_S = 0.05
STEP = (
    '      s{n}: {{run: "echo $QL_RUN_ID $QL_STEP >> {marks}; sleep {seconds}", queue: crew,'
    " needs: [{need}]}}\n"
)
# Four schedulers, four workers and two cancellers of the old code, until standard input ends.
RACE = """
import contextlib, json, sys, threading
from functools import partial
from tests import acting, racing
from qinglong_sql.store.postgres import open_postgres_store

over = threading.Event()

def open_runs(store):
    return store.read("run_state", status="running", package_key="nightly")

def feed(track, store, runs, until):
    while not over.wait(0.1) and not track.failed():
        for _ in range(runs - len(open_runs(store))):
            with contextlib.suppress(racing.Contended):
                track.runs.append(acting.start(store, key=f"k{len(track.runs)}"))

def drain(track, store):
    for _ in range(300):
        if track.failed() or not open_runs(store):
            return
        track.stop.wait(0.2)
    track.fail(f"do not end: {open_runs(store)[:3]}")

racing.open_postgres_store = partial(open_postgres_store, prepare_threshold=None)
racing._look = racing._look_back = lambda track: None  # they read the whole history
racing._feed, racing._drain = feed, drain
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
found = racing.race(sys.argv[1], runs=12, seconds=0, seed=1)
print(json.dumps([found.counts, found.failures]))
"""


class NoHistory(Exception):
    """The code of a release is not in this checkout's history."""


def archived(revision: str, folder: Path) -> Path:
    """The tree of the release that ended with a revision. Raises NoHistory in a shallow clone."""
    place = folder / f"release-{revision}"
    if place.exists():
        return place
    words = ["git", "-C", str(ROOT), "archive", RELEASES[revision]]
    made = subprocess.run(words, capture_output=True, check=False, timeout=60)
    if made.returncode:
        raise NoHistory(f"no commit {RELEASES[revision]} here: {made.stderr.decode().strip()}")
    place.mkdir()
    subprocess.run(["tar", "-x", "-C", place], input=made.stdout, check=True, timeout=60)
    return place


def roles(server: Server, url: str) -> None:
    """What a DBA does once a cluster and database."""
    script = str(SQL_ROOT / "postgres" / "role.sql")
    tool(server, "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-d", url, "-f", script)


@dataclass(frozen=True, slots=True)
class Ended:
    """One process that has ended."""

    who: str
    code: int
    said: str


@dataclass(slots=True)
class Crew:
    """Hands that run the flow again and again, a process each; `code` is the tree that they use.

    `switch` is the rolling restart: what runs ends as it began, what begins is of the new tree.
    """

    folder: Path
    dsn: str
    code: Path
    who: str
    slow_s: float = 1.5  # how long a step of the workflow `slow` takes
    ended: list[Ended] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    hands: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "site").mkdir()
        (self.folder / "site" / "sitecustomize.py").write_text(CLOCK)
        text = "package: upgrade\nworkflows:\n"
        for flow, seconds in {"flow": STEP_S, "slow": self.slow_s}.items():
            text += f"  {flow}:\n    steps:\n"
            for n in range(STEPS):
                need = f"s{n - 3}" if n > 2 else ""
                text += STEP.format(n=n, marks=self.marks, seconds=seconds, need=need)
        (self.folder / "flow.yaml").write_text(text)

    @property
    def marks(self) -> Path:
        return self.folder / "marks"

    @property
    def log(self) -> Path:
        return self.folder / "calls"

    def env(self, code: Path | None = None, who: str = "", **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("QINGLONG_", "PG"))}
        path = f"{self.folder / 'site'}:{code or self.code}"
        ours = {"PYTHONPATH": path, "QINGLONG_DSN": self.dsn, "LANG": "C.UTF-8"}
        return kept | ours | {"QL_CALLS": str(self.log), "QL_CALLER": who or self.who} | more

    def begun(self, *words: str, code: Path | None = None, who: str = "",
              **more: str) -> subprocess.Popen[str]:  # fmt: skip
        """One command of a tree, in the crew's folder."""
        return subprocess.Popen(
            [sys.executable, "-m", "qinglong_sql", *words], cwd=self.folder,
            env=self.env(code, who, **more), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    @contextmanager
    def raced(self, wrong: list[str]) -> Iterator[Counter[str]]:
        """The old code's own race beside; its counts, and what went wrong, when the block ends."""
        child = subprocess.Popen(
            [sys.executable, "-c", RACE, self.dsn], cwd=self.folder, env=self.env(who="old"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        counts: Counter[str] = Counter()
        try:
            yield counts
            said, trouble = child.communicate(timeout=WITHIN_S)
        except BaseException:
            child.kill()
            raise
        if child.returncode:
            wrong.append(f"the race of old code ended {child.returncode}: {trouble[-800:]}")
        else:
            found, failures = json.loads(said)
            counts.update(found)
            wrong.extend(f"the race of old code: {one}" for one in failures)

    def one(self, *words: str, code: Path | None = None, who: str = "", **more: str) -> Ended:
        """The same to its end."""
        who = who or self.who
        child = self.begun(*words, code=code, who=who, **more)
        try:
            said, _ = child.communicate(timeout=WITHIN_S)
        except subprocess.TimeoutExpired:
            child.kill()
            said, _ = child.communicate()
            said = f"did not end in {WITHIN_S:.0f} s: {said}"
        return Ended(who, child.returncode, said)

    def begin(self, hands: int) -> None:
        self.hands = [threading.Thread(target=self._work) for _ in range(hands)]
        for hand in self.hands:
            hand.start()

    def _work(self) -> None:
        while not self.over.is_set():
            self.ended.append(self.one("run", "flow.yaml", "flow", "--new", "--quiet"))

    def switch(self, code: Path, who: str) -> None:
        self.code, self.who = code, who

    def count(self, who: str) -> int:
        return sum(one.who == who for one in self.ended)

    def until(self, who: str, count: int) -> None:
        """Wait until so many processes of a release have ended. Raises AssertionError."""
        end = time.monotonic() + WITHIN_S
        while self.count(who) < count:
            assert time.monotonic() < end, f"only {self.count(who)} runs of {who} have ended"
            time.sleep(0.05)

    def stop(self) -> None:
        self.over.set()
        for hand in self.hands:
            hand.join()

    def calls(self) -> list[Call]:
        """All that was asked of the database so far."""
        found = []
        for line in self.log.read_text().splitlines() if self.log.exists() else ():
            row = json.loads(line)
            name = re.search(r'"ql_\w+"\."(\w+)"|ql\."?(\w+)', row["text"])
            step = (name[1] or "view") if name else "other"
            found.append(Call(row["who"], step, row["at"], row["ms"], row["code"]))
        return found

    def wrong(self, more_runs: int = 0) -> list[str]:
        """What is lost, doubled, stuck or was told as trouble. more_runs: beside the hands' own."""
        found = [f"a run of {one.who} ended {one.code}: {one.said[-500:]}"
                 for one in self.ended if one.code or one.said.strip()]  # fmt: skip
        runs = len(self.ended) + more_runs
        marks = Counter(self.marks.read_text().splitlines())
        if twice := [mark for mark, times in marks.items() if times > 1]:
            found.append(f"executed more than once: {twice[:5]}")
        if len(marks) != runs * STEPS:
            found.append(f"{len(marks)} steps were executed, not {runs} runs of {STEPS}")
        return found


def succeeded(dsn: str) -> list[tuple[str, int]]:
    """How the runs of crews stand."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(
            "select status, count(*) from ql.run where package_key = 'upgrade'"
            f" and run_id !~ '^{OF_HISTORY}' group by 1".encode()
        ).fetchall()


def audited(dsn: str, runs: int) -> list[str]:
    """What the tables say when all is over; so many runs of crews have succeeded."""
    found = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        for words, query in NEVER.items():
            if rows := connection.execute(query.encode()).fetchall():
                found.append(f"{words}: {rows[:3]}")
        ours = connection.execute(
            f"select run_id from ql.run where run_id !~ '^{OF_HISTORY}'".encode()
        ).fetchall()
        for one in ours:  # of all runs at once it reads all of their history
            asked = "select * from ql.violation where run_id = %s"
            if rows := connection.execute(asked, one).fetchall():
                found.append(f"violated: {rows[:3]}")
    if (ends := succeeded(dsn)) != [("succeeded", runs)]:
        found.append(f"{runs} runs should have succeeded; there are: {ends}")
    return found
