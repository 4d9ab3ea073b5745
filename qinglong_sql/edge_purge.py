"""What ended long ago goes, once an hour, a page at a time, so that nothing waits for it."""

from collections.abc import Callable
from pathlib import Path

from qinglong_sql.edge_log import Log
from qinglong_sql.limits import PAGE_SIZE
from qinglong_sql.store import Store
from qinglong_sql.store.sqlite import wall_ms

FIRST_MS = 60_000
EVERY_MS = 3600 * 1000
AGAIN_MS = 5 * 60 * 1000  # after an error


class Purge:
    """Purges runs that ended `keep_ms` ago, with their logs; nothing when that is None."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        keep_ms: int | None,
        log: Log,
        clock: Callable[[], int],
    ) -> None:
        self.due_ms = clock() + FIRST_MS
        self._store = store
        self._folder = folder
        self._keep_ms = keep_ms
        self._log = log
        self._clock = clock
        self._gone = 0

    def look(self) -> bool:
        """Purge a page when it is time; whether there may be another. Raises what stores raise."""
        now_ms = self._clock()
        if self._keep_ms is None or now_ms < self.due_ms:
            return False
        from qinglong_sql.retention import purge

        self.due_ms = now_ms + AGAIN_MS
        before_ms = wall_ms() - self._keep_ms
        gone = purge(self._store, before_ms, folder=self._folder, limit=PAGE_SIZE).runs
        self._gone += gone
        self.due_ms = 0 if gone == PAGE_SIZE else now_ms + EVERY_MS
        if gone == PAGE_SIZE:
            return True
        if self._gone:
            words = f"purged {self._gone} run{'s' * (self._gone != 1)} older than --keep"
            self._log.say("purged", words, runs=self._gone)
            self._gone = 0
        return False
