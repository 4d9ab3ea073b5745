"""What leaves a worker: attempts that it no longer holds, and execution folders (DESIGN §9)."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from qinglong_sql.apart import Apart, open_up, remove, there
from qinglong_sql.canonical import canonical
from qinglong_sql.execution import RecordBroken
from qinglong_sql.holding import FOLDER, Held, held_of_journal
from qinglong_sql.limits import WORKER_BATCH
from qinglong_sql.port import Port
from qinglong_sql.workplace import LEASE_LOST, End, keep_log

WAIT_MS = 5_000
LOOK_AGAIN_MS = 2_000
TRY_AGAIN_MS = 10 * 60 * 1000
LIVE = ("claimed", "starting", "running")


class Leftovers:
    """Takes attempts out of `held`, and removes folders as soon as no launcher writes there.

    After WAIT_MS they are removed in any case; one that cannot be is put aside, or tried again
    every TRY_AGAIN_MS. `clock` gives CLOCK_BOOTTIME in milliseconds. `on_end` is told of what has
    ended, right before its log is kept.
    """

    def __init__(
        self,
        state_dir: Path,
        held: dict[str, Held],
        clock: Callable[[], int],
        apart: Apart,
        on_end: Callable[[Held], object] | None = None,
    ) -> None:
        self._state_dir = state_dir
        self._held = held
        self._clock = clock
        self._apart = apart
        self._on_end = on_end
        self._stuck_ms: dict[Path, int] = {}  # when to try again
        self._until_ms: dict[Path, int] = {}
        self._look_at_ms = 0

    def __len__(self) -> int:
        return len(self._until_ms)

    def __contains__(self, folder: Path) -> bool:
        return folder in self._until_ms or folder in self._stuck_ms

    def within(self, state_dir: Path) -> bool:
        """Whether folders of this state folder are still to be removed."""
        return any(state_dir in folder.parents for folder in (*self._until_ms, *self._stuck_ms))

    def add(self, folder: Path, *, launcher: bool = True) -> None:
        """Remove this one with the next `clear`, or later if it may have a launcher that lives."""
        self._until_ms[folder] = self._clock() + WAIT_MS * launcher

    def clear(self) -> None:
        """Remove what can be removed now."""
        now_ms = self._clock()
        due = [
            folder
            for folder, until_ms in self._until_ms.items()
            if now_ms >= until_ms
            or not there(folder / "launcher.sock")
            or there(folder / "receipt.json")
        ]
        due += [folder for folder, again_ms in self._stuck_ms.items() if now_ms >= again_ms]
        for folder in due:
            self._until_ms.pop(folder, None)
            self._stuck_ms[folder] = now_ms + TRY_AGAIN_MS
            if remove(folder) or self._apart.put_aside(folder, "cannot be removed"):
                del self._stuck_ms[folder]

    def take_over(self, state_dir: Path | None = None) -> None:
        """Hold what was journaled in the folders of an earlier worker, of this state folder if it
        is not told another. Raises OSError.

        A folder without a journal was never started, since the journal comes before the start: it
        goes. A broken one is put aside for people to look at, and recovery decides by the fence.
        """
        at = (state_dir or self._state_dir) / "exec"
        open_up(at / "one")
        if there(at) and not at.is_dir():
            remove(at)
        at.mkdir(mode=0o700, exist_ok=True)
        self._apart.each(sorted(at.iterdir()), lambda folder: folder, self._take)

    def _take(self, folder: Path) -> None:
        try:
            held = held_of_journal(folder)
        except RecordBroken as error:
            self._apart.put_aside(folder, str(error))
            return
        if held:
            self._held[held.attempt_id] = held
        else:
            self.add(folder)

    def lose(self, held: Held) -> None:
        """The lease is no longer ours: what has not started never will, what runs is killed."""
        if held.phase == "live" and held.execution:
            held.lost = True
            held.execution.stop(LEASE_LOST, 0)
        elif held.survived:  # to be killed still
            held.lost = True
        elif held.start_unsure:  # it may have been committed before: then its receipt counts
            held.part()
            held.phase = "parted"
        else:
            self._dismiss(held)

    def finish(self, held: Held) -> None:
        """Its end is known to the database: keep the log, let the rest go."""
        if not (isinstance(held.end, End) and held.end.how == "not_started"):
            if self._on_end:
                self._on_end(held)
            keep_log(held.folder, self._state_dir, held.run_id, held.step_key, held.number)
        self._dismiss(held)

    def look_again(self, port: Port) -> None:
        """Ask the database, now and then, about attempts whose folders prove nothing.

        So too about those of which a receipt should have come long ago: it may never do.
        """
        now_ms = self._clock()
        if now_ms < self._look_at_ms:
            return
        asked = [held for held in self._held.values() if held.phase in ("unproven", "parted")]
        for held in asked:
            held.parted_ms = held.parted_ms or now_ms
        doubtful = [
            held for held in asked if held.phase == "unproven" or now_ms >= held.parted_ms + WAIT_MS
        ]
        rows = standings(port, doubtful)
        for held in doubtful:
            match standing(rows.get(held.attempt_id)):
                case "settled" if not held.survived:
                    self.finish(held)
                case "unstarted" if held.phase == "unproven":
                    held.phase, held.end = "ended", End("not_started")
        self._apart.each(asked, FOLDER, _see)
        if asked:
            self._look_at_ms = now_ms + LOOK_AGAIN_MS

    def _dismiss(self, held: Held) -> None:
        """Let a launcher go that waits, and remove its folder when it has gone."""
        launcher = held.execution is not None or held.lease is not None
        held.part()
        self.add(held.folder, launcher=launcher)
        self._held.pop(held.attempt_id, None)


def _see(held: Held) -> None:
    """The receipt of one that proved nothing may have come: a fork server writes late."""
    if held.phase == "unproven" and held.look() == "known":
        held.phase = "ended"


def standings(port: Port, asked: Sequence[Held]) -> dict[str, dict[str, Any]]:
    """What the database says of attempts, by their id: the rows of `attempt_standing`."""
    rows: list[dict[str, Any]] = []
    for at in range(0, len(asked), WORKER_BATCH):
        commands = canonical([held.command() for held in asked[at : at + WORKER_BATCH]])
        rows += port.call("attempt_standing", p_commands=commands)
    return {row["attempt_id"]: row for row in rows}


def standing(row: Mapping[str, Any] | None) -> Literal["settled", "unstarted", "open"]:
    """What such a row says of an attempt whose folder proves nothing.

    `unstarted`: its start was never acknowledged, so it never got its "go" and never will. One that
    the database does not know by this token is settled as well: nothing can be said of it there.
    """
    if row is None or row["outcome"] == "contended":
        return "open"
    if row["outcome"] == "blocked" or row["status"] not in LIVE:
        return "settled"
    return "unstarted" if row["status"] == "claimed" else "open"
