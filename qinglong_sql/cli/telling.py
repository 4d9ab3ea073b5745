"""A store on PostgreSQL that says, once, when a step has not been answered for some seconds.

A commit waits for a missing synchronous standby for as long as nobody ends that, and without a word
of the server. What drives runs has its log for this; a command has standard error.
"""

import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from qinglong_sql.cli.words import complain
from qinglong_sql.store import Row
from qinglong_sql.store.link import waits_for_standby
from qinglong_sql.store.postgres import PostgresStore, open_postgres_store

AFTER_S: Final = 5.0
UNHEARD: Final = "PostgreSQL has not heard of its synchronous standby, which has to confirm this"
SILENT: Final = f"PostgreSQL has not answered for {AFTER_S:g} s"


def open_telling(dsn: str) -> PostgresStore:
    """A store for one command that writes. Raises NotReady (QL503)."""
    return open_postgres_store(dsn, kind=Telling)


class Telling(PostgresStore):
    """Every step that it calls may be interrupted and repeated, and is, when it is told how."""

    _told = False

    def call(self, step: str, /, **params: object) -> list[Row]:
        """Call one step, as a PostgresStore does."""
        key = params.get("p_run_key")
        with self._awaited(f" with --key {shlex.quote(str(key))}" if key else ""):
            return super().call(step, **params)

    @contextmanager
    def _awaited(self, more: str) -> Iterator[None]:
        over = threading.Event()
        thread = threading.Thread(target=self._tell, args=(over, more), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(timeout=1)

    def _tell(self, over: threading.Event, more: str) -> None:
        if self._told or over.wait(AFTER_S):
            return
        why = UNHEARD if waits_for_standby(self.dsn) else SILENT
        if not over.is_set():
            self._told = True
            complain(f"waiting: {why}; Ctrl-C is safe, and so is the same command again{more}")
