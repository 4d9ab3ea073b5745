"""Processes whose wall clock is not the machine's, and is set while they run.

A file says by how much it is ahead or behind. Monotonic clocks stay true, as they do when a person
or NTP sets the wall clock. Servers get libfaketime. `python -m tests.faked FILE WORDS` is the
command line with such a clock: under libfaketime 0.9.10 Python's `time.sleep` fails.
"""

import sys
import time
from pathlib import Path

from tests.prove import CannotRun

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

    def set(self, ahead_s: int) -> None:
        """So many seconds ahead of the machine's from now on; less than 0 is behind it."""
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
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }


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
