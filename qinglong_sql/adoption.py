"""Executions that a worker of another state folder left: taken over where they are (DESIGN §9).

A killed `run` leaves a folder of its own. Its lock is held for as long as something of it is here,
so that no other worker takes the same executions over.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from qinglong_sql.holding import Held
from qinglong_sql.leftover import Leftovers
from qinglong_sql.workplace import take_lock


class Adoption:
    """The state folders of others whose executions are among `held`."""

    def __init__(self, held: Mapping[str, Held], leftovers: Leftovers) -> None:
        self._held = held
        self._leftovers = leftovers
        self._locks: dict[Path, int] = {}

    def look(self, folders: Iterable[Path]) -> None:
        """Take over what is in folders that nobody works in; let go of those that are empty.

        Raises OSError for a folder that cannot be read, when the others are done.
        """
        for folder in [one for one in self._locks if not self._busy(one)]:
            os.close(self._locks.pop(folder))
        errors = []
        for folder in folders:
            if folder in self._locks or not _has_executions(folder):
                continue
            try:
                self._take(folder)
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Leave the folders to others. May be repeated."""
        while self._locks:
            os.close(self._locks.popitem()[1])

    def _take(self, folder: Path) -> None:
        lock = take_lock(folder)
        if lock is None:  # its worker lives
            return
        self._locks[folder] = lock
        self._leftovers.take_over(folder)

    def _busy(self, folder: Path) -> bool:
        mine = any(folder in held.folder.parents for held in self._held.values())
        return mine or self._leftovers.within(folder)


def _has_executions(folder: Path) -> bool:
    with suppress(OSError):
        return next((folder / "exec").iterdir(), None) is not None
    return False
