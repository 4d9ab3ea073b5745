"""A whole life on a disk whose power fails, and what must be found when it is back.

The life is that of `tests.lives`: publication, start, admission, lease, start, report, retry,
cancel, convergence, recovery, purge. What the caller was answered is known, so the rows after the
failure are those behind the last acknowledged command or those behind the one in flight, and no
others: nothing acknowledged is lost, and nothing is there by half.
"""

import random
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qinglong_sql.errors import QinglongError
from qinglong_sql.store.sqlite import Profile, SqliteStore
from tests import crashing, power
from tests.crashing import Tables
from tests.lives import Lived
from tests.power import MAIN, Disk, OnDisk
from tests.stores import FakeClock, install

Weaken = Callable[[SqliteStore], object]
CHECKPOINT_PAGES = 60  # of the log: so that a life of this length has many checkpoints


@dataclass(slots=True)
class Record:
    """A life: each call with its time, the rows before the first and behind each, the disk."""

    profile: Profile
    disk: Disk
    calls: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    rows: list[Tables] = field(default_factory=list)
    first: int = 0  # events before the first call


def recorded(folder: Path, profile: Profile, weaken: Weaken | None = None) -> Record:
    """Live on a disk that starts with an installed file. `weaken` changes the store's settings."""
    path = folder / f"{profile}.installed"
    if not path.exists():
        install(path)
        SqliteStore(path, profile=profile).close()
    disk = Disk()
    disk.create(MAIN, path.read_bytes())
    disk.sync_folder()
    clock = FakeClock()
    store = OnDisk(disk, path, profile=profile, clock=clock.now)
    if profile == "standalone":
        store._connection.execute(f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES}").fetchall()
    if weaken:
        weaken(store)
    record = Record(profile, disk, rows=[crashing.tables(store)], first=len(disk.log))
    life = Lived(clock)
    for act, call in life.acts():
        record.calls.append((clock.now_ms, *call))
        life.learn(act, store.call(call[0], **call[1]))
        disk.log.append(("ack", None, None, None))
        record.rows.append(crashing.tables(store))
    store.close()
    return record


def failed(record: Record, work: Path, draw: random.Random) -> list[str]:
    """Power fails at a moment that `draw` chooses, and comes back; what is wrong."""
    at = draw.randint(record.first, len(record.disk.log))
    log = record.disk.log[:at]
    crashing.remove(work)
    for name, content in power.after(log, draw).items():
        work.with_name(name.replace(MAIN, work.name)).write_bytes(content)
    where = f"{record.profile}, event {at} of {len(record.disk.log)}, {power.acked(log)} answered"
    try:
        return [f"{where}: {what}" for what in _found(record, work, power.acked(log))]
    except (sqlite3.Error, QinglongError, OSError) as error:
        return [f"{where}: {type(error).__name__}: {error}"]


def _found(record: Record, work: Path, answered: int) -> Iterator[str]:
    clock = FakeClock(record.calls[min(answered, len(record.calls) - 1)][0])
    store = SqliteStore(work, profile=record.profile, clock=clock.now)
    try:
        yield from crashing.sound(store, record.profile)
        if violated := store.read("violation"):
            yield f"violation: {violated}"
        there = crashing.tables(store)
        allowed = record.rows[answered : answered + 2]
        if there not in allowed:
            yield f"lost: {crashing.parted(there, allowed[0])}"
            return
        store._connection.execute("pragma synchronous = off")  # no power fails any more
        # a fault that is there is counted, and what is tried again is the stage, not its record
        counted = there != allowed[0] and record.calls[answered][1] == "record_fault"
        for number in range(answered + counted, len(record.calls)):
            now_ms, step, params = record.calls[number]
            clock.set(now_ms)
            store.call(step, **params)
            if number == answered and (rows := crashing.tables(store)) != record.rows[number + 1]:
                yield f"{step} once more: {crashing.parted(rows, record.rows[number + 1])}"
        if (rows := crashing.tables(store)) != record.rows[-1]:
            yield f"at the end: {crashing.parted(rows, record.rows[-1])}"
    finally:
        store.close()


def settings(record: Record) -> list[str]:
    """What makes a record say less than it should: other files than the profile's, few events."""
    kinds = {(event[0], event[1]) for event in record.disk.log[record.first :]}
    made = {event[1] for event in record.disk.log if event[0] == "create"}
    wanted = {"edge": f"{MAIN}-journal", "standalone": f"{MAIN}-wal"}[record.profile]
    wrong = [] if made == {MAIN, wanted} else [f"files {made}"]
    if not {("write", 0), ("write", 1), ("sync", 0), ("sync", 1)} <= kinds:
        wrong.append("no checkpoint, or nothing synced")
    return wrong


def setting(text: str) -> Weaken:
    """A control: a store whose setting is too weak."""

    def weaken(store: SqliteStore) -> None:
        store._connection.execute(text).fetchall()

    return weaken


CONTROLS: tuple[tuple[Profile, str], ...] = (
    ("edge", "pragma synchronous = off"),
    ("edge", "pragma journal_mode = delete"),
    ("standalone", "pragma synchronous = off"),
    ("standalone", "pragma synchronous = normal"),
)
