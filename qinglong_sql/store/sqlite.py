"""The store on SQLite: runs the steps of sql/sqlite, each in one `begin immediate` (DESIGN §12).

One connection, in the hands of one thread at a time. A step is a list of statements; what it
refuses is a row in temp.refusal, which a rollback removes with everything else.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from qinglong_sql.canonical import storable
from qinglong_sql.errors import NotReady, QinglongError, error_of
from qinglong_sql.limits import SQLITE_BUSY_MS, SQLITE_CACHED_STATEMENTS
from qinglong_sql.migrate import stands_at, upgrade_sqlite
from qinglong_sql.store import VIEWS, Call, Row, select_text
from qinglong_sql.store.place import Place
from qinglong_sql.store.sqlfiles import Part, Step, sqlite_steps
from qinglong_sql.store.sqlite_error import absent, ends_cycle, name_of, typed
from qinglong_sql.store.sqlite_functions import FUNCTIONS
from qinglong_sql.store.sqlite_lock import READ_ONLY, begin_immediate, commit
from qinglong_sql.store.sqlite_shipped import newest_revision
from qinglong_sql.store.steps import check_params

if TYPE_CHECKING:
    from qinglong_sql.stage import Stage

Profile = Literal["standalone", "edge"]

FLOOR = (3, 40)
# what nearly always has nothing to do, and the step that sees it without the lock
LOOKS = {"sweep_agenda": "missing_agenda"}


def wall_ms() -> int:
    """Milliseconds since 1970, the clock of every store that is not told another one."""
    return time.time_ns() // 1_000_000


def open_sqlite(
    path: Path, *, create: bool = False, profile: Profile | None = None
) -> "SqliteStore":
    """A store on a file of the newest revision; with `create` it is made and brought there.

    Raises NotReady (QL503) with the way out.
    """
    if create:
        path.parent.mkdir(parents=True, exist_ok=True)
        upgrade_sqlite(path)
    elif not path.exists():
        raise absent(path)
    store = SqliteStore(path, profile=profile)
    try:
        found, newest = store.revision(), newest_revision()
        if found != newest:
            way = f"run `qinglong-sql migrate --dsn sqlite:///{path}`"
            raise NotReady(f"{path} stands at revision {found}, not {newest}: {way}")
    except BaseException:
        store.close()
        raise
    return store


class SqliteStore:
    """See qinglong_sql.store.Store. May be shared by threads: calls take turns.

    The file exists. Its journal stays as it is without a `profile`, and a write-ahead log does
    while others use it: `profile` says what it is. `clock` gives the milliseconds that steps see as
    now, read once a transaction. Raises NotReady for an older SQLite than 3.40, sqlite3.Error.
    """

    engine: Literal["sqlite", "postgres"] = "sqlite"
    ends_cycle = staticmethod(ends_cycle)

    def __init__(
        self,
        path: Path | str,
        *,
        profile: Profile | None = None,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        if sqlite3.sqlite_version_info < FLOOR:
            raise NotReady(f"SQLite {sqlite3.sqlite_version} is older than 3.40")
        self.path = Path(path)
        self.clock = clock
        self._turn = threading.RLock()
        self._steps = sqlite_steps()
        self._columns: dict[str, frozenset[str]] = {}
        self._connection = self._connect()
        self._cursor = self._connection.cursor()
        try:
            self._prepare(profile)
            self.still_there = Place(self.path).look
        except BaseException:
            self._connection.close()
            raise

    def call(self, step: str, /, **params: object) -> list[Row]:
        """Run one step in one transaction, committed on return.

        Raises KeyError for an unknown step, TypeError when its parameters are others, a
        QinglongError by code, Contended when the file stays locked, and sqlite3.Error for what is
        no step's fault; then nothing was changed.
        """
        if step in LOOKS:
            check_params(step, params)
            rows = self._run([(self._steps[LOOKS[step]], params)])[0]
            if not any(row["stages"] for row in rows):
                return rows
        return self.batch([(step, params)])[0]

    def fuse(self, calls: Sequence[Call]) -> list[list[Row]] | None:
        """As `batch`; None when a call raised for its own sake: nothing was changed (DESIGN §6).

        Sent alone, the others may pass. Raises what is the file's or the machine's trouble.
        """
        try:
            return self.batch(calls)
        except (QinglongError, sqlite3.Error) as error:
            if ends_cycle(error):
                raise
            return None

    def batch(self, calls: Sequence[Call]) -> list[list[Row]]:
        """Run several steps in one transaction: all of them, or none."""
        for step, params in calls:
            check_params(step, params)
        return self._run([(self._steps[step], params) for step, params in calls])

    def page(self, stage: "Stage", after: tuple[int, str], limit: int) -> list[Row]:
        """One page of a stage, one run a transaction: rows in key order (DESIGN §6).

        What raises for one run alone goes to its fault; everything else ends the page.
        """
        keys: Row = {"p_after_due_at_ms": after[0], "p_after_run_id": after[1], "p_limit": limit}
        if stage.name == "task_cancellation":
            due = self._run([(self._steps["due_task_cancellations"], keys)])[0]
        else:
            due = self.call("due_page", p_stage=stage.agenda, **keys)
        return [{**one, **self._one(stage, one["run_id"])} for one in due]

    def read(self, view: str, /, *, order: str = "", limit: int = 0, **equals: object) -> list[Row]:
        """Rows of one of VIEWS whose columns equal `equals`; None is null, a Span a range.

        Raises KeyError for an unknown view, column or order.
        """
        if view not in VIEWS:
            raise KeyError(view)
        with self._turn, typed():
            tail, values = select_text(view, self._columns_of(view), order, limit, equals)
            return self._answer(f"select * from {view}{tail.replace('{}', '?')}", values) or []

    def revision(self) -> str | None:
        """The revision that the file says it has; None when it is empty. Raises NotReady."""
        with self._turn:
            return stands_at(self._connection)

    def close(self) -> None:
        """Close the file; a later call raises sqlite3.ProgrammingError."""
        with self._turn:
            self._connection.close()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode=rw",
            uri=True,
            isolation_level=None,
            timeout=SQLITE_BUSY_MS / 1000,
            cached_statements=SQLITE_CACHED_STATEMENTS,
            check_same_thread=False,
        )

    def _prepare(self, wanted: Profile | None) -> None:
        for name, count, function in FUNCTIONS:
            self._connection.create_function(name, count, function, deterministic=True)
        self._each("connect")
        (found,) = self._cursor.execute("pragma journal_mode").fetchone()
        profile: Profile = wanted or ("standalone" if found == "wal" else "edge")
        try:
            mode = self._each(profile)
        except sqlite3.OperationalError as error:
            if found != "wal" or not name_of(error).startswith("SQLITE_BUSY"):
                raise
            mode = found
        self.profile: Profile = "standalone" if mode == "wal" else "edge"
        if self.profile != profile:  # others use it, or a file system without shared memory
            self._each(self.profile)
        self._each("workspace")

    def _each(self, name: str) -> str:
        """Run a step of connection.sql outside any transaction; the first answer of a pragma."""
        first = ""
        for part in self._steps[name].parts:
            rows = self._cursor.execute(part.text).fetchall()
            first = first or str(rows[0][0] if rows else "")
        return first

    def _one(self, stage: "Stage", run_id: str) -> Row:
        """One run in its own transaction: its outcome, or `faulted`."""
        try:
            row = self.call(stage.run_step or "converge_cancellation", p_run_id=run_id)[0]
        except (QinglongError, sqlite3.Error) as error:
            if ends_cycle(error):
                raise
            said = storable(str(error))
            self.call("record_fault", p_run_id=run_id, p_stage=stage.agenda, p_error=said)
            row = {"outcome": "faulted"}
        return {
            "outcome": row["outcome"],
            "effects": row.get("effects", 0),
            "settled_attempts": row.get("settled_attempts", 0),
            "blocked_count": row.get("blocked_count", 0),
        }

    def _run(self, calls: Sequence[tuple[Step, Mapping[str, object]]]) -> list[list[Row]]:
        """Every call in one transaction; reads alone take no lock and are rolled back."""
        writes = any(step.name not in READ_ONLY for step, _ in calls)
        answers: list[list[Row]] = []
        with self._turn:
            with typed():
                if writes:
                    begin_immediate(self._cursor)
                else:
                    self._cursor.execute("begin")
            now_ms = self.clock()
            try:
                for step, params in calls:
                    with typed(step.check_code):
                        answers.append(self._step(step, params, now_ms))
                if writes:
                    with typed():
                        self._commit()
            finally:
                if self._connection.in_transaction:
                    self._cursor.execute("rollback")
        return answers

    def _step(self, step: Step, params: Mapping[str, object], now_ms: int) -> list[Row]:
        bound = {"p_stage": step.word, **params, "now_ms": now_ms}
        if step.stage:
            bound["p_stage"] = step.stage
        try:
            answer = self._parts(step.parts, bound)
        except sqlite3.Error:
            self._refuse()  # what came after a refusal says less than the refusal
            raise
        self._refuse()
        return answer or []

    def _parts(self, parts: Sequence[Part], bound: Row) -> list[Row] | None:
        """Run the parts; the rows of the last statement that answers."""
        answer: list[Row] | None = None
        for part in parts:
            if part.kind == "STATEMENT":
                found = self._answer(part.text, bound)
                answer = answer if found is None else found
            elif part.kind == "WHEN":
                if self._cursor.execute(part.text, bound).fetchone():
                    self._parts(part.parts, bound)
            elif part.kind == "EACH":
                chosen = self._cursor.execute("select run_id from temp.chosen order by run_id")
                for (run_id,) in chosen.fetchall():
                    bound["each_run_id"] = run_id
                    self._parts(part.parts, bound)
            else:
                self._repeat(part, bound)
        return answer

    def _repeat(self, part: Part, bound: Row) -> None:
        changed, bound["turn"] = 1, 0
        while changed:
            bound["turn"] += 1
            changed = sum(self._cursor.execute(one.text, bound).rowcount for one in part.parts)

    def _answer(self, text: str, bound: Mapping[str, object] | list[object]) -> list[Row] | None:
        """The rows of a statement; None when it is none that answers."""
        cursor = self._cursor.execute(text, bound)
        if cursor.description is None:
            return None
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def _refuse(self) -> None:
        found = self._cursor.execute("select code, message from temp.refusal limit 1").fetchone()
        if found:
            raise error_of(*found)

    def _commit(self) -> None:
        commit(self._cursor)

    def _columns_of(self, view: str) -> frozenset[str]:
        if view not in self._columns:
            rows = self._cursor.execute(f"pragma table_info({view})").fetchall()
            if not rows:
                raise NotReady(f"{self.path} has no view {view}: run `qinglong-sql migrate`")
            self._columns[view] = frozenset(row[1] for row in rows)
        return self._columns[view]
