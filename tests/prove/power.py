"""Power fails: what was acknowledged is there again, nothing is corrupt, and work goes on.

1. SQLite on the disk of `tests.power`, which loses or tears what was not synced: 2,000 moments of a
   whole life for edge and for standalone (150 with --quick), and more as long as there is time.
2. Real ext4 and xfs on a loop device, shut down without a flush of their journals: 30 rounds each
   (2 with --quick) of SQLite edge, SQLite standalone and PostgreSQL, whose client notes on another
   file system what was acknowledged.
Controls with too weak a setting lose something, or the check fails.

Not covered: a disk or flash controller that acknowledges a flush and loses what it acknowledged
(no data base survives that; the controls without sync show what it looks like), damage of sectors
that nobody wrote, a file system without a journal (ext2, FAT), and a PostgreSQL whose log lies on
another disk than its tables.
"""

import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg

from qinglong_sql.errors import QinglongError
from qinglong_sql.store import Store
from qinglong_sql.store.postgres import open_postgres_store
from qinglong_sql.store.sqlite import Profile, SqliteStore
from tests import acting, mounts, powered, server
from tests.clusters import Cluster, cluster
from tests.mounts import Mount
from tests.prove import Setting, Verdict, needing
from tests.stores import install

MOMENTS, QUICK_MOMENTS = 2_000, 150
ROUNDS, QUICK_ROUNDS = 30, 2
CONTROL_ROUNDS = 5
KINDS = ("ext4", "xfs")
PROFILES: tuple[Profile, ...] = ("edge", "standalone")
Opener = Callable[[], Store]


def prove(setting: Setting) -> Verdict:
    verdict, more = Verdict(), setting.until()
    records = {profile: _moments(setting, verdict, profile) for profile in PROFILES}
    for profile, text in powered.CONTROLS:
        record = powered.recorded(setting.folder, profile, powered.setting(text))
        draw = setting.random(profile, text)
        lost = any(powered.failed(record, setting.folder / "work.db", draw) for _ in range(200))
        verdict.check(lost, f"{profile} with `{text}` lost nothing: this check has no teeth")
        verdict.count("controls that lost")
    for kind in KINDS:
        with needing(verdict, kind), mounts.mounted(setting.folder, kind) as mount:
            for profile in PROFILES:
                _sqlite_rounds(setting, verdict, mount, profile)
            _postgres_rounds(setting, verdict, mount)
    number = MOMENTS
    while not setting.quick and more():
        for record in records.values():
            _moment(setting, verdict, record, number)
        number += 1
    return verdict


def _moments(setting: Setting, verdict: Verdict, profile: Profile) -> powered.Record:
    record = powered.recorded(setting.folder, profile)
    verdict.failures += powered.settings(record)
    for number in range(QUICK_MOMENTS if setting.quick else MOMENTS):
        _moment(setting, verdict, record, number)
    return record


def _moment(setting: Setting, verdict: Verdict, record: powered.Record, number: int) -> None:
    setting.say(f"power: {record.profile}, moment {number}")
    draw = setting.random(record.profile, number)
    for line in powered.failed(record, setting.folder / "work.db", draw):
        verdict.failures.append(f"seed {setting.seed}, moment {number}: {line}")
    verdict.count(f"{record.profile} moments")


# --- real file systems


def client(open_it: Opener, told: Path, number: int) -> int:
    """Start, admit and cancel runs until power fails; each answered key is noted in `told`."""
    pid = os.fork()
    if pid:
        return pid
    try:
        store = open_it()
        notes = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for count in range(1_000_000):
            key = f"{number}.{count}"
            run_id = acting.start(store, key=key)
            os.write(notes, f"start {run_id}\n".encode())
            acting.admit(store, run_id)
            os.write(notes, f"admit {run_id}\n".encode())
            if count % 2:
                acting.cancel(store, run_id)
                os.write(notes, f"cancel {run_id}\n".encode())
                acting.converge(store, run_id)
                os.write(notes, f"end {run_id}\n".encode())
    finally:
        os._exit(0)


def missing(store: Store, told: Path) -> list[str]:
    """Notes whose effect is not there, and broken rules."""
    runs = {row["run_id"]: row for row in store.read("run_state")}
    attempts = {row["run_id"] for row in store.read("attempt_state")}
    lost = []
    for line in told.read_text().splitlines():
        what, run_id = line.split()
        row = runs.get(run_id)
        there = (
            row is not None
            and {
                "start": True,
                "admit": run_id in attempts,
                "cancel": row["cancel_requested_at_ms"] is not None,
                "end": row["status"] == "cancelled",
            }[what]
        )
        if not there:
            lost.append(line)
    wrong = [f"{len(lost)} acknowledged are lost, as {lost[-1]}"] if lost else []
    return wrong + [f"violation {row}" for row in store.read("violation")]


def one_round(mount: Mount, pid: int, draw: random.Random, told: Path) -> None:
    """Let the client work for a while, and fail; the file system is mounted again afterwards.

    What is answered while the shutdown goes on counts as unanswered: power fails in no time, and
    nobody hears of a sync that returns meanwhile, which Linux may let succeed.
    """
    end = time.monotonic() + 20
    while not (told.exists() and told.stat().st_size) and time.monotonic() < end:
        time.sleep(0.005)
    time.sleep(draw.uniform(0.02, 0.3))
    answered = told.stat().st_size
    mount.lose_power()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.truncate(told, answered)


def _sqlite_rounds(setting: Setting, verdict: Verdict, mount: Mount, profile: Profile) -> None:
    path = mount.folder / f"{profile}.db"
    told = setting.folder / f"{mount.kind}-{profile}.told"

    def opened() -> SqliteStore:
        return SqliteStore(path, profile=profile)

    def weak() -> SqliteStore:
        store = opened()
        store._connection.execute("pragma synchronous = off")
        return store

    def fresh() -> None:
        for side in ("", "-journal", "-wal", "-shm"):
            path.with_name(path.name + side).unlink(missing_ok=True)
        install(path)
        with closing(opened()) as store:
            acting.publish(store, {"a": [], "b": ["a"]})
        told.write_text("")
        os.sync()

    def again(open_it: Opener, number: int) -> list[str]:
        pid = client(open_it, told, number)
        one_round(mount, pid, setting.random(mount.kind, profile, number), told)
        mount.detach()
        mount.attach()
        try:
            with closing(opened()) as store:
                wrong = [f"{line}" for line in powered.crashing.sound(store, profile)]
                return wrong + missing(store, told)
        except (sqlite3.Error, QinglongError, OSError) as error:
            return [f"{type(error).__name__}: {error}"]

    fresh()
    name = f"{mount.kind} {profile}"
    _rounds(setting, verdict, name, lambda number: again(opened, number))
    fresh()
    _control(setting, verdict, name, lambda number: again(weak, number))


def _postgres_rounds(setting: Setting, verdict: Verdict, mount: Mount) -> None:
    for fsync in ("on", "off"):
        told = setting.folder / f"{mount.kind}-postgres-{fsync}.told"
        told.write_text("")
        with cluster(mount.folder, fsync=fsync) as up:

            def again(number: int, told: Path = told, up: Cluster = up) -> list[str]:
                pid = client(lambda: open_postgres_store(up.address), told, number)
                one_round(mount, pid, setting.random(mount.kind, "postgres", number), told)
                up.kill()
                mount.detach()
                mount.attach()
                try:
                    up.restart()
                    with closing(open_postgres_store(up.address)) as store:
                        return missing(store, told)
                except (psycopg.Error, QinglongError, server.NoServer) as error:
                    return [f"{type(error).__name__}: {error}"]

            with closing(open_postgres_store(up.address)) as store:
                acting.publish(store, {"a": [], "b": ["a"]})
            os.sync()
            name = f"{mount.kind} PostgreSQL"
            (_rounds if fsync == "on" else _control)(setting, verdict, name, again)


def _rounds(
    setting: Setting, verdict: Verdict, name: str, again: Callable[[int], list[str]]
) -> None:
    for number in range(QUICK_ROUNDS if setting.quick else ROUNDS):
        setting.say(f"power: {name}, round {number}")
        verdict.failures += [f"{name}, round {number}: {line}" for line in again(number)]
        verdict.count(f"{name} rounds")


def _control(
    setting: Setting, verdict: Verdict, name: str, again: Callable[[int], list[str]]
) -> None:
    lost = any(again(1_000 + number) for number in range(CONTROL_ROUNDS))
    verdict.check(lost, f"{name} without sync lost nothing: this check has no teeth")
    verdict.count("controls that lost")
