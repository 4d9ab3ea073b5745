"""What leaves a worker: attempts that it no longer holds, and execution folders (DESIGN §9)."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from qinglong_sql.execution import RecordBroken
from qinglong_sql.holding import Held, held_of_journal
from qinglong_sql.store import Store
from qinglong_sql.workplace import LEASE_LOST, End, keep_log, remove

WAIT_MS = 5_000
LOOK_AGAIN_MS = 2_000


class Leftovers:
    """Takes attempts out of `held`, and removes folders as soon as no launcher writes there.

    After WAIT_MS they are removed in any case. `clock` gives CLOCK_BOOTTIME in milliseconds.
    """

    def __init__(self, state_dir: Path, held: dict[str, Held], clock: Callable[[], int]) -> None:
        self._state_dir = state_dir
        self._held = held
        self._clock = clock
        self._until_ms: dict[Path, int] = {}
        self._look_at_ms = 0

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

    def take_over(self) -> None:
        """Hold what was journaled in the folders of an earlier worker. Raises OSError.

        A folder without a journal was never started, since the journal comes before the start: it
        goes. A broken journal stays for people to look at, and recovery decides by the fence.
        """
        at = self._state_dir / "exec"
        at.mkdir(mode=0o700, exist_ok=True)
        for folder in sorted(at.iterdir()):
            try:
                held = held_of_journal(folder)
            except RecordBroken:
                continue
            if held:
                self._held[held.attempt_id] = held
            else:
                self.add(folder)

    def lose(self, held: Held) -> None:
        """The lease is no longer ours: what has not started never will, what runs is killed."""
        if held.phase == "live" and held.execution:
            held.lost = True
            held.execution.stop(LEASE_LOST, 0)
        elif held.start_unsure:  # it may have been committed before: then its receipt counts
            held.part()
            held.phase = "parted"
        else:
            self._dismiss(held)

    def finish(self, held: Held) -> None:
        """Its end is known to the database: keep the log, let the rest go."""
        if not (isinstance(held.end, End) and held.end.how == "not_started"):
            keep_log(held.folder, self._state_dir, held.run_id, held.step_key, held.number)
        self._dismiss(held)

    def look_again(self, store: Store) -> None:
        """Ask the database, now and then, about attempts whose folders prove nothing."""
        now_ms = self._clock()
        unproven = [held for held in self._held.values() if held.phase == "unproven"]
        if not unproven or now_ms < self._look_at_ms:
            return
        for held in unproven:
            match standing(store, held):
                case "settled":
                    self.finish(held)
                case "unstarted":
                    held.phase, held.end = "ended", End("not_started")
        self._look_at_ms = now_ms + LOOK_AGAIN_MS

    def _dismiss(self, held: Held) -> None:
        """Let a launcher go that waits, and remove its folder when it has gone."""
        launcher = held.execution is not None or held.lease is not None
        held.part()
        self.add(held.folder, launcher=launcher)
        self._held.pop(held.attempt_id, None)


def standing(store: Store, held: Held) -> Literal["settled", "unstarted", "open"]:
    """What the database says of an attempt whose folder proves nothing.

    `unstarted`: its start was never acknowledged, so it never got its "go" and never will.
    """
    rows = store.read("attempt_state", attempt_id=held.attempt_id)
    if all(row["finished_at_ms"] is not None for row in rows):
        return "settled"
    return "unstarted" if all(row["status"] == "claimed" for row in rows) else "open"
