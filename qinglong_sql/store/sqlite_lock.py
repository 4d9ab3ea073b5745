"""The lock of a SQLite file, taken and let go (DESIGN §12).

SQLite itself waits longer with every try, up to 100 ms between two: who meets a commit of three
milliseconds waits for eight, and who meets two of them for eighteen. Here a try is a millisecond.
"""

import sqlite3
import time

from qinglong_sql.limits import SQLITE_BUSY_MS
from qinglong_sql.store.sqlite_error import name_of

PATIENT_AFTER_S = 0.1  # a lock held for so long is no commit: what waits for it may be slower
PAUSES_S = (0.001, 0.01)
# steps that only look, and take no lock
READ_ONLY = frozenset(
    {"due_page", "due_task_cancellations", "attempt_input", "missing_agenda", "claim_schedule"}
)
COMMIT_TRIES = 6  # each waits for the busy timeout


def begin_immediate(cursor: sqlite3.Cursor) -> None:
    """Begin a transaction that holds the lock; waits for it at most the busy timeout.

    Raises sqlite3.OperationalError.
    """
    begun = time.monotonic()
    # Not through the cursor, which tests count statements at.
    cursor.connection.execute("pragma busy_timeout = 0")
    try:
        while True:
            try:
                cursor.execute("begin immediate")
                return
            except sqlite3.OperationalError as error:
                waited = time.monotonic() - begun
                if not name_of(error).startswith("SQLITE_BUSY") or waited * 1000 > SQLITE_BUSY_MS:
                    raise
            time.sleep(PAUSES_S[waited > PATIENT_AFTER_S])
    finally:
        cursor.connection.execute(f"pragma busy_timeout = {SQLITE_BUSY_MS}")


def commit(cursor: sqlite3.Cursor) -> None:
    """A reader of another process may hold the file under TRUNCATE: the commit waits again.

    Raises sqlite3.OperationalError.
    """
    for tries_left in reversed(range(COMMIT_TRIES)):
        try:
            cursor.execute("commit")
            return
        except sqlite3.OperationalError as error:
            busy = name_of(error).startswith("SQLITE_BUSY")
            if not busy or not tries_left or not cursor.connection.in_transaction:
                raise
