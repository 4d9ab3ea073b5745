"""Processes whose wall clock is not the machine's: libfaketime, moved while they run.

A file says by how much the clock is ahead or back, so it can be set live. Monotonic clocks stay
true, as they do when a person or NTP sets the wall clock.
"""

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
        self._file = file
        self._library = library()
        self.set(ahead_s)

    def set(self, ahead_s: int) -> None:
        """So many seconds ahead of the machine's from now on; less than 0 is behind it."""
        new = self._file.with_name(self._file.name + ".new")
        new.write_text(f"{ahead_s:+d}\n", encoding="ascii")
        new.chmod(0o644)  # a server may run as somebody else
        new.replace(self._file)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
