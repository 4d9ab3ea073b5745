"""One log on its way from a worker to its ingress: what comes next of it, and whose it is.

Nothing here waits, sends or speaks SQL (DESIGN §9).
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from qinglong_sql.apart import read_plain
from qinglong_sql.evidence import LOG_MAX_BYTES
from qinglong_sql.log_file import open_log, open_log_of, read_dropped

CHUNK_BYTES = 256 * 1024
RECORD_BYTES = 4096


class Author(Protocol):
    """Whose log it is, and the right to send it; a `Held` is one, and so is a `Kept`."""

    @property
    def attempt_id(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def step_key(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def fence(self) -> int: ...
    @property
    def token(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Kept:
    """The right to send a log after its end, as the file beside it says it."""

    attempt_id: str
    run_id: str
    step_key: str
    number: int
    fence: int
    token: str

    def path(self, state_dir: Path) -> Path:
        """The log that is kept (`workplace.keep_log`)."""
        return state_dir / "log" / self.run_id / f"{self.step_key}.{self.number}.log"


@dataclass(slots=True)
class Log:
    """One log on its way: `at` is the next byte of our file, `there` what the other side holds."""

    author: Author
    folder: Path | None  # of the execution, while it has one
    kept: Path | None = None
    fd: int | None = None
    at: int = 0
    there: int = 0
    due_ms: int = 0
    failures: int = 0
    size: int = 0  # of what is kept
    asked: bool = False  # what the other side holds is known
    given_up: bool = False
    told: bool = False  # that the other side takes no more of it

    def opened(self) -> int | None:
        if self.fd is None:
            if self.kept is not None:
                self.fd = open_log(self.kept)
            elif self.folder is not None:
                self.fd = open_log_of(self.folder)
        return self.fd

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def next(self) -> tuple[bytes, int | None] | None:
        """What is to be sent now, and with the last of an ended log how many bytes are not kept.

        None when nothing is new. Raises OSError for a disk that fails.
        """
        fd = self.opened()
        size = 0 if fd is None else os.fstat(fd).st_size
        if size < self.at:  # its command cut it off: what is new goes behind what was sent
            self.at = 0
        room = min(CHUNK_BYTES, LOG_MAX_BYTES - self.there, size - self.at)
        full = self.there + max(room, 0) >= LOG_MAX_BYTES
        if self.given_up:
            room, full = 0, self.asked
        chunk = b"" if fd is None or room <= 0 else os.pread(fd, room, self.at)
        rest = size - self.at - len(chunk)
        if self.kept is not None and (rest <= 0 or full):
            return chunk, rest + (read_dropped(self.kept.with_suffix(".dropped")) or 0)
        return (chunk, None) if chunk or self.given_up else None

    def answered(self, chunk: bytes, there: int) -> None:
        """The other side may hold more, after a restart, or less: it says where to go on."""
        moved = there - self.there
        self.at = max(0, self.at + moved)
        if self.fd is not None:
            self.at = min(self.at, os.fstat(self.fd).st_size)
        self.failures = 0 if moved > 0 or not chunk else self.failures + 1
        self.there, self.asked = there, True


def write_kept(kept: Kept, log: Path) -> None:
    """Keep the right to send a log beside it, 0600. Raises OSError."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(log.with_suffix(".ship"), flags, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(json.dumps(asdict(kept)))


def read_kept(path: Path) -> Kept | None:
    """What a file beside a log says; None when it is not one of ours."""
    try:
        kept = Kept(**json.loads(read_plain(path, RECORD_BYTES)))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    texts = (kept.attempt_id, kept.run_id, kept.step_key, kept.token)
    numbers = (kept.number, kept.fence)
    if not all(isinstance(text, str) and text.isprintable() for text in texts):
        return None
    return kept if all(type(number) is int and number >= 0 for number in numbers) else None
