"""Execution folders that nobody holds: what an earlier worker left, and what is to be removed."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from qinglong_sql.execution import RecordBroken
from qinglong_sql.holding import Held, held_of_journal
from qinglong_sql.store import Store
from qinglong_sql.workplace import remove

WAIT_MS = 5_000


class Leftovers:
    """Folders to remove as soon as no launcher writes there, after WAIT_MS in any case.

    `clock` gives CLOCK_BOOTTIME in milliseconds.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._until_ms: dict[Path, int] = {}

    def __len__(self) -> int:
        return len(self._until_ms)

    def __contains__(self, folder: Path) -> bool:
        return folder in self._until_ms

    def add(self, folder: Path, *, launcher: bool = True) -> None:
        """Remove this one with the next `clear`, or later if it may have a launcher that lives."""
        self._until_ms[folder] = self._clock() + WAIT_MS * launcher

    def clear(self) -> None:
        """Remove what can be removed now."""
        now_ms = self._clock()
        for folder, until_ms in list(self._until_ms.items()):
            writes = (folder / "launcher.sock").exists() and not (folder / "receipt.json").exists()
            if not writes or now_ms >= until_ms:
                remove(folder)
                del self._until_ms[folder]

    def take_over(self, state_dir: Path) -> list[Held]:
        """What was journaled in the folders of an earlier worker. Raises OSError.

        A folder without a journal was never started, since the journal comes before the start: it
        goes. A broken journal stays for people to look at, and recovery decides by the fence.
        """
        at = state_dir / "exec"
        at.mkdir(mode=0o700, exist_ok=True)
        found = []
        for folder in sorted(at.iterdir()):
            try:
                held = held_of_journal(folder)
            except RecordBroken:
                continue
            if held:
                found.append(held)
            else:
                self.add(folder)
        return found


def standing(store: Store, held: Held) -> Literal["settled", "unstarted", "open"]:
    """What the database says of an attempt whose folder proves nothing.

    `unstarted`: its start was never acknowledged, so it never got its "go" and never will.
    """
    rows = store.read("attempt_state", attempt_id=held.attempt_id)
    if all(row["finished_at_ms"] is not None for row in rows):
        return "settled"
    return "unstarted" if all(row["status"] == "claimed" for row in rows) else "open"
