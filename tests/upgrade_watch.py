"""What an upgrade is measured by: the clock of every call, and the locks of who migrates."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg

# what a working process must not wait long for, and the function behind each
ASKED = {"start": "start_run", "lease": "lease_attempts", "barrier": "start_attempts",
         "renewal": "renew_attempts", "report": "report_attempts"}  # fmt: skip
# psycopg is wrapped when it is imported, so that whoever does not use it pays nothing
CLOCK = """
import json, os, sys, time
from importlib.abc import MetaPathFinder
from importlib.util import find_spec

def wrap(cursor):
    plain = cursor.execute
    def execute(self, query, params=None, **how):
        began, code = time.time(), ""
        try:
            return plain(self, query, params, **how)
        except BaseException as error:
            code = getattr(error, "sqlstate", None) or type(error).__name__
            raise
        finally:
            text = query if isinstance(query, (str, bytes)) else query.as_string(self)
            line = {"at": began, "ms": (time.time() - began) * 1000, "code": code,
                    "text": str(text)[:90], "who": os.environ["QL_CALLER"]}
            with open(os.environ["QL_CALLS"], "a") as sink:
                sink.write(json.dumps(line) + "\\n")
    cursor.execute = execute

class Finder(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "psycopg":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            wrap(module.Cursor)
        spec.loader.exec_module = exec_module
        return spec

if "QL_CALLS" in os.environ:
    sys.meta_path.insert(0, Finder())
"""
LOCKS = """
  select c.relname, c.relkind::text
  from pg_locks as l
  join pg_stat_activity as a on a.pid = l.pid
  join pg_class as c on c.oid = l.relation
  where a.application_name ~ '^qinglong-migrate ' and l.granted and l.locktype = 'relation'
    and l.mode = 'AccessExclusiveLock' and c.relkind in ('r', 'v', 'i')
"""


@dataclass(frozen=True, slots=True)
class Call:
    """One statement of a process. at: seconds since 1970; code: its SQLSTATE if it failed."""

    who: str
    step: str
    at: float
    ms: float
    code: str


def longest(calls: list[Call], since: float, until: float) -> dict[str, int]:
    """The longest wait for each word of ASKED between two times, and for anything, in ms."""
    then = [one for one in calls if since <= one.at + one.ms / 1000 and one.at <= until]
    found = {word: round(max((one.ms for one in then if one.step == step), default=0))
             for word, step in ASKED.items()}  # fmt: skip
    return found | {"any": round(max((one.ms for one in then), default=0))}


@dataclass(slots=True)
class Seen:
    """How long the migrator was seen to have each table, view and index for itself, in ms."""

    tables: dict[str, int] = field(default_factory=dict)
    views: int = 0  # the longest of all views and indexes
    began: float = 0.0  # the first of these locks, seconds since 1970
    ended: float = 0.0


@contextmanager
def looking(dsn: str) -> Iterator[Seen]:
    """Look at the locks of whoever migrates, fifty times a second; what was seen, when it ends."""
    over, seen = threading.Event(), Seen()
    first: dict[tuple[str, str], float] = {}

    def look() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not over.wait(0.02):
                now, rows = time.time(), connection.execute(LOCKS).fetchall()
                if rows:
                    seen.began = seen.began or now
                    seen.ended = 0.0
                for row in rows:
                    first.setdefault((row[0], row[1]), now)
                if first and not rows and not seen.ended:
                    seen.ended = now

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
        for (name, kind), at in first.items():
            held = round((seen.ended - at) * 1000)
            if kind == "r":
                seen.tables[name] = held
            else:
                seen.views = max(seen.views, held)
