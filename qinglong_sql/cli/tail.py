"""Logs of a run: where they are, their lines, and following them while they grow."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from qinglong_sql.cli.options import state_folder
from qinglong_sql.cli.terminal import calm
from qinglong_sql.cli.words import Row
from qinglong_sql.evidence import LOG_CAP_BYTES
from qinglong_sql.log_file import open_log, read_dropped
from qinglong_sql.log_store import ending
from qinglong_sql.store import SQLITE
from qinglong_sql.workplace import dropped_file

__all__ = ["Places", "Tail", "for_terminal", "live", "open_log", "places", "places_of"]

BLOCK_BYTES = 1 << 16
LONGEST_LINE = 1 << 20
RESET = "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Places:
    """Where logs may be on this machine.

    `state` holds a folder for each worker of a run or an edge, `base` one (`remote-NAME`) for each
    worker that has a process of its own; in `stores` an ingress keeps what workers shipped.
    """

    state: Path
    base: Path | None = None
    stores: tuple[Path, ...] = ()

    def workers(self) -> list[Path]:
        """The state folders of workers; those that cannot be listed are left out."""
        found = []
        for folder, names in ((self.state, "*"), (self.base, "remote-*")):
            try:
                found += sorted(one for one in folder.glob(names) if one.is_dir()) if folder else []
            except OSError:
                continue
        return found

    def kept(self) -> bool:
        """Whether an ingress of this machine keeps logs."""
        return any(os.path.lexists(store) for store in self.stores)


def places_of(dsn: str, log_dir: Path | None = None) -> Places:
    """The places for one database; `log_dir` is where its ingress keeps logs, if not here."""
    state = state_folder(dsn)
    if dsn.startswith(SQLITE):
        return Places(state)
    ours = state.parent / "ingress" / "log"
    return Places(state, state.parent, (log_dir.absolute(), ours) if log_dir else (ours,))


def places(where: Path | Places, attempt: Row) -> Iterator[tuple[Path, bool]]:
    """Where the log of an attempt may be, and whether it is one that was shipped there."""
    where = Places(where) if isinstance(where, Path) else where
    name = f"{attempt['step_key']}.{attempt['number']}.log"
    for worker in where.workers():
        yield worker / "log" / attempt["run_id"] / name, False
        if attempt["offer_id"]:
            yield worker / "exec" / attempt["offer_id"] / "log", False
            yield worker / "aside" / attempt["offer_id"] / "log", False
    for store in where.stores:
        yield store / attempt["run_id"] / name, True


class Tail:
    """The log of one attempt: an open file goes on to be it, wherever it is moved."""

    def __init__(self, where: Path | Places, attempt: Row) -> None:
        self.attempt = attempt
        self.path: Path | None = None
        self._where = where
        self._shipped = False
        self._fd: int | None = None
        self._at = 0
        self._part = b""

    def found(self) -> bool:
        """Whether there is a log, looked for until there is. It may move while we look: twice."""
        for _ in range(2):
            if self._fd is None:
                for path, shipped in places(self._where, self.attempt):
                    self._fd = open_log(path)
                    if self._fd is not None:
                        self.path, self._shipped = path, shipped
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

    def more_comes(self) -> bool:
        """Whether its worker has still to ship some of it, though its attempt may have ended."""
        return self._shipped and self.path is not None and not os.path.lexists(ending(self.path))

    def missing(self) -> str | None:
        """Words for a log that does not hold all that was written; None for a whole one."""
        if self.attempt["finished_at_ms"] is not None and self.more_comes():
            worker = self.attempt["worker_id"]
            return (
                f"is not whole yet: worker {worker} has not shipped the rest, or the"
                " ingress' log folder does not take it"
            )
        size, dropped = self.size(), self._dropped()
        if dropped == 0 or (size < LOG_CAP_BYTES and not dropped):
            return None
        if size < LOG_CAP_BYTES:
            return f"is not whole: {dropped} bytes are not kept: the disk was full or failed"
        if dropped:
            return f"is not whole: {dropped} bytes in it are not kept: it was full"
        if self.attempt["finished_at_ms"] is None and size == LOG_CAP_BYTES:
            return f"is full at {size} bytes: of what follows the end is written when the step ends"
        return None

    def _dropped(self) -> int | None:
        for path, _ in places(self._where, self.attempt):
            found = read_dropped(dropped_file(path))
            if found is not None:
                return found
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
