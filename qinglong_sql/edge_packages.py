"""A folder of package files: published when one is there or changed, and checks (DESIGN §7).

A bad file is told once a change, and what is active stays active. So does the package of a file
that goes, and every package that two files define. Looked at by `stat` alone; what changed is read
when it has been left alone for a moment, for a file may be half written.
"""

import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qinglong_sql.errors import Malformed
from qinglong_sql.limits import PACKAGE_BYTES
from qinglong_sql.package import Package, PackageFaults, parse_package
from qinglong_sql.publishing import publish_package
from qinglong_sql.store import Row, Store

SUFFIXES = (".yaml", ".yml")
SETTLE_NS = 1_000_000_000
MAX_FILES = 512
AT_ONCE_S = 0.25  # of one look; the rest comes with the next
SHOWN_FAULTS = 5

Sign = tuple[int, ...]
Say = Callable[..., object]  # (event, words, **more)
Publish = Callable[[Package], dict[str, Any]]


@dataclass(slots=True)
class Entry:
    """One file: as it was last seen, what became of it, and what is wrong with it."""

    name: str
    seen: Sign = ()
    done: Sign = ()  # as it was when it was read
    package: Package | None = None  # what it holds, if it checks
    row: dict[str, Any] | None = None  # of its last publication
    published_at_ms: int | None = None
    faults: list[str] = field(default_factory=list)

    def answer(self) -> dict[str, Any]:
        """What `status` says of it."""
        row = self.row or {}
        return {
            "file": self.name,
            "package": row.get("package_key") or (self.package and self.package.key),
            "generation": row.get("generation"),
            "published_at_ms": self.published_at_ms,
            "faults": self.faults[:SHOWN_FAULTS],
            "fault_count": len(self.faults),
        }


class Packages:
    """Publishes what is in a folder. `say` is told (event, words, more) of what happens."""

    def __init__(
        self,
        folder: Path,
        publish: Publish,
        say: Say,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.folder = folder
        self.fault = ""  # of the folder itself
        self._publish = publish
        self._say = say
        self._clock_ns = clock_ns
        self._entries: dict[str, Entry] = {}
        self._left_out = 0

    def look(self) -> int | None:
        """Publish what changed; milliseconds until more can be done, None when all is.

        Raises what the store raises: then the file is tried again with the next look.
        """
        found = self._scan()
        if found is None:
            return None
        changed = self._changed(found)
        end = time.monotonic() + AT_ONCE_S
        for number, entry in enumerate(changed):
            if number and time.monotonic() >= end:
                return 0
            self._read(entry)
        self._settle_keys()
        for entry in self._entries.values():
            if entry.package and not entry.row and not entry.faults:
                self._bring(entry, entry.package)
        unsettled = any(entry.done != entry.seen for entry in self._entries.values())
        return SETTLE_NS // 1_000_000 if unsettled else None

    def queues(self) -> set[str]:
        """The queues of the tasks of all files that check."""
        return {
            task["queue"]
            for entry in self._entries.values()
            if entry.package
            for task in entry.package.model["tasks"].values()
        }

    def answer(self) -> dict[str, Any]:
        """What `status` says of the folder."""
        return {
            "folder": str(self.folder),
            "fault": self.fault or self._too_many or None,
            "files": [self._entries[name].answer() for name in sorted(self._entries)],
            "left_out": self._left_out,
        }

    @property
    def _too_many(self) -> str:
        if not self._left_out:
            return ""
        files = f"{self._left_out} file{'s' * (self._left_out != 1)}"
        are = "is" if self._left_out == 1 else "are"
        return f"{files} of {self.folder} {are} left out: only the first {MAX_FILES} are looked at"

    # --- looking

    def _scan(self) -> dict[str, Sign] | None:
        """The files and their signs; None, told once, when the folder cannot be read."""
        try:
            with os.scandir(self.folder) as listed:
                names = sorted(one.name for one in listed if _is_ours(one.name))
        except OSError as error:
            words = f"{self.folder}: {error.strerror}"
            if words != self.fault:
                self.fault = words
                self._say("folder", f"packages cannot be read: {words}")
            return None
        if self.fault:
            self.fault = ""
            self._say("folder", f"packages can be read again: {self.folder}")
        left_out = max(0, len(names) - MAX_FILES)
        if left_out != self._left_out:
            self._left_out = left_out
            self._say("folder", self._too_many or f"all files of {self.folder} are looked at again")
        signs = {name: self._sign(name) for name in names[:MAX_FILES]}
        return {name: sign for name, sign in signs.items() if sign}

    def _sign(self, name: str) -> Sign:
        """What tells one state of a file from another; nothing for what is no file."""
        try:
            found = (self.folder / name).stat()
        except OSError:
            return ()
        return _sign_of(found) if stat.S_ISREG(found.st_mode) else ()

    def _changed(self, found: dict[str, Sign]) -> list[Entry]:
        """The files to be read now; what is gone is forgotten."""
        for name in self._entries.keys() - found.keys():
            entry = self._entries.pop(name)
            key = entry.row and entry.row["package_key"]
            kept = (
                f"; package {key} stays active until `qinglong-sql withdraw {key}`" if key else ""
            )
            self._say("gone", f"{name} is gone{kept}", file=name)
        changed = []
        for name, sign in found.items():
            entry = self._entries.setdefault(name, Entry(name))
            settled = sign == entry.seen or self._clock_ns() - sign[0] >= SETTLE_NS
            entry.seen = sign
            if settled and sign != entry.done:
                changed.append(entry)
        return changed

    def _read(self, entry: Entry) -> None:
        """Read a file that has been left alone; one that moves meanwhile is read again later."""
        path = self.folder / entry.name
        try:
            raw, sign = _bytes_of(path)
        except OSError as error:
            entry.done = entry.seen
            self._refuse(entry, [f"{entry.name}: {error.strerror}"])
            return
        if sign != entry.seen:
            return
        entry.done = sign
        try:
            package = parse_package(raw, str(path.absolute()))
        except PackageFaults as faults:
            self._refuse(entry, [fault.render(entry.name) for fault in faults.faults])
            return
        before, entry.package = entry.package, package
        if before is None or (before.key, before.digest) != (package.key, package.digest):
            entry.row = None
        entry.faults = []
        for fault in package.warnings if entry.row is None else ():
            self._say("warning", fault.render(entry.name), file=entry.name)

    def _settle_keys(self) -> None:
        """A package that two files define is nobody's: neither is published (what is, stays)."""
        owners: dict[str, list[Entry]] = {}
        for entry in self._entries.values():
            if entry.package:
                owners.setdefault(entry.package.key, []).append(entry)
        for key, entries in owners.items():
            for entry in entries:
                others = [one.name for one in entries if one is not entry]
                said = f"{entry.name}: package {key} is also defined by "
                if others:
                    words = said + ", ".join(sorted(others))
                    row, entry.row = entry.row, None
                    if entry.faults != [words]:
                        self._refuse(entry, [words], keep=True, row=row)
                elif entry.faults and entry.faults[0].startswith(said):
                    entry.faults, entry.row = [], None

    def _refuse(
        self, entry: Entry, faults: list[str], *, keep: bool = False, row: Row | None = None
    ) -> None:
        """Tell the faults, and what they mean; `row` is of the last publication, if not kept."""
        if not keep:
            entry.package = None
        entry.faults = faults
        more = len(faults) - SHOWN_FAULTS
        shown = [*faults[:SHOWN_FAULTS], *([f"{entry.name}: and {more} more"] if more > 0 else [])]
        shown[-1] += f"; not published, {_what_stays(row or entry.row)}"
        for words in shown:
            self._say("fault", words, file=entry.name)

    # --- publishing

    def _bring(self, entry: Entry, package: Package) -> None:
        try:
            entry.row = self._publish(package)
        except Malformed as error:  # the database refuses what the check let through
            self._refuse(entry, [f"{entry.name}: {error}"])
            return
        entry.published_at_ms = self._clock_ns() // 1_000_000
        key, generation = entry.row["package_key"], entry.row["generation"]
        new = entry.row["outcome"] == "published"
        words = f"published {key} generation {generation}"
        self._say(
            "published" if new else "active",
            f"{words if new else f'{key} generation {generation} is active'} ({entry.name})",
            file=entry.name,
            package=key,
            generation=generation,
        )
        if moved := entry.row.get("moved"):
            self._say("moved", moved, file=entry.name, package=key)


def publisher(store: Store) -> Publish:
    """Publishes in a store; the row has as `moved` what to tell when a folder moved."""

    def publish(package: Package) -> dict[str, Any]:
        row, moved = publish_package(store, package)
        return {**row, "moved": moved}

    return publish


def _what_stays(row: Row | None) -> str:
    return f"generation {row['generation']} stays active" if row else "what was active stays active"


def _is_ours(name: str) -> bool:
    return name.endswith(SUFFIXES) and not name.startswith((".", "#"))


def _sign_of(found: os.stat_result) -> Sign:
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev)


def _bytes_of(path: Path) -> tuple[bytes, Sign]:
    """The bytes of a regular file, and the sign they belong to. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # no pipe is waited for
    with os.fdopen(fd, "rb") as file:
        before = _sign_of(os.fstat(fd))
        raw = file.read(PACKAGE_BYTES + 1)
        if _sign_of(os.fstat(fd)) != before:
            return b"", ()
    return raw, before
