"""Random commands on several databases side by side: what they are, how they are played and shrunk.

tests.simulation_draw draws them, tests.simulation_audit says what was wrong; neither knows the
other. A script is text, one command a line, so that a failure can be played again.
"""

import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psycopg

from qinglong_sql.errors import QinglongError
from qinglong_sql.store import Store, open_store
from qinglong_sql.store.sqlite import SqliteStore
from tests.simulation_facts import Columns, Facts, columns_of, postgres_facts, sqlite_facts
from tests.stores import DAWN_MS, FakeClock

Answer = list[dict[str, Any]] | str  # the rows, or the code of the error


@dataclass(frozen=True, slots=True)
class Command:
    """One call of a step, after the clock was moved (back when negative)."""

    wait_ms: int
    step: str
    params: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.wait_ms:+d} {self.step} {json.dumps(self.params, sort_keys=True)}"


def parsed(script: str) -> list[Command]:
    """The commands of a script; blank lines and lines that begin with # are passed over."""
    lines = [line.strip() for line in script.splitlines()]
    words = [line.split(maxsplit=2) for line in lines if line and not line.startswith("#")]
    return [Command(int(wait), step, json.loads(params)) for wait, step, params in words]


class Side(Protocol):
    """One database under the simulation."""

    name: str
    store: Store

    def reset(self) -> None:
        """Take all rows away."""

    def tell(self, now_ms: int) -> None:
        """It is that time now."""

    def facts(self) -> Facts:
        """Every row of every table."""


class SqliteSide:
    """A file that is a copy of a template. steps: change what the store runs (for mutants)."""

    def __init__(
        self, path: Path, template: Path, *, steps: Callable[[SqliteStore], None] | None = None
    ) -> None:
        self.name, self._path, self._template, self._steps = "sqlite", path, template, steps
        self._clock = FakeClock()
        self._open()

    def reset(self) -> None:
        self.close()
        for tail in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + tail).unlink(missing_ok=True)
        self._open()

    def tell(self, now_ms: int) -> None:
        self._clock.set(now_ms)

    def facts(self) -> Facts:
        return sqlite_facts(self._reader, self.columns)

    def close(self) -> None:
        self._reader.close()
        self.store.close()

    def _open(self) -> None:
        shutil.copyfile(self._template, self._path)
        self.store = SqliteStore(self._path, profile="standalone", clock=self._clock.now)
        self.store._connection.execute("pragma synchronous = off")  # no power fails here
        if self._steps is not None:
            self._steps(self.store)
        self._reader = sqlite3.connect(self._path, isolation_level=None)
        self.columns: Columns = columns_of(self._reader)


CLOCK = """
create table if not exists public.fake_clock (now_ms bigint not null);
truncate public.fake_clock;
insert into public.fake_clock values (0);
grant select on public.fake_clock to public;
create or replace function ql.now_ms () returns bigint language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$ begin return (select c.now_ms from public.fake_clock as c); end $$
"""


class PostgresSide:
    """A database whose `ql.now_ms` answers from a table: replacing it would replan every step."""

    def __init__(self, dsn: str, columns: Columns) -> None:
        self.name, self._columns = "postgres", columns
        self._raw = psycopg.connect(dsn, autocommit=True, options="-c jit=off")
        self._raw.execute(CLOCK.encode())
        mark = "&" if "?" in dsn else "?"
        self.store = open_store(f"{dsn}{mark}options=-c%20jit%3Doff")
        listed = "select tablename from pg_catalog.pg_tables where schemaname = 'ql'"
        here = {name for (name,) in self._raw.execute(listed.encode()).fetchall()}
        assert here - {"alembic_version"} == set(columns), here ^ set(columns)

    def reset(self) -> None:
        names = ", ".join(f"ql.{name}" for name in self._columns)
        self._raw.execute(f"truncate {names}".encode())

    def tell(self, now_ms: int) -> None:
        self._raw.execute(b"update public.fake_clock set now_ms = %s", [now_ms])

    def facts(self) -> Facts:
        return postgres_facts(self._raw, self._columns)

    def close(self) -> None:
        self.store.close()
        self._raw.close()


@dataclass(frozen=True, slots=True)
class Done:
    """A command with all that an auditor looks at. `before` and `after` are by side."""

    command: Command
    now_ms: int
    answers: dict[str, Answer]
    before: dict[str, Facts]
    after: dict[str, Facts]
    violations: dict[str, list[dict[str, Any]]]
    repeats: bool  # the same command as just before, at the same time


Auditor = Callable[[Done], list[str]]


@dataclass(slots=True)
class Play:
    """A script that is being played on sides that were reset. Failures name what was wrong."""

    sides: Sequence[Side]
    audit: Auditor
    played: list[Command] = field(default_factory=list)
    facts: dict[str, Facts] = field(default_factory=dict)
    now_ms: int = DAWN_MS
    reached: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    answered: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for side in self.sides:
            side.reset()
            side.tell(self.now_ms)
            self.facts[side.name] = side.facts()

    def do(self, command: Command) -> list[str]:
        """Play one command everywhere; what the auditor says about it."""
        if command.wait_ms:
            self.now_ms += command.wait_ms
            for side in self.sides:
                side.tell(self.now_ms)
        last = self.played[-1] if self.played else None
        repeats = last is not None and not command.wait_ms and _same(last, command)
        before, self.played = self.facts, [*self.played, command]
        answers = {side.name: answer_of(side.store, command) for side in self.sides}
        self.facts = {side.name: side.facts() for side in self.sides}
        violations = {side.name: side.store.read("violation") for side in self.sides}
        done = Done(command, self.now_ms, answers, before, self.facts, violations, repeats)
        self._note(done)
        return self.audit(done)

    def _note(self, done: Done) -> None:
        name = self.sides[0].name
        for key in done.after[name]["run_event"].keys() - done.before[name]["run_event"].keys():
            row = done.after[name]["run_event"][key]
            words = ("entity", "from_status", "to_status", "result_code")
            if row["entity"] != "lease":
                self.reached[tuple(row[word] for word in words)] += 1
        for key, row in done.after[name]["attempt_lease"].items():
            old = done.before[name]["attempt_lease"].get(key, {"status": None})["status"]
            if old != row["status"]:  # a lease that ends with its attempt has no event
                self.reached["lease", old, row["status"], None] += 1
        answer = done.answers[name]
        rows = [{"outcome": answer}] if isinstance(answer, str) else answer
        for row in rows:
            outcome = row.get("code") or row.get("outcome") or "row"
            self.answered[done.command.step, str(outcome)] += 1


def _same(one: Command, other: Command) -> bool:
    return (one.step, one.params) == (other.step, other.params)


def answer_of(store: Store, command: Command) -> Answer:
    """The rows, or the code that the command was refused with. Raises what is no refusal."""
    try:
        return store.call(command.step, **command.params)
    except QinglongError as error:
        return error.code


def replayed(sides: Sequence[Side], audit: Auditor, script: Iterable[Command]) -> list[str]:
    """Play a script from nothing up to its first failure; what the auditor says of that."""
    play = Play(sides, audit)
    for command in script:
        if told := play.do(command):
            return told
    return []


def shrunk(fails: Callable[[list[Command]], bool], script: list[Command]) -> list[Command]:
    """A part of a failing script that still fails and in which no command can be missed.

    Delta debugging: leave out halves, then quarters, down to single commands. A dropped command
    leaves its wait behind, so that all others keep their times.
    """
    size = max(1, len(script) // 2)
    while True:
        place, smaller = 0, False
        while place < len(script):
            less = without(script, place, place + size)
            if less and fails(less):
                script, smaller = less, True
            else:
                place += size
        if size == 1 and not smaller:
            return script
        size = max(1, size // 2)


def slimmed(fails: Callable[[list[Command]], bool], script: list[Command]) -> list[Command]:
    """The script with batches from which no row can be missed."""
    for place, command in enumerate(script):
        for name in ("p_commands", "p_offers"):
            rows = json.loads(command.params.get(name) or "[]")
            for row in list(rows) if isinstance(rows, list) else ():
                fewer = [one for one in rows if one is not row]
                params = command.params | {name: json.dumps(fewer)}
                other = Command(command.wait_ms, command.step, params)
                less = [*script[:place], other, *script[place + 1 :]]
                if fewer and fails(less):
                    script, rows, command = less, fewer, other
    return script


def without(script: list[Command], first: int, past: int) -> list[Command]:
    """The script without some commands; what follows them waits as long as both would."""
    waited = sum(command.wait_ms for command in script[first:past])
    kept = script[past:]
    if kept and waited:
        kept = [Command(kept[0].wait_ms + waited, kept[0].step, kept[0].params), *kept[1:]]
    return script[:first] + kept
