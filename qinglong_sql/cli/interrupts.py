"""Signals counted as they come, and a way out that no database can keep shut (DESIGN §9)."""

import os
import signal
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from qinglong_sql.cli.exits import Exit
from qinglong_sql.cli.words import complain

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """While it is entered, `count` says how many interrupts came; each calls `wake`.

    Python makes one of two that come while a call to a database waits, so a thread counts what the
    kernel tells. From the second on the program has `within_s`; then the thread calls `out`.
    Without either it only counts, and `out` leaves.
    """

    def __init__(
        self,
        wake: Callable[[], object] | None,
        out: Callable[[], object] | None,
        within_s: float,
    ) -> None:
        self.count = 0
        self._turn = threading.Lock()
        self.tell(wake, out)
        self._within_s = within_s
        self._before: dict[int, Any] = {}
        self._over = threading.Event()

    def tell(
        self, wake: Callable[[], object] | None = None, out: Callable[[], object] | None = None
    ) -> None:
        """From now on call these; what came before is in `count`. The old ones are never called."""
        with self._turn:
            self._wake = wake or (lambda: None)
            self._out = out or leave

    def over(self) -> None:
        """All has ended: while the interpreter does, nothing heard may change the exit code."""
        self._before = dict.fromkeys(self._before, signal.SIG_IGN)

    def __enter__(self) -> "Interrupts":
        nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._read, self._write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._write, False)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {
            number: signal.signal(number, lambda number, frame: None)
            for number in INTERRUPTS
            if not (nohup and number == signal.SIGHUP)
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        for number, action in self._before.items():
            signal.signal(number, action)
        signal.set_wakeup_fd(self._wakeup)
        self._over.set()
        os.close(self._write)
        self._thread.join()
        os.close(self._read)

    def _listen(self) -> None:
        while said := os.read(self._read, 1):
            if said[0] not in INTERRUPTS:
                continue
            self.count += 1
            with self._turn:
                self._wake()
            if self.count == 2:
                threading.Thread(target=self._leave, daemon=True).start()

    def _leave(self) -> None:
        if not self._over.wait(self._within_s):
            self._out()


def leave() -> None:
    """End this process, whatever it waits for. Never returns."""
    complain("interrupted")
    os._exit(Exit.KILLED)
