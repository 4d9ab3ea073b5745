"""Processes whose wall clock is not the machine's, and is set while they run.

A file says by how much it is ahead or behind. Monotonic clocks stay true, as they do when a person
or NTP sets the wall clock. Servers get libfaketime, which reads the file at each new second: to
read it each time (NO_CACHE) is to allocate memory in PostgreSQL's signal handlers, which look at
the clock too, and under load a backend dies of that. `python -m tests.faked FILE WORDS` is the
command line with such a clock: under libfaketime 0.9.10 Python's `time.sleep` fails.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.prove import CannotRun

READ_S = 1.1  # within which who reads the file at each new second has read it
WAY = "no libfaketime here: apt-get install --no-install-recommends faketime"


def library() -> Path:
    """libfaketime for programs with threads. Raises CannotRun."""
    for folder in (*Path("/usr/lib").glob("*/faketime"), Path("/usr/lib/faketime")):
        if (found := folder / "libfaketimeMT.so.1").exists():
            return found
    raise CannotRun(WAY)


class Clock:
    """The wall clock of whoever is started with its `environment`."""

    def __init__(self, file: Path, ahead_s: int = 0) -> None:
        self.file = file
        self.ahead_s = 0
        self.set(ahead_s)

    def set(self, ahead_s: int, pid: int | None = None) -> None:
        """So many seconds ahead of the machine's from now on; less than 0 is behind it.

        pid: a process that has libfaketime, or its children; all stand still until each will read
        the new time, or some would be in the old one for a second more.
        """
        with standing_still(pid):
            self._write(ahead_s)

    def _write(self, ahead_s: int) -> None:
        self.ahead_s = ahead_s
        new = self.file.with_name(self.file.name + ".new")
        new.write_text(f"{ahead_s:+d}\n", encoding="ascii")
        new.chmod(0o644)  # a server may run as somebody else
        new.replace(self.file)

    @property
    def environment(self) -> dict[str, str]:
        """For a program of any kind. Raises CannotRun."""
        return {
            "LD_PRELOAD": str(library()),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_CACHE_DURATION": "0",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }


@contextmanager
def standing_still(pid: int | None) -> Iterator[None]:
    """Stop a process, the one that makes others first, and all of its children for a while."""
    stopped = [] if pid is None else [pid]
    for one in stopped:
        with suppress(ProcessLookupError, FileNotFoundError):  # it has ended meanwhile
            os.kill(one, signal.SIGSTOP)
            stopped += map(int, Path(f"/proc/{one}/task/{one}/children").read_text("ascii").split())
    try:
        yield
        time.sleep(READ_S if stopped else 0)
    finally:
        for one in stopped:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGCONT)


def main(file: Path, words: list[str]) -> None:
    """The command line, with a wall clock that reads the file each time."""
    real = time.time_ns

    def time_ns() -> int:
        return real() + int(file.read_text(encoding="ascii")) * 10**9

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 10**9
    from qinglong_sql.cli import main as command

    command(words)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
