"""What an execution left running when nobody guards it any more is found and killed (DESIGN §9).

A launcher proves its tree empty, and the fork server does when the launcher died. When both were
killed together, or are stopped, what they started is looked for by the worker that is here: by
QL_INPUT and QL_OUTPUT in the environment, which name the folder of one execution and no other; by
descent from what was found and from a launcher that is stopped; by the session of what was found.
So nothing is declared lost here by the clock alone, as long as it can be seen.

That proves no absence, and nothing is attested by it. It does not see what left environment, parent
and session all behind (`env -i setsid`, after the launcher was killed), what another daemon started
for the command, what runs on another machine, in a state folder that is not ours to read, or what
hangs in the kernel.
"""

import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from qinglong_sql.evidence import Guard, RecordBroken, guard
from qinglong_sql.holding import Held, held_of_journal
from qinglong_sql.leftover import standings
from qinglong_sql.linux import boottime_ms, read_small, start_ticks
from qinglong_sql.port import Port

# How long before a lease ends a launcher that is stopped is seen to: its margin.
EARLY_MS = 1_000
LOOK_MS = 1_000
LOOK_MAX_MS = 60_000
# How long recovery waits for what was killed and does not go.
HOLD_MS = 60_000
SWEEP_S = 0.5
PAUSE_S = 0.01

SIBLING = re.compile(r"\d+|edge", re.ASCII)
OFFER = re.compile(r"of[0-9a-f]{24}", re.ASCII)
MARK = re.compile(rb"(?:^|\0)QL_(?:IN|OUT)PUT=[^\0]*/(of[0-9a-f]{24})/(?:in|out)put\.json(?![^\0])")


@dataclass(frozen=True, slots=True)
class Process:
    """One process that is no zombie."""

    pid: int
    parent: int
    session: int
    ticks: int


def sweep(executions: Mapping[str, Guard], within_s: float = SWEEP_S) -> dict[str, list[Process]]:
    """KILL what is left of executions, by offer id, until nothing is; what does not go in time.

    A launcher that is stopped is left alone: it finds its tree empty, should it go on.
    """
    clean, end_s = 0, time.monotonic() + within_s
    while clean < 2:  # what forks while /proc is read can be missed once
        found = remains(executions)
        clean = 0 if found else clean + 1
        for one in {one for tree in found.values() for one in tree}:
            if start_ticks(one.pid) == one.ticks:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(one.pid, signal.SIGKILL)
        if found and time.monotonic() >= end_s:
            return found
        if found:
            time.sleep(PAUSE_S)
    return {}


def remains(executions: Mapping[str, Guard]) -> dict[str, list[Process]]:
    """The living processes of these executions, ourselves left out; of those that have any."""
    processes = {one.pid: one for one in _processes()}
    marked: dict[str, set[int]] = {name: set() for name in executions}
    for pid in processes:
        for name in _marks(pid) & marked.keys():
            marked[name].add(pid)
    found = {}
    for name, told in executions.items():
        session = told.session and _session(told.session, processes)
        tree = _grown(marked[name], told.launcher_pid, session, processes) - {os.getpid()}
        if tree:
            found[name] = [processes[pid] for pid in sorted(tree)]
    return found


def _session(told: tuple[int, int], processes: Mapping[int, Process]) -> int | None:
    """The session of the command, unless its number is another's by now."""
    pid, ticks = told
    return pid if pid not in processes or processes[pid].ticks == ticks else None


def _grown(
    tree: set[int], launcher: int | None, session: int | None, processes: Mapping[int, Process]
) -> set[int]:
    """With all descendants, and with the sessions whose leader is of it or dead."""
    others = {0, 1} | {processes[pid].session for pid in {launcher} & processes.keys() if pid}
    while True:
        sessions = {session} | {
            own
            for own in (processes[pid].session for pid in tree)
            if own in tree or own not in processes
        }
        parents = tree | {launcher}
        more = {
            pid
            for pid, one in processes.items()
            if pid != launcher and (one.parent in parents or one.session in sessions - others)
        }
        if more <= tree:
            return tree
        tree = tree | more


def _processes() -> Iterator[Process]:
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):
            stat = read_small(f"/proc/{entry.name}/stat")
            fields = stat[stat.rindex(b")") + 2 :].split()
            if fields[0] not in (b"Z", b"X", b"x"):
                yield Process(int(entry.name), int(fields[1]), int(fields[3]), int(fields[19]))


def _marks(pid: int) -> set[str]:
    with suppress(OSError):
        return {name.decode() for name in MARK.findall(read_small(f"/proc/{pid}/environ"))}
    return set()


class Orphans:
    """Looks after the executions of this machine's workers of one database, and of `held`.

    `note` is told of what cannot be killed; a warning is logged if there is none. What is behind a
    port that is no store is far away, and its clock says nothing here.
    """

    def __init__(
        self,
        port: Port,
        state_dir: Path,
        held: Mapping[str, Held],
        note: Callable[[str], object] | None,
    ) -> None:
        self._port = port
        self._far = not hasattr(port, "read")
        self._state_dir = state_dir
        self._held = held
        self._note = note or logging.getLogger("qinglong_sql").warning
        self._list_at_ms = 0
        self._others: list[Path] = []
        self._look_at_ms: dict[Path, int] = {}
        self._pause_ms: dict[Path, int] = {}
        self._left_ms: dict[Path, int] = {}  # since when something of it does not go

    def look(self) -> bool:
        """KILL what nobody guards; whether recovery has to wait for something of it to go.

        To be called right before recovery. Raises what the store raises.
        """
        now_ms = boottime_ms()
        wanted: dict[Path, Guard] = {}
        for folder in self._due(now_ms):
            with suppress(OSError, RecordBroken):
                found = guard(folder)
                if found.state == "gone" or (found.state == "stopped" and self._over(folder)):
                    wanted[folder] = found
        left = sweep({folder.name: found for folder, found in wanted.items()}) if wanted else {}
        for folder in wanted:
            if folder.name in left:
                if folder not in self._left_ms:
                    pids = " ".join(str(one.pid) for one in left[folder.name][:9])
                    self._note(f"{folder}: no launcher is left and KILL does not end: {pids}")
                self._left_ms.setdefault(folder, now_ms)
            else:
                self._left_ms.pop(folder, None)
                self._pause_ms[folder] = min(2 * self._pause_ms.get(folder, LOOK_MS), LOOK_MAX_MS)
                self._look_at_ms[folder] = now_ms + self._pause_ms[folder]
        for held in self._held.values():
            held.survived = held.folder in self._left_ms
        return any(now_ms < since_ms + HOLD_MS for since_ms in self._left_ms.values())

    def _due(self, now_ms: int) -> list[Path]:
        """The folders to look at now; what was found empty is looked at more and more rarely."""
        if now_ms >= self._list_at_ms:
            self._list_at_ms = now_ms + LOOK_MS
            self._others = list(self._listed())
            known = {held.folder for held in self._held.values()} | set(self._others)
            for at in (self._look_at_ms, self._pause_ms, self._left_ms):
                for folder in at.keys() - known:
                    del at[folder]
        mine = [held.folder for held in self._held.values() if self._doubtful(held)]
        folders = dict.fromkeys([*mine, *self._others])
        due = [folder for folder in folders if now_ms >= self._look_at_ms.get(folder, 0)]
        self._look_at_ms.update(dict.fromkeys(due, now_ms + LOOK_MS))
        return due

    def _listed(self) -> Iterator[Path]:
        """The executions of other workers of this machine, whether they live or not."""
        with suppress(OSError):
            for sibling in self._state_dir.parent.iterdir():
                if sibling == self._state_dir or not SIBLING.fullmatch(sibling.name):
                    continue
                with suppress(OSError):
                    yield from (
                        one for one in (sibling / "exec").iterdir() if OFFER.fullmatch(one.name)
                    )

    def _over(self, folder: Path) -> bool:
        """Whether its lease is about to end, or is not its any more, by what the database says."""
        journaled = held_of_journal(folder)
        if journaled is None:
            return False
        row = standings(self._port, [journaled]).get(journaled.attempt_id)
        if row is None or row["outcome"] != "applied":
            return False
        mine = self._held.get(journaled.attempt_id)
        return row["lease_status"] != "leased" or self._ends_soon(
            row["expires_at_ms"], mine.lease_end_ms if mine else 0
        )

    def _doubtful(self, held: Held) -> bool:
        if held.phase in ("parted", "unproven"):
            return True
        return held.phase == "live" and self._ends_soon(held.expires_at_ms, held.lease_end_ms)

    def _ends_soon(self, expires_at_ms: int, lease_end_ms: int) -> bool:
        """Of a lease's end by the database's clock, and by ours; 0 is not known."""
        if self._far:
            return 0 < lease_end_ms <= boottime_ms() + EARLY_MS
        return 0 < expires_at_ms <= _wall_ms() + EARLY_MS


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
