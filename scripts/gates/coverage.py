"""Statements and branches of every PL/pgSQL function that the tests have run, and those not.

    scripts/test --postgres 15 --coverage=FOLDER && python -m scripts.gates.coverage FOLDER

Exit 1 when something has not run that is not argued below, or has run and is still argued; exit 77
when no PostgreSQL here has plpgsql_check.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.rows import class_row, dict_row

from tests import coverage, engines
from tests.binaries import find
from tests.server import dsn, running

NOT_RUN = 77
# (function, the line of its body, what of it): why no test can run it
ARGUED: dict[tuple[str, str, str], str] = {}
STATEMENTS = """
  select s.stmtid, s.parent_stmtid, s.parent_note, s.lineno, s.stmtname
  from plpgsql_profiler_function_statements_tb(%s::oid) as s order by s.stmtid"""
OTHERS = """
  select p.oid::regprocedure::text
  from pg_proc as p join pg_language as l on l.oid = p.prolang
  where p.pronamespace::regnamespace::text ~ '^ql(_|$)' and l.lanname <> 'plpgsql' order by 1"""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a body; `parent_note` says in which part of its parent it stands."""

    stmtid: int
    parent_stmtid: int | None
    parent_note: str | None
    lineno: int
    stmtname: str


@dataclass(frozen=True, slots=True)
class Part:
    """A statement or branch: where it stands, and how often it ran."""

    line: str
    what: str
    count: int


@dataclass(frozen=True, slots=True)
class Function:
    """A function as installed, with what has run of it."""

    signature: str
    statements: tuple[Part, ...]
    branches: tuple[Part, ...]


def main(words: list[str]) -> int:
    ran = coverage.found(Path(words[0]))
    coverage.begin(words[0])
    binaries = next((one for one in find()[0] if coverage.has_profiler(one)), None)
    if binaries is None:
        print("no PostgreSQL here has plpgsql_check: apt-get install postgresql-15-plpgsql-check")
        return NOT_RUN
    with running(binaries) as server:
        engines.postgres_template(server)
        with psycopg.connect(dsn(server, engines.TEMPLATE)) as connection:
            connection.execute("create extension if not exists plpgsql_check")
            others = [name for (name,) in connection.execute(OTHERS).fetchall()]
            functions = sorted(read(connection, ran), key=lambda one: one.signature)
    return told(functions, others)


def read(connection: psycopg.Connection, ran: Counter[coverage.Key]) -> Iterator[Function]:
    """Every function, with its counts."""
    bodies = connection.cursor(row_factory=dict_row).execute(coverage.FUNCTIONS).fetchall()
    for body in bodies:
        cursor = connection.cursor(row_factory=class_row(Statement))
        found = cursor.execute(STATEMENTS, [body["oid"]]).fetchall()
        lines = body["prosrc"].splitlines()
        count = {one.stmtid: ran[body["signature"], body["digest"], one.stmtid] for one in found}
        at = {one.stmtid: " ".join(lines[one.lineno - 1].split()) for one in found}
        statements = [Part(at[one.stmtid], one.stmtname, count[one.stmtid]) for one in found]
        yield Function(body["signature"], tuple(statements), tuple(branches(found, count, at)))


def branches(found: list[Statement], count: dict[int, int], at: dict[int, str]) -> Iterator[Part]:
    """A branch ran as often as its first statement; what an `if` has not counted fell through."""
    parts: dict[int, dict[str, int]] = defaultdict(dict)
    for one in found:
        if one.parent_stmtid is not None and one.parent_note is not None:
            parts[one.parent_stmtid].setdefault(one.parent_note, count[one.stmtid])
    for one in found:
        inside = parts[one.stmtid]
        if one.stmtname == "statement block":
            inside = {note: ran for note, ran in inside.items() if note != "body"}
        elif one.stmtname == "IF" and "else body" not in inside:
            inside["no else"] = max(0, count[one.stmtid] - sum(inside.values()))
        for note, ran in inside.items():
            yield Part(at[one.stmtid], note, ran)


def told(functions: list[Function], others: list[str]) -> int:
    """Print it all; 1 when something is not as it should be."""
    wrong, argued, rows = 0, set(), []
    for one in functions:
        rows.append((one.signature, counts(one.statements), counts(one.branches)))
        for part in (*one.statements, *one.branches):
            key = (one.signature.split("(")[0], part.line, part.what)
            if part.count == 0 and key in ARGUED:
                argued.add(key)
            elif part.count == 0:
                wrong += 1
                print(f"never run: {one.signature}: {part.what} of `{part.line}`")
    for key in ARGUED.keys() - argued:
        wrong += 1
        print(f"argued, but it runs or is gone; take it out: {key}")
    for signature, *both in rows:
        print(f"{told_of(*both[0]):>14} {told_of(*both[1]):>12}  {signature}")
    for name in others:
        print(f"{'not in PL/pgSQL':>27}  {name}")
    statements, ways = (
        (sum(row[n][0] for row in rows), sum(row[n][1] for row in rows)) for n in (1, 2)
    )
    print(f"statements {told_of(*statements)}, branches {told_of(*ways)}", end="")
    print(f" of {len(rows)} functions; {len(argued)} argued, {wrong} wrong")
    return 1 if wrong or not rows else 0


def counts(parts: tuple[Part, ...]) -> tuple[int, int]:
    return sum(part.count > 0 for part in parts), len(parts)


def told_of(ran: int, all_of: int) -> str:
    return f"{ran}/{all_of} {100 * ran // all_of if all_of else 100}%"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
