"""What an ingress says of the folder of its workers' logs, when it takes no more of them.

Work goes on without: a worker keeps what is not taken, and sends it again (DESIGN §9). So it is
told, and the ingress stays ready.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from qinglong_sql.control_log import Log

CALM_S: Final = 5.0  # a full disk takes a small piece between large ones: that is not well yet
SOURCE: Final = "logs"


class LogFolder:
    """Hears of each write (`FileLogStore.tell`), from any thread; `look` at it now and then.

    failed: called at each that failed.
    """

    def __init__(
        self,
        root: Path,
        log: Log,
        failed: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._log, self._failed, self._clock = root, log, failed, clock
        self._lock = threading.Lock()
        self._bad_at: float | None = None
        self._good = False  # something was written since

    def __call__(self, error: OSError | None) -> None:
        """Something was written, or why it was not."""
        if error is None:
            with self._lock:
                self._good = True
            self.look()
            return
        with self._lock:
            self._bad_at, self._good = self._clock(), False
        self._failed()
        self._log.trouble(SOURCE, f"log folder {self._root}: {error.strerror or error}")

    def look(self) -> None:
        """Say that it works again, when it has for a while."""
        with self._lock:
            bad_at = self._bad_at
            if bad_at is None or not self._good or self._clock() - bad_at < CALM_S:
                return
            self._bad_at = None
        self._log.well(SOURCE)
