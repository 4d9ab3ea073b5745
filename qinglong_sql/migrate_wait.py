"""Who keeps a migration from a lock, seen by a second session while the first one waits.

A revision gives up after its own `lock_timeout` (DESIGN §10) and leaves nothing; the server says
that it did, not because of whom. What is told of a session of another login is what the server
shows to this one: state and age are for its own sessions, and for members of pg_read_all_stats.
"""

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo

from qinglong_sql.errors import NotReady
from qinglong_sql.store.link import connect, reach

APPLICATION: Final = "qinglong-migrate"
LOOK_S: Final = 0.25
TOLD_AFTER: Final = 8  # looks: who waits for less than two seconds is not told why
GIVEN_UP: Final = frozenset(
    {"55P03", "40P01", "57014"}
)  # lock timeout, deadlock, statement timeout
_HOLDERS: Final = """
  select h.pid, a.usename::text, a.application_name, a.state,
    extract(epoch from clock_timestamp() - a.xact_start)::float8,
    case w.locktype when 'relation' then w.relation::regclass::text else w.locktype end
  from pg_catalog.pg_stat_activity as m
  join pg_catalog.pg_locks as w on w.pid = m.pid and not w.granted
  cross join lateral unnest(pg_catalog.pg_blocking_pids(m.pid)) as h (pid)
  left join pg_catalog.pg_stat_activity as a on a.pid = h.pid
  where m.application_name = %s and h.pid <> 0
  order by a.xact_start nulls last, h.pid
"""


@dataclass(frozen=True, slots=True)
class Holder:
    """A session that holds what a migration waits for. None: not shown to this login, or gone."""

    pid: int
    login: str | None
    application: str | None
    state: str | None  # "idle in transaction", "active", …
    age_s: float | None  # of its transaction
    wanted: str  # a table or view, or "advisory" when it is another migration

    def __str__(self) -> str:
        whose = [f"login {self.login}"] if self.login else []
        whose += [f"application {self.application}"] if self.application else []
        if self.state and self.age_s is not None:
            whose.append(f"{self.state}, its transaction is {self.age_s:.0f} s old")
        elif self.login:
            whose.append("how long, only a member of pg_read_all_stats may see")
        return f"pid {self.pid}" + (f" ({'; '.join(whose)})" if whose else "")


@dataclass(slots=True)
class Watch:
    """What was seen; `holders` are those of the latest wait, and stay when it has ended."""

    application: str
    holders: list[Holder] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def why(self, error: BaseException | None) -> NotReady | None:
        """What to tell of an error that ended the migration; None for one that is no wait's."""
        if not isinstance(error, psycopg.Error) or error.sqlstate not in GIVEN_UP:
            return None
        told = f"PostgreSQL: {str(error).splitlines()[0]}; nothing was changed"
        if not self.holders:
            return NotReady(f"{told}: run it again, at a quieter time perhaps")
        first = self.holders[0]
        held = ", ".join(map(str, self.holders[:3]))
        more = f" and {len(self.holders) - 3} more" if len(self.holders) > 3 else ""
        return NotReady(
            f"{told}; {first.wanted} was held by {held}{more}: let it end, or end it with"
            f" select pg_terminate_backend({first.pid}), and run it again"
        )


@contextmanager
def watching(dsn: str, note: Callable[[str], object] | None = None) -> Iterator[Watch]:
    """Look while the block migrates under `application_name=Watch.application`.

    note: told once for each session that is waited for longer than two seconds. A second session
    that the server does not give, or takes away, only costs the names.
    """
    watch = Watch(f"{APPLICATION} {secrets.token_hex(3)}")
    thread = threading.Thread(target=_look, args=(dsn, watch, note), daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.over.set()
        thread.join(timeout=5)


def watched(
    act: Callable[[], object], place: dict[str, Any], note: Callable[[str], object] | None
) -> None:
    """Act on the database of `place["dsn"]`, under a name by which it is seen.

    place: the attributes of alembic's configuration. Raises NotReady for a lock that is not to be
    had, and what `act` raises.
    """
    from sqlalchemy.exc import DBAPIError

    dsn = place["dsn"]
    with watching(dsn, note) as watch:
        name = watch.application
        place["dsn"] = make_conninfo(dsn, **{**reach(dsn), "application_name": name})
        try:
            act()
        except DBAPIError as error:
            if told := watch.why(error.orig):
                raise told from error
            raise


def _look(dsn: str, watch: Watch, note: Callable[[str], object] | None) -> None:
    waited: dict[int, int] = {}
    try:
        with connect(dsn, autocommit=True, connect_timeout=5) as connection:
            while not watch.over.wait(LOOK_S):
                rows: list[Any] = connection.execute(_HOLDERS, [watch.application]).fetchall()
                watch.holders = [Holder(*row) for row in rows] or watch.holders
                for one in watch.holders if rows else ():
                    waited[one.pid] = waited.get(one.pid, 0) + 1
                    if note and waited[one.pid] == TOLD_AFTER:
                        note(_waiting(one))
    except psycopg.Error:
        return


def _waiting(one: Holder) -> str:
    if one.wanted == "advisory":
        return f"waiting for another migration: {one}"
    return f"waiting for {one.wanted}, held by {one}"
