"""Logs of a run: where they are, their lines, and following them while they grow."""

import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from qinglong_sql.cli.terminal import calm
from qinglong_sql.cli.words import Row
from qinglong_sql.evidence import LOG_CAP_BYTES
from qinglong_sql.workplace import dropped_file

BLOCK_BYTES = 1 << 16
LONGEST_LINE = 1 << 20
DROPPED_BYTES = 16 * 1024  # a receipt stands there where a disk was full
RESET = "\x1b[0m"


def places(state: Path, attempt: Row) -> Iterator[Path]:
    """Where the log of an attempt may be, in the folders of this machine's workers."""
    try:
        workers = sorted(entry for entry in state.iterdir() if entry.is_dir())
    except OSError:
        return
    name = f"{attempt['step_key']}.{attempt['number']}.log"
    for worker in workers:
        yield worker / "log" / attempt["run_id"] / name
        if attempt["offer_id"]:
            yield worker / "exec" / attempt["offer_id"] / "log"
            yield worker / "aside" / attempt["offer_id"] / "log"


def open_log(path: Path) -> int | None:
    """A descriptor of a log, or None: a command can make anything of its folder (DESIGN §9)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


class Tail:
    """The log of one attempt: an open file goes on to be it, wherever it is moved."""

    def __init__(self, state: Path, attempt: Row) -> None:
        self.attempt = attempt
        self.path: Path | None = None
        self._state = state
        self._fd: int | None = None
        self._at = 0
        self._part = b""

    def found(self) -> bool:
        """Whether there is a log, looked for until there is. It may move while we look: twice."""
        for _ in range(2):
            if self._fd is None:
                for path in places(self._state, self.attempt):
                    self._fd = open_log(path)
                    if self._fd is not None:
                        self.path = path
                        break
        return self._fd is not None

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def size(self) -> int:
        return os.fstat(self._fd).st_size if self._fd is not None else 0

    def blocks(self) -> Iterator[bytes]:
        """What is new in it, as it is."""
        if self._fd is None:
            return
        if self.size() < self._at:  # its command cut it off
            self._at = 0
        while block := os.pread(self._fd, BLOCK_BYTES, self._at):
            self._at += len(block)
            yield block

    def lines(self, last: bool) -> Iterator[bytes]:
        """Its new whole lines, without their ends; the last one when no more comes."""
        for block in self.blocks():
            *whole, self._part = (self._part + block).split(b"\n")
            yield from whole
            if len(self._part) > LONGEST_LINE:
                yield self._part
                self._part = b""
        if last and self._part:
            yield self._part
            self._part = b""

    def skip(self, keep: int | None) -> None:
        """Begin with the last `keep` lines of what is there; None is all."""
        if keep is None or self._fd is None:
            return
        end = at = self.size()
        if not keep:
            self._at = end
            return
        seen = 0
        while at > 0:
            first = max(0, at - BLOCK_BYTES)
            block = os.pread(self._fd, at - first, first)
            if at == end and block.endswith(b"\n"):
                block = block[:-1]
            while (cut := block.rfind(b"\n")) >= 0:
                seen += 1
                if seen == keep:
                    self._at = first + cut + 1
                    return
                block = block[:cut]
            at = first
        self._at = 0

    def missing(self) -> str | None:
        """Words for a log that does not hold all that was written; None for a whole one."""
        size, dropped = self.size(), self._dropped()
        if size < LOG_CAP_BYTES:
            if not dropped:
                return None
            return f"is not whole: {dropped} bytes are not kept: the disk was full or failed"
        if dropped:
            return f"is not whole: {dropped} bytes in it are not kept: it was full"
        if self.attempt["finished_at_ms"] is None and size == LOG_CAP_BYTES:
            return f"is full at {size} bytes: of what follows the end is written when the step ends"
        return None

    def _dropped(self) -> int | None:
        for path in places(self._state, self.attempt):
            fd = open_log(dropped_file(path))
            if fd is None:
                continue
            try:
                found = json.loads(os.read(fd, DROPPED_BYTES))
                return int(found["bytes_dropped"] if isinstance(found, dict) else found)
            except (OSError, ValueError, KeyError, TypeError):
                continue
            finally:
                os.close(fd)
        return None


def for_terminal(line: bytes, colours: bool) -> str:
    """A line that keeps its place on a terminal: colours stay, whatever else would move is shown.

    Of what a carriage return writes over, the last is kept, as it would be seen.
    """
    text = line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
    shown = calm(text, colours=colours)
    return shown + RESET if "\x1b" in shown else shown


def live(attempts: Iterable[Row]) -> list[Row]:
    """The attempts that have started or ended, as they started."""
    begun = [one for one in attempts if one["starting_at_ms"] is not None]
    return sorted(begun, key=lambda one: (one["starting_at_ms"], one["number"]))
