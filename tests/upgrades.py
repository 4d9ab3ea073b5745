"""Stories of upgrades on PostgreSQL: under load, and held up (DESIGN §10).

Each begins with a database of an old revision and says what was wrong in words.
"""

import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from qinglong_sql import migrate
from tests import controls, engines
from tests.catalog import catalog
from tests.controls import login_of
from tests.engines import NEWEST
from tests.server import ROOT, Server, dsn
from tests.upgrade_watch import longest, looking
from tests.upgrading import (
    GROUPS,
    WITHIN_S,
    Crew,
    Ended,
    archived,
    audited,
    roles,
    succeeded,
)

LOGIN, DRIVER = "upgrade_run", "upgrade_control"
HELD = {"0001": "trigger_schedule", "0002": "worker_session"}  # what the next revision changes
TICK = """package: clock
tasks:
  tick: {run: ["true"], queue: nowhere}
triggers:
  tick: {task: tick, cron: "* * * * * *", tz: UTC, overlap: allow}
"""
OCCURRED = """
  select count(*), count(distinct r.scheduled_at_ms), coalesce(max(r.gap), 0)
  from (
    select t.scheduled_at_ms, t.scheduled_at_ms - lag(t.scheduled_at_ms)
      over (order by t.scheduled_at_ms) as gap
    from ql.run as t where t.trigger_key = 'tick'
  ) as r
"""


@dataclass(slots=True)
class Story:
    """What was measured, and what was wrong."""

    counts: dict[str, int | float | str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def check(self, holds: object, words: str) -> None:
        if not holds:
            self.wrong.append(words)


@contextmanager
def old_database(server: Server, before: str, template: str | None = None) -> Iterator[str]:
    """A database at a revision, as its superuser; a copy of `template` when there is one."""
    url = engines.fresh_postgres(server, template=template)
    try:
        roles(server, url)
        assert migrate.upgrade(url, before) == before
        yield url
    finally:
        engines.drop_postgres(server, url)


def migrator(server: Server, url: str) -> str:
    return dsn(server, url.rpartition("/")[2], user="ql_migrator")


def migrated(crew: Crew, to: str) -> Ended:
    """`qinglong-sql migrate` of this tree, as ql_migrator."""
    return crew.one("migrate", code=ROOT, who="migrate", QINGLONG_DSN=to, QL_CALLS="/dev/null")


def under_load(
    server: Server, folder: Path, url: str, before: str, *, hands: int = 3, raced: bool = False,
    slow_s: float = 1.5,
) -> Story:  # fmt: skip
    """Old processes work, `migrate` runs, they go on, new ones take over one by one.

    raced: ten more hands of the old code, so that at each moment one of them asks for each thing.
    """
    story, stack = Story(), ExitStack()
    with stack:
        there = sum(count for _, count in succeeded(url))
        login = stack.enter_context(login_of(url, LOGIN, GROUPS))
        crew = Crew(folder, login, archived(before, folder), "old", slow_s)
        stack.callback(crew.stop)
        clock = Clock(story, crew, stack.enter_context(login_of(url, DRIVER)), stack)
        early = crew.one("run", "flow.yaml", "flow", "--new", code=ROOT, who="early")
        story.check(early.code == 6 and "qinglong-sql migrate" in early.said,
                    f"this release on revision {before}: {early}")  # fmt: skip
        if before > "0001":
            clock.begin()
        crew.begin(hands)
        crew.until("old", hands)
        with crew.raced(story.wrong) if raced else nullcontext(Counter[str]()) as race:
            time.sleep(4.0 if raced else 0.0)  # what is beside has begun
            taken = begun_by_old(crew, url)
            measured(story, crew, server, url)
            story.counts["taken_over"] = int(taken.poll() is None)
            taken.kill()
            time.sleep(2.0 if raced else 0.0)
        story.counts |= {f"raced_{name}": count for name, count in race.items()}
        took_over(story, crew, taken)
        crew.until("old", crew.count("old") + hands)
        if before > "0001":
            clock.restart()
        crew.switch(ROOT, "new")
        crew.until("new", hands)
        crew.stop()
        if before > "0001":
            clock.end(url)
        trouble(story, crew)
        story.wrong += crew.wrong(more_runs=1) + audited(url, there + len(crew.ended) + 1)
        story.counts["runs"] = len(crew.ended) + 1
    return story


def measured(story: Story, crew: Crew, server: Server, url: str) -> None:
    """Migrate; how long it took, what it held for how long, and how long others waited."""
    sizes = [size(url)]
    began = time.time()
    with looking(url) as seen:
        done = migrated(crew, migrator(server, url))
        took = time.time() - began
        time.sleep(0.1)
    sizes.append(size(url))
    story.check((done.code, done.said) == (0, f"now at revision {NEWEST}\n"), f"migrate: {done}")
    calls = crew.calls()
    if not seen.began:  # a machine that is short of time; then the whole of it is the window
        seen.began, seen.ended = began, began + took
    story.counts |= {
        "migrate_ms": round(took * 1000),
        "locks_ms": round((seen.ended - seen.began) * 1000),
        "views_ms": seen.views,
        "grown_kib": (sizes[1][0] - sizes[0][0]) // 1024,
        "wal_kib": (sizes[1][1] - sizes[0][1]) // 1024,
    }
    story.counts |= {f"lock_{name}_ms": held for name, held in seen.tables.items()}
    story.counts["deadlocks"] = deadlocks(url)
    quiet, moved = longest(calls, began - 10, began), longest(calls, seen.began, seen.ended)
    story.counts |= {f"{word}_ms": ms for word, ms in moved.items()}
    story.counts |= {f"{word}_before_ms": ms for word, ms in quiet.items()}


def deadlocks(url: str) -> int:
    """The server's own count."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "select deadlocks from pg_stat_database where datname = current_database()"
        ).fetchone()
    return int(row[0]) if row else 0


def size(url: str) -> tuple[int, int]:
    """Bytes of the database, and of all that its server has logged."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("checkpoint")
        row = connection.execute(
            "select pg_database_size(current_database()), pg_current_wal_lsn() - '0/0'::pg_lsn"
        ).fetchone()
    assert row
    return int(row[0]), int(row[1])


def trouble(story: Story, crew: Crew) -> None:
    """The calls that failed, by their SQLSTATE; contention is tried again, a changed plan too."""
    known = {"55P03": "contended", "0A000": "plan_changed", "40P01": "deadlocks"}
    for one in crew.calls():
        if one.code in known:
            name = f"{one.who}_{known[one.code]}"
            story.counts[name] = int(story.counts.get(name, 0)) + 1
        elif one.code and one.who != "early":
            story.wrong.append(f"{one.step} of {one.who} failed: {one.code}")


def begun_by_old(crew: Crew, url: str) -> subprocess.Popen[str]:
    """A run of the old code that is in its middle; it goes on by itself until it is killed."""
    child = crew.begun("run", "flow.yaml", "slow", "--slots", "1")
    end = time.monotonic() + WITHIN_S
    asked = "select r.run_id from ql.run as r where r.target_key = 'slow'"
    with psycopg.connect(url, autocommit=True) as connection:
        while time.monotonic() < end:
            row = connection.execute(asked).fetchone()
            if row and crew.marks.read_text().count(row[0]) >= 2:
                return child
            time.sleep(0.02)
    child.kill()
    raise AssertionError(f"the old run does not begin: {child.communicate()[0]}")


def took_over(story: Story, crew: Crew, old: subprocess.Popen[str]) -> None:
    """A run of old code was killed, and goes on with this release when it is started again.

    A step that ran goes on under its launcher, which is of the old release as well.
    """
    said = old.communicate()[0]
    if story.counts["taken_over"]:
        new = crew.one("run", "flow.yaml", "slow", code=ROOT, who="new")
        story.check(new.code == 0, f"what old code began is not ended by the new: {new}")
    else:
        story.check(old.returncode == 0, f"an old run ended {old.returncode}: {said}")


@dataclass(slots=True)
class Clock:
    """Two old control processes and a trigger of each second; then two new ones in their place."""

    story: Story
    crew: Crew
    login: str
    stack: ExitStack
    old: list[controls.Process] = field(default_factory=list)

    def control(self, code: Path) -> controls.Process:
        made = controls.Process(self.login, self.crew.folder, PYTHONPATH=str(code))
        return self.stack.enter_context(closing(made))

    def begin(self) -> None:
        early = self.control(ROOT)
        self.story.check(early.ended() == 6 and "qinglong-sql migrate" in early.text(),
                         f"a new control on the old schema: {early.text()}")  # fmt: skip
        (self.crew.folder / "clock.yaml").write_text(TICK)
        done = self.crew.one("publish", "clock.yaml")
        assert done.code == 0, done
        self.old = [self.control(self.crew.code).ready() for _ in range(2)]

    def restart(self) -> None:
        """One at a time: the new one is ready before the old one is asked to stop."""
        late = self.control(self.crew.code)
        told = late.ended() == 6 and "install the release that migrated it" in late.text()
        self.story.check(told, f"an old control on the new schema: {late.text()}")
        for one in self.old:
            self.story.check(one.child.poll() is None, f"an old control has ended: {one.text()}")
            self.control(ROOT).ready()
            code = one.stop()
            self.story.check(code == 0, f"an old control ended with {code}: {one.text()}")
            self.story.counts["old_control_troubles"] = len(one.lines("trouble"))

    def end(self, url: str) -> None:
        """Each second at most once, and no gap longer than the grace of triggers would bridge."""
        with psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute(OCCURRED).fetchone()
        assert row
        self.story.counts |= {"occurrences": row[0], "longest_gap_ms": int(row[2])}
        self.story.check(row[0] == row[1] and row[0] > 5, f"occurrences and their times: {row}")
        self.story.check(row[2] <= 10_000, f"no occurrence for {row[2]} ms")


def held_up(server: Server, folder: Path, url: str, before: str) -> Story:
    """A long transaction has what the next revision changes: it gives up, and says for whom."""
    story, table = Story(), HELD[before]
    crew = Crew(folder, url, archived(before, folder), "old")
    there = catalog(url)
    with psycopg.connect(url, application_name="report of ann") as other:
        other.execute(f"select count(*) from ql.{table}".encode())
        (pid,) = other.execute("select pg_backend_pid()").fetchone() or ()
        began = time.time()
        crew.begin(1)
        try:
            done = migrated(crew, migrator(server, url))
            story.counts["gave_up_after_ms"] = round((time.time() - began) * 1000)
            crew.until("old", 1)
        finally:
            crew.stop()
    said = (f"nothing was changed; ql.{table} was held by pid {pid}", "report of ann",
            "pg_read_all_stats may see", f"pg_terminate_backend({pid})")  # fmt: skip
    story.check(done.code == 6 and all(part in done.said for part in said), f"it said: {done}")
    story.check(catalog(url) == there and migrate.current(url) == before, "it left something")
    story.counts |= {f"{k}_ms": v for k, v in longest(crew.calls(), began, time.time()).items()}
    story.wrong += crew.wrong()
    again = migrated(crew, migrator(server, url))
    story.check(again.code == 0 and migrate.current(url) == NEWEST, f"later: {again}")
    trouble(story, crew)
    return story
