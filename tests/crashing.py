"""KILL at a statement boundary of one SQLite transaction, and what must be found afterwards.

A child forked from the warm test process opens the store itself, runs the command and kills itself
before the chosen statement. The statements are counted where the store sends them, at its cursor,
so `begin`, every statement of a step, every look at refusals and `commit` are boundaries, and the
product has nothing in it that could be armed by mistake. What a KILL leaves is the bytes of the
files: boundaries between which none of them changed are one moment, and one KILL stands for it.
"""

import hashlib
import itertools
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from qinglong_sql.store import Call, Row
from qinglong_sql.store.sqlite import Profile, SqliteStore

Tables = dict[str, list[str]]
Answers = list[list[Row]]
Spoil = Callable[[SqliteStore], object]
JOURNAL: dict[Profile, str] = {"edge": "truncate", "standalone": "wal"}
FULL = 2
SIDES = ("", "-journal", "-wal", "-shm")
NUMBER = itertools.count(1)
FEW_PAGES = 8  # of cache: a transaction spills into the file, or its log, long before its commit


@dataclass(frozen=True, slots=True)
class Case:
    """One transaction: its calls, the file before it, and what comes of it without faults.

    `again` is the answer of the same calls once more, `after_again` the rows then.
    """

    name: str
    profile: Profile
    calls: tuple[Call, ...]
    now_ms: int
    file: Path
    statements: int
    before: Tables
    answer: Answers
    after: Tables
    again: Answers
    after_again: Tables


class Counted:
    """A cursor that counts what goes through it, and calls `before` with the number of each."""

    def __init__(self, cursor: Any, before: Callable[[int], object] = lambda _: None) -> None:
        self.cursor = cursor
        self.connection = cursor.connection
        self.before = before
        self.count = 0

    def execute(self, *words: Any) -> Any:
        self.count += 1
        self.before(self.count)
        return self.cursor.execute(*words)


def count_in(store: SqliteStore, before: Callable[[int], object] = lambda _: None) -> Counted:
    """From now on every statement of a store is counted."""
    counted = Counted(store._cursor, before)
    store._cursor = counted  # type: ignore[assignment]
    return counted


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def opened(path: Path, profile: Profile, now_ms: int) -> SqliteStore:
    return SqliteStore(path, profile=profile, clock=lambda: now_ms)


def tables(store: SqliteStore) -> Tables:
    """Every row of every table as text."""
    names = "select name from sqlite_master where type = 'table' order by name"
    listed = [name for (name,) in store._connection.execute(names).fetchall()]
    return {
        name: sorted(map(repr, store._connection.execute(f'select * from "{name}"').fetchall()))
        for name in listed
    }


def prepared(
    folder: Path, name: str, profile: Profile, calls: Sequence[Call], now_ms: int, source: Path
) -> Case:
    """A case on a copy of a file that nobody has open: done, done again, and measured."""
    file = folder / f"{profile}-{next(NUMBER)}.before"
    work = file.with_suffix(".done")
    shutil.copyfile(source, file)
    shutil.copyfile(source, work)
    store = opened(work, profile, now_ms)
    before = tables(store)
    counted = count_in(store)
    answer = store.batch(calls)
    statements = counted.count
    after = tables(store)
    again = store.batch(calls)
    after_again = tables(store)
    store.close()
    remove(work)
    return Case(name, profile, tuple(calls), now_ms, file, statements, before, answer, after,
                again, after_again)  # fmt: skip


def boundaries(case: Case) -> range:
    """Before the first statement, …, before the last (the commit), and after it."""
    return range(1, case.statements + 2)


def moments(case: Case, work: Path, spoil: Spoil | None = None) -> list[int]:
    """Boundaries at which a KILL leaves other files than at the next one; the last two always."""
    remove(work)
    shutil.copyfile(case.file, work)
    store, seen = opened(work, case.profile, case.now_ms), list[bytes]()
    if spoil:
        spoil(store)
    count_in(store, lambda _: seen.append(bytes_of(work)))
    store.batch(case.calls)
    store.close()
    changed = [at for at, (one, two) in enumerate(itertools.pairwise(seen), start=1) if one != two]
    return sorted({*changed, case.statements, case.statements + 1})


def bytes_of(path: Path) -> bytes:
    """A digest of the database, its journal and its log; the shared memory is made from these."""
    found = hashlib.sha256()
    for side in ("", "-journal", "-wal"):
        file = path.with_name(path.name + side)
        found.update(side.encode() + (file.read_bytes() if file.exists() else b""))
    return found.digest()


def killed(case: Case, at: int, work: Path, spoil: Spoil | None = None) -> list[str]:
    """KILL at a boundary, reopen, look, replay; what is wrong. `spoil` breaks the child's store."""
    remove(work)
    shutil.copyfile(case.file, work)
    pid = os.fork()
    if pid == 0:
        try:
            store = opened(work, case.profile, case.now_ms)
            if spoil:
                spoil(store)
            count_in(store, lambda count: count == at and die())
            store.batch(case.calls)
            die()
        finally:
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    where = f"{case.profile}, {case.name}, statement {at} of {case.statements}"
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
        return [f"{where}: the child ended by itself with {status}"]
    return [f"{where}: {what}" for what in found(case, work, done=at > case.statements)]


def found(case: Case, work: Path, *, done: bool) -> Iterator[str]:
    """What is wrong in a file after the crash; `done` when the commit had returned."""
    store = opened(work, case.profile, case.now_ms)
    try:
        yield from sound(store, case.profile)
        there, wanted = tables(store), case.after if done else case.before
        if there != wanted:
            yield f"{'lost' if done else 'durable before the commit'}: {parted(there, wanted)}"
        answer, first = store.batch(case.calls), case.again if done else case.answer
        if answer != first:
            yield f"the replay answers {answer}, not {first}"
        there, wanted = tables(store), case.after_again if done else case.after
        if there != wanted:
            yield f"after the replay: {parted(there, wanted)}"
    finally:
        store.close()


def sound(store: SqliteStore, profile: Profile) -> Iterator[str]:
    """The settings that a promise rests on, and the file itself."""
    asked: dict[Literal["journal_mode", "synchronous", "integrity_check", "foreign_keys"], object]
    asked = {
        "journal_mode": JOURNAL[profile],
        "synchronous": FULL,
        "integrity_check": "ok",
        "foreign_keys": 1,
    }
    for name, wanted in asked.items():
        (value,) = store._connection.execute(f"pragma {name}").fetchone()
        if value != wanted:
            yield f"{name} is {value}, not {wanted}"
    if orphans := store._connection.execute("pragma foreign_key_check").fetchall():
        yield f"foreign keys that lead nowhere: {orphans}"


def parted(there: Tables, wanted: Tables) -> str:
    """The rows that one has and the other lacks."""
    names = sorted(there.keys() | wanted.keys())
    return "; ".join(
        f"{name} -{[row for row in wanted.get(name, []) if row not in there.get(name, [])]}"
        f" +{[row for row in there.get(name, []) if row not in wanted.get(name, [])]}"
        for name in names
        if there.get(name) != wanted.get(name)
    )


def spilling(store: SqliteStore) -> None:
    """A cache so small that pages of the open transaction reach the file before its commit."""
    store._connection.execute(f"pragma cache_size = {FEW_PAGES}")


def remove(path: Path) -> None:
    for side in SIDES:
        path.with_name(path.name + side).unlink(missing_ok=True)
