"""Which statements of the PL/pgSQL functions the tests have run, told by plpgsql_check's profiler.

`--coverage FOLDER` of conftest: servers start with the profiler where Debian's 15 has it, each
database is asked before it is dropped, and each worker of xdist leaves one file in the folder.
scripts/gates/coverage.py adds them up.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from tests.binaries import Binaries

Key = tuple[str, str, int]  # signature, digest of the body (mutants have another), statement
OPTIONS = {"shared_preload_libraries": "plpgsql_check", "plpgsql_check.profiler": "on"}
FUNCTIONS = """
  select p.oid, p.oid::regprocedure::text as signature, md5(p.prosrc) as digest, p.prosrc
  from pg_proc as p
  join pg_language as l on l.oid = p.prolang and l.lanname = 'plpgsql'
  where p.pronamespace::regnamespace::text ~ '^ql(_|$)'"""
RUN = f"""
  select f.signature, f.digest, s.stmtid, s.exec_stmts
  from ({FUNCTIONS}) as f
  cross join lateral plpgsql_profiler_function_statements_tb(f.oid) as s
  where s.exec_stmts > 0"""
# the memory that servers share for profiles is small, and knows nothing of dropped databases
FORGET = f"select plpgsql_profiler_reset(f.oid) from ({FUNCTIONS}) as f"
_folder: Path | None = None
_run: Counter[Key] = Counter()


def begin(folder: str | None) -> None:
    """From now on keep what is run, for `folder`; None keeps nothing."""
    global _folder
    _folder = None if folder is None else Path(folder)
    _run.clear()


def options(binaries: Binaries) -> dict[str, str]:
    """What a server is started with: the profiler, if it is asked for and there."""
    asked = _folder is not None and has_profiler(binaries)
    return OPTIONS if asked else {}


def has_profiler(binaries: Binaries) -> bool:
    return (binaries.folder.parent / "lib" / "plpgsql_check.so").exists()


def prepare(url: str) -> None:
    """Give a template what `collect` needs, so that it costs nothing in each copy."""
    if _folder is not None:
        with psycopg.connect(url, autocommit=True) as connection:
            if _profiled(connection):
                connection.execute("create extension plpgsql_check")


def collect(url: str) -> None:
    """Keep what has been run in a database that is about to be dropped."""
    if _folder is None:
        return
    with psycopg.connect(url, autocommit=True) as connection:
        if _profiled(connection):
            connection.execute("set default_transaction_read_only = off")  # a test may end so
            connection.execute("create extension if not exists plpgsql_check")
            for signature, digest, statement, count in connection.execute(RUN).fetchall():
                _run[signature, digest, statement] += count
            connection.execute(FORGET)


def _profiled(connection: psycopg.Connection) -> bool:
    on = connection.execute("select current_setting('plpgsql_check.profiler', true)").fetchone()
    return on == ("on",)


def finish() -> None:
    """Leave what was kept as a file of this process."""
    if _folder is not None and _run:
        rows = [[*key, count] for key, count in sorted(_run.items())]
        (_folder / f"{os.getpid()}.json").write_text(json.dumps(rows), encoding="utf-8")


def found(folder: Path) -> Counter[Key]:
    """What all processes have run."""
    every: Counter[Key] = Counter()
    for signature, digest, statement, count in _rows(folder):
        every[signature, digest, statement] += count
    return every


def _rows(folder: Path) -> Iterator[list[Any]]:
    for path in sorted(folder.glob("*.json")):
        yield from json.loads(path.read_text(encoding="utf-8"))
