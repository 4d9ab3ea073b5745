"""Whether an open file is still the one that people see at its path."""

import time
from pathlib import Path

from qinglong_sql.errors import Displaced, NotReady

AWAY_S = 60.0  # for so long a file may be away and come back


class Place:
    """Where a file was when it was opened. SQLite reads and writes on in one that is gone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self._identity()
        self._away_since: float | None = None

    def look(self) -> None:
        """One stat. Raises NotReady for a file that was moved away or removed.

        Raises Displaced when another one stands there, or when it was away for AWAY_S.
        """
        try:
            found = self._identity()
        except OSError as error:
            words = f"{self._path}: {error.strerror}; it was there before"
            now = time.monotonic()
            self._away_since = now if self._away_since is None else self._away_since
            if now - self._away_since >= AWAY_S:
                raise Displaced(f"{words}, and for {AWAY_S:g}s it did not come back") from error
            raise NotReady(words) from error
        if found != self._file:
            raise Displaced(f"{self._path} has been replaced by another file; start again")
        self._away_since = None

    def _identity(self) -> tuple[int, int]:
        seen = self._path.stat()
        return seen.st_dev, seen.st_ino
