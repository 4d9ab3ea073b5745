"""Schedulers and databases whose clocks are wrong: processes apart by ten minutes, and a jump.

`apart` lets two controls with clocks of their own meet at one PostgreSQL. `jumped` sets the clock
of the database itself, an hour forward and ten minutes back, while they run; on SQLite that is the
clock of the edge.
"""

import itertools
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from unittest import mock

from qinglong_sql.limits import CRON_GRACE_MS
from qinglong_sql.store.postgres import PostgresStore
from tests import acting, engines
from tests.binaries import Binaries
from tests.controls import HOME, Process, login_of
from tests.dying import MINUTE_MS
from tests.faked import Clock
from tests.server import start, stop
from tests.shell import Shell, ended
from tests.site import wait

TRIGGERS = 80  # more than two pages, so that both have something to do
HOUR_S, TEN_MINUTES_S = 3_600, 600
PATIENCE_S = 90.0
FEW = 3
MISFIRES = {"once": "fire_once", "never": "skip"}
TICK = {"cron": "* * * * * *", "kind": "task", "overlap": "allow", "target": "work", "tz": "UTC"}
Fired = tuple[str, int, int]  # trigger, scheduled, admitted
# libfaketime 0.9.10 takes its offset from the deadline of a clock_nanosleep on the monotonic clock
# even when it is told to leave that clock alone (its issue 426); Python sleeps so from 3.11 on, and
# gets EINVAL. On a busy machine cheroot sleeps while its threads begin, and a control process then
# says that it cannot listen. Without the library no clock that is set can do this.
MENDED = """\
import select, time
def sleep(seconds): select.select((), (), (), seconds)
time.sleep = sleep
"""
PACKAGE = """\
package: nightly
tasks:
  work: {run: "true"}
triggers:
  once: {cron: "* * * * * *", tz: UTC, task: work, misfire: fire_once}
  never: {cron: "* * * * * *", tz: UTC, task: work, misfire: skip}
"""


@contextmanager
def controls(dsn: str, folder: Path, *skews: Mapping[str, str]) -> Iterator[list[Process]]:
    """As many real control processes as there are environments; all of them are ready."""
    with ExitStack() as stack:
        login = stack.enter_context(login_of(dsn))
        found = [stack.enter_context(closing(Process(login, folder, **skew))) for skew in skews]
        for one in found:
            one.ready()
        yield found


def python(clock: Clock, folder: Path) -> dict[str, str]:
    """The environment of a Python whose clock is that one, and whose `time.sleep` works."""
    (mended := folder / "mended").mkdir(mode=0o755, exist_ok=True)
    (mended / "sitecustomize.py").write_text(MENDED, encoding="ascii")
    return clock.environment | {"PYTHONPATH": f"{mended}:{HOME}"}


def effects(one: Process) -> int:
    """How often it says that it has fired."""
    lines = [line["stages"].get("schedule", {}) for line in one.lines("cycle")]
    return sum(tally.get("effects", 0) for tally in lines)


@contextmanager
def settable(binaries: Binaries, file: Path) -> Iterator[tuple[Clock, str, int]]:
    """A server whose clock can be set, a database of it, and its postmaster's pid."""
    clock = Clock(file)
    with mock.patch.dict("os.environ", clock.environment):
        server = start(binaries)
    try:
        engines.postgres_template(server)
        yield clock, engines.fresh_postgres(server), server.child.pid
    finally:
        stop(server)


def apart(binaries: Binaries, folder: Path, minutes: int) -> tuple[list[str], int]:
    """What is wrong after so many minutes of two controls; how many runs there are.

    The minutes are those of the database, which is set to the next one when all was fired.
    """
    skewed = Clock(folder / "ahead", TEN_MINUTES_S)
    with (
        settable(binaries, folder / "server") as (clock, dsn, pid),
        closing(PostgresStore(dsn)) as store,
        controls(dsn, folder, {}, python(skewed, folder)) as both,
    ):
        told = [datetime.fromisoformat(one.lines()[0]["at"]).timestamp() for one in both]
        wrong = list[str]()
        if abs(told[1] - told[0] - TEN_MINUTES_S) > TEN_MINUTES_S / 4:
            wrong.append(f"their clocks are {told[1] - told[0]} seconds apart")
        made = acting.model({"work": acting.task()})
        minutely = TICK | {"cron": "* * * * *", "misfire": "fire_once"}
        triggers = {f"t{number:03}": minutely for number in range(TRIGGERS)}
        acting.publish_model(store, made | {"triggers": triggers})
        for _ in range(minutes):
            fire_all(store, clock, pid)
        codes = [one.stop() for one in both]  # afterwards all is told
        if codes != [0, 0]:
            wrong.append(f"asked to stop, the controls ended with {codes}")
        rows = store.read("run_state")
        times = sorted({row["scheduled_at_ms"] for row in rows})
        fired = {(row["trigger_key"], row["scheduled_at_ms"]) for row in rows}
        if fired != set(itertools.product(triggers, times)) or len(times) < minutes:
            wrong.append(f"{len(fired)} occurrences in {len(times)} minutes of {TRIGGERS} triggers")
        if {two - one for one, two in itertools.pairwise(times)} != {MINUTE_MS}:
            wrong.append(f"minutes are left out: {times}")
        said = [effects(one) for one in both]
        if not len(rows) == len(fired) == sum(said):
            wrong.append(f"the controls say {said} of {len(rows)} runs")
        if faults := [row for row in store.read("trigger_state") if row["fault_error"]]:
            wrong.append(f"faults: {faults[:3]}")
        if not acting.unbroken(store):
            wrong.append(f"violated: {store.read('violation')}")
        return wrong, len(rows)


def fire_all(store: PostgresStore, clock: Clock, pid: int) -> None:
    """Set the clock to where the next minute begins, and wait until nothing is due."""
    due_ms: list[int] = []

    def cursors() -> bool:
        due_ms[:] = {row["next_fire_at_ms"] or 0 for row in store.read("trigger_state")}
        return len(due_ms) == 1 and due_ms != [0]

    wait(cursors, "all triggers have the same cursor", PATIENCE_S)
    before, now_ms = due_ms[0], store.clock()
    clock.set(clock.ahead_s + max(0, (before - now_ms) // 1000 + 1), pid)
    wait(lambda: cursors() and due_ms[0] > before, "all that is due was fired", PATIENCE_S)


# -- the database's own clock


@dataclass(frozen=True, slots=True)
class Place:
    """A database with the triggers of PACKAGE, what goes round over it, and its clock."""

    clock: Clock
    now_ms: Callable[[], int]
    runs: Callable[[], list[Fired]]
    violations: Callable[[], list[object]]
    alive: Callable[[], bool]
    pid: int | None = None  # of the server whose clock it is

    def set(self, ahead_s: int) -> None:
        self.clock.set(ahead_s, self.pid)


def jumped(place: Place) -> tuple[list[str], Mapping[str, int]]:
    """An hour forward, ten minutes back; what is wrong, and counts."""
    wrong = list[str]()
    goes_on(place, 0, "at first")
    before_ms = place.now_ms()
    place.set(HOUR_S)
    ahead_ms = place.now_ms()
    if not HOUR_S * 1000 <= ahead_ms - before_ms < (HOUR_S + 30) * 1000:
        wrong.append(f"the clock jumped by {ahead_ms - before_ms} ms")
    goes_on(place, ahead_ms, "after the jump forward")
    seen = place.runs()
    place.set(HOUR_S - TEN_MINUTES_S)
    back_ms = place.now_ms()
    goes_on(place, back_ms, "after the jump back", until_ms=ahead_ms)
    rows = place.runs()
    wrong += judged(seen, rows, ahead_ms)
    if found := place.violations():
        wrong.append(f"violated: {found}")
    if not place.alive():
        wrong.append("who goes round has ended")
    return wrong, {"runs": len(rows)}


def judged(seen: Sequence[Fired], rows: Sequence[Fired], ahead_ms: int) -> Iterator[str]:
    """What is wrong with runs: those `seen` before the clock went back, and all there are."""
    late = defaultdict[str, list[int]](list)
    for key, at_ms, admitted_ms in seen:
        # the clock was looked at a moment after it was set
        if admitted_ms >= ahead_ms - CRON_GRACE_MS and at_ms < ahead_ms - 2 * CRON_GRACE_MS:
            late[key].append(at_ms)
    if {key: len(times) for key, times in late.items()} != {"once": 1}:
        yield f"of the hour that was left out was fired {dict(late)}"
    for key, at_ms, admitted_ms in rows:
        if admitted_ms < at_ms:
            yield f"{key} was fired at {admitted_ms}, before its time {at_ms}"
    if len({(key, at_ms) for key, at_ms, _ in rows}) != len(rows):
        yield "an occurrence has two runs"
    if not set(seen) <= set(rows):
        yield "a run is gone"


def goes_on(place: Place, from_ms: int, when: str, until_ms: int = 2**62) -> None:
    """Wait until each trigger has fired for some seconds of this time."""

    def fired() -> bool:
        found = defaultdict[str, int](int)
        for key, at_ms, _ in place.runs():
            found[key] += from_ms < at_ms < until_ms
        return all(found[key] >= FEW for key in MISFIRES)

    wait(fired, f"both triggers fire {when}", PATIENCE_S)


@contextmanager
def on_postgres(binaries: Binaries, folder: Path) -> Iterator[Place]:
    """Two controls over a server whose clock can be set."""
    with (
        settable(binaries, folder / "server") as (clock, dsn, pid),
        closing(PostgresStore(dsn)) as store,
        controls(dsn, folder, {}, {}) as both,
    ):
        made = acting.model({"work": acting.task()})
        triggers = {key: TICK | {"misfire": word} for key, word in MISFIRES.items()}
        acting.publish_model(store, made | {"triggers": triggers})

        def runs() -> list[Fired]:
            rows = store.read("run_state")
            return [(r["trigger_key"], r["scheduled_at_ms"], r["admitted_at_ms"]) for r in rows]

        yield Place(
            clock, store.clock, runs, lambda: list(store.read("violation")),
            lambda: all(one.child.poll() is None for one in both), pid,
        )  # fmt: skip


@contextmanager
def on_sqlite(folder: Path) -> Iterator[Place]:
    """An edge whose clock can be set."""
    clock = Clock(folder / "edge.clock")
    shell = Shell(folder, f"sqlite:///{folder}/q.db")
    shell.write("packages/nightly.yaml", PACKAGE)
    with (folder / "log").open("wb") as sink:
        edge = subprocess.Popen(
            [sys.executable, "-m", "tests.faked", clock.file, "edge", "--packages", "packages"],
            cwd=folder, env=shell.environment(), stdin=subprocess.DEVNULL, stdout=sink,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def asked(text: str) -> list[tuple[object, ...]]:
        with (
            suppress(sqlite3.OperationalError),
            closing(sqlite3.connect(folder / "q.db", timeout=10)) as connection,
        ):
            return connection.execute(text).fetchall()
        return []

    def now_ms() -> int:
        return time.time_ns() // 1_000_000 + clock.ahead_s * 1000

    def runs() -> list[Fired]:
        text = "select trigger_key, scheduled_at_ms, admitted_at_ms from run"
        return asked(text)  # type: ignore[return-value]

    try:
        yield Place(
            clock, now_ms, runs, lambda: list(asked("select * from violation")),
            lambda: edge.poll() is None,
        )  # fmt: skip
    except AssertionError as error:
        raise AssertionError(f"{error}\n{(folder / 'log').read_text()[-2000:]}") from error
    finally:
        edge.terminate()
        ended(edge)
        shell.nothing_is_left()
