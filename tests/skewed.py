"""Schedulers and databases whose clocks are wrong: processes apart by ten minutes, and a jump.

`apart` lets two schedulers with clocks of their own meet at one PostgreSQL, whose time the test
moves. `jumped` sets the clock of the database itself, an hour forward and ten minutes back, while
schedulers run; on SQLite that is the clock of the edge.
"""

import itertools
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import psycopg

from qinglong_sql.limits import CRON_GRACE_MS
from qinglong_sql.store.postgres import PostgresStore
from tests import acting, engines
from tests.binaries import Binaries
from tests.dying import MINUTE_MS
from tests.faked import Clock
from tests.server import Server, start, stop
from tests.shell import Shell, ended
from tests.site import wait
from tests.stores import ServerClock
from tests.ticking import ticking

TRIGGERS = 80  # more than two pages, so that both have something to do
HOUR_S, TEN_MINUTES_S = 3_600, 600
PATIENCE_S = 90.0
FEW = 3
MISFIRES = {"once": "fire_once", "never": "skip"}
TICK = {"cron": "* * * * * *", "kind": "task", "overlap": "allow", "target": "work", "tz": "UTC"}
Fired = tuple[str, int, int]  # trigger, scheduled, admitted
PACKAGE = """\
package: nightly
tasks:
  work: {run: "true"}
triggers:
  once: {cron: "* * * * * *", tz: UTC, task: work, misfire: fire_once}
  never: {cron: "* * * * * *", tz: UTC, task: work, misfire: skip}
"""


def apart(server: Server, folder: Path, minutes: int) -> tuple[list[str], int]:
    """What is wrong after so many minutes of two schedulers; how many runs there are."""
    skewed = Clock(folder / "ahead", TEN_MINUTES_S)
    dsn = engines.fresh_postgres(server)
    try:
        with (
            closing(ServerClock(dsn, 1_700_000_040_000)) as clock,  # a whole minute
            closing(PostgresStore(dsn)) as store,
            ticking(dsn, folder / "one") as one,
            ticking(dsn, folder / "two", **skewed.environment) as two,
        ):
            made = acting.model({"work": acting.task()})
            minutely = TICK | {"cron": "* * * * *", "misfire": "fire_once"}
            triggers = {f"t{number:02}": minutely for number in range(TRIGGERS)}
            acting.publish_model(store, made | {"triggers": triggers})
            wait(lambda: one.wall_ms() and two.wall_ms(), "both are there", PATIENCE_S)
            skew_ms = (two.wall_ms() or 0) - (one.wall_ms() or 0)
            wrong = [] if abs(skew_ms - TEN_MINUTES_S * 1000) < 120_000 else [f"apart: {skew_ms}"]
            count = 0
            for _ in range(minutes):
                wait_for_all(store, clock.now_ms)
                count = len(store.read("run_state"))
                clock.set((clock.now_ms // MINUTE_MS + 1) * MINUTE_MS)
            wait_for_all(store, clock.now_ms)
            rows = store.read("run_state")
            fired = {(row["trigger_key"], row["scheduled_at_ms"]) for row in rows}
            times = {row["scheduled_at_ms"] for row in rows}
            wanted = set(itertools.product(triggers, times))
            effects = [sum(line.get("effects", 0) for line in each.told()) for each in (one, two)]
            if fired != wanted or len(rows) != len(fired) or len(times) != minutes + 1:
                wrong.append(f"{len(rows)} runs of {len(times)} minutes, {len(wanted)} wanted")
            if sum(effects) != len(rows):
                wrong.append(f"the schedulers say {effects} of {len(rows)} runs")
            wrong += [f"faulted: {line}" for each in (one, two) for line in each.told()
                      if line.get("faulted")]  # fmt: skip
            if one.child.poll() is not None or two.child.poll() is not None:
                wrong.append("a scheduler has ended")
            if not acting.unbroken(store):
                wrong.append(f"violated: {store.read('violation')}")
            count = len(rows)
        return wrong, count
    finally:
        engines.drop_postgres(server, dsn)


def wait_for_all(store: PostgresStore, now_ms: int) -> None:
    """Until no trigger is due any more."""

    def settled() -> bool:
        rows = store.read("trigger_state")
        return all(row["next_fire_at_ms"] and row["due_at_ms"] > now_ms for row in rows) and all(
            row["due_at_ms"] == row["next_fire_at_ms"] for row in rows
        )

    wait(settled, "all that is due was fired", PATIENCE_S)


# -- the database's own clock


@dataclass(frozen=True, slots=True)
class Place:
    """A database with the triggers of PACKAGE, what goes round over it, and its clock."""

    clock: Clock
    now_ms: Callable[[], int]
    runs: Callable[[], list[Fired]]
    violations: Callable[[], list[object]]
    alive: Callable[[], bool]


def jumped(place: Place) -> tuple[list[str], Mapping[str, int]]:
    """An hour forward, ten minutes back; what is wrong, and counts."""
    wrong = list[str]()
    goes_on(place, 0, "at first")
    before_ms = place.now_ms()
    place.clock.set(HOUR_S)
    ahead_ms = place.now_ms()
    if not HOUR_S * 1000 <= ahead_ms - before_ms < (HOUR_S + 30) * 1000:
        wrong.append(f"the clock jumped by {ahead_ms - before_ms} ms")
    goes_on(place, ahead_ms, "after the jump forward")
    seen = place.runs()
    place.clock.set(HOUR_S - TEN_MINUTES_S)
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
        if admitted_ms >= ahead_ms and at_ms <= ahead_ms - CRON_GRACE_MS - 1000:
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
    """Two schedulers over a server whose clock can be set."""
    clock = Clock(folder / "server")
    with mock.patch.dict("os.environ", clock.environment):
        server = start(binaries)
    try:
        engines.postgres_template(server)
        dsn = engines.fresh_postgres(server)
        with (
            psycopg.connect(dsn, autocommit=True) as connection,
            closing(PostgresStore(dsn)) as store,
            ticking(dsn, folder / "one") as one,
            ticking(dsn, folder / "two") as two,
        ):
            made = acting.model({"work": acting.task()})
            triggers = {key: TICK | {"misfire": word} for key, word in MISFIRES.items()}
            acting.publish_model(store, made | {"triggers": triggers})

            def now_ms() -> int:
                return int(connection.execute("select ql.now_ms()").fetchall()[0][0])

            def runs() -> list[Fired]:
                text = "select trigger_key, scheduled_at_ms, admitted_at_ms from ql.run"
                return connection.execute(text).fetchall()

            yield Place(
                clock, now_ms, runs, lambda: list(store.read("violation")),
                lambda: one.child.poll() is None and two.child.poll() is None,
            )  # fmt: skip
    finally:
        stop(server)


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
