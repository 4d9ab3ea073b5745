"""Logs of a remote worker go to its ingress: while they grow, and what is left after the end.

A live log is looked at once a second. What an end leaves is kept beside the worker with the word
that gives the right to send it, and goes when the other side holds all of it; a worker that starts
again goes on there. Nothing here waits, speaks SQL, or raises for what a log is (DESIGN §9).

log/<run_id>/<step>.<number>.log        kept until it is shipped (`workplace.keep_log`)
log/<run_id>/<step>.<number>.ship       whose log that is: attempt, fence, token
"""

import heapq
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Protocol

from qinglong_sql.errors import Fenced, Malformed, Unknown
from qinglong_sql.linux import boottime_ms
from qinglong_sql.shipping_log import Author, Kept, Log, read_kept, write_kept

LOOK_MS = 1_000
# So much at once: leases are renewed by the same loop.
MESSAGES_A_TICK, TICK_MS = 8, 250
AGAIN_MS, AGAIN_MOST_MS, QUIET_MOST_MS = 1_000, 60_000, 8_000
REFUSALS = 8  # then a log is left where it is
UNTAKEN = 4  # so often in a row, and it is told that nothing of a log is taken
# What the other side does not take fills this disk up to here; then the oldest are given up.
KEPT_BYTES, KEPT_LOGS = 512 * 1024 * 1024, 16_384


class Live(Author, Protocol):
    """What runs, or ended a moment ago; a `Held` is one."""

    @property
    def folder(self) -> Path: ...
    @property
    def phase(self) -> str: ...


# Sends bytes of a log that begin at an offset, and with the last of them how many are not kept;
# the size that the other side holds now. Raises Unknown, Fenced or Malformed when the log is not
# wanted, and anything else when it is to be tried again.
Send = Callable[[Author, int, bytes, int | None], int]


class Shipping:
    """Ships what `tick` is shown, and what `keep` was told of, from one state folder.

    For the one process that owns the folder. `send` is as `Send`; `clock` gives CLOCK_BOOTTIME in
    milliseconds; `note` is told, once a log, of what is given up, and once that the other side
    takes no more, until it does.
    """

    def __init__(
        self,
        send: Send,
        state_dir: Path,
        *,
        clock: Callable[[], int] = boottime_ms,
        note: Callable[[str], object] | None = None,
        kept_bytes: int = KEPT_BYTES,
        kept_logs: int = KEPT_LOGS,
    ) -> None:
        self._send = send
        self._state_dir = state_dir.absolute()
        self._clock = clock
        self._note: Callable[[str], object] = note or logging.getLogger("qinglong_sql").warning
        self._most = (kept_bytes, kept_logs)
        self._logs: dict[str, Log] = {}  # by attempt, those that ended first at first
        self._line: list[tuple[int, int, Log]] = []
        self._counter = count()
        self._quiet_ms = self._failures = 0
        self._fresh: list[Log] = []  # kept, and not weighed yet
        self._bytes = 0
        self._loaded = self._untaken = False

    def keep(self, held: Author) -> None:
        """An execution ended and its end is reported: call it right before its log is kept.

        The right to send it is written beside that log; where the disk has no room for it, this
        process alone knows it. Never raises.
        """
        kept = Kept(held.attempt_id, held.run_id, held.step_key, held.number, held.fence,
                    held.token)  # fmt: skip
        path = kept.path(self._state_dir)
        with suppress(OSError):
            write_kept(kept, path)
        log = self._logs.pop(kept.attempt_id, None) or Log(kept, None)
        log.close()
        log.author, log.kept, log.folder = kept, path, None
        self._logs[kept.attempt_id] = log
        self._fresh.append(log)
        self._queue(log, self._clock())

    def tick(self, held: Iterable[Live]) -> int:
        """Send what is due of what is held and kept, a bounded number; how many were answered.

        Takes at most about TICK_MS, or as long as one message. Never raises for the other side.
        """
        self._load()
        now_ms = self._clock()
        self._look(held, now_ms)
        self._weigh()
        sent = 0
        while (due_ms := self.due_at_ms()) is not None and due_ms <= now_ms:
            if sent == MESSAGES_A_TICK or self._clock() - now_ms > TICK_MS:
                break
            sent += self._ship(heapq.heappop(self._line)[2])
        return sent

    def due_at_ms(self) -> int | None:
        """When `tick` has something to do by itself (CLOCK_BOOTTIME)."""
        while self._line:
            due_ms, _, log = self._line[0]
            if log.due_ms == due_ms and self._logs.get(log.author.attempt_id) is log:
                return max(due_ms, self._quiet_ms)
            heapq.heappop(self._line)  # it has another place by now, or none
        return None

    def waiting(self) -> int:
        """How many logs of what ended are not wholly shipped yet."""
        self._load()
        return sum(log.kept is not None for log in self._logs.values())

    def rest(self, within_ms: int) -> int:
        """At a worker's end: send what it can of what ended; how many logs still wait.

        Ends with the first that is not taken: what is left is sent by the next of this folder.
        """
        end_ms = self._clock() + within_ms
        while self.waiting() and self._clock() < end_ms and self.tick(()):
            pass
        return self.waiting()

    def close(self) -> None:
        """Leave. What is not shipped stays, and is found by the next of this folder."""
        for log in self._logs.values():
            log.close()
        self._logs.clear()
        self._line.clear()

    # --- what there is to ship

    def _load(self) -> None:
        """Find what an earlier process kept."""
        if self._loaded:
            return
        self._loaded = True
        for path in sorted((self._state_dir / "log").glob("*/*.ship")):
            kept = read_kept(path)
            if kept is None or kept.path(self._state_dir).with_suffix(".ship") != path:
                self._note(f"{path}: not one of ours, and its log is not shipped")
            elif kept.attempt_id not in self._logs:
                log = self._logs[kept.attempt_id] = Log(kept, None, path.with_suffix(".log"))
                self._fresh.append(log)
                self._queue(log, 0)

    def _look(self, held: Iterable[Live], now_ms: int) -> None:
        seen = set()
        for one in held:
            seen.add(one.attempt_id)
            log = self._logs.get(one.attempt_id)
            if log is not None and log.kept is not None:  # an earlier process did not come to it
                self._bytes -= self._logs.pop(one.attempt_id).size
                log = None
            if log is None and one.phase in ("live", "parted"):
                self._logs[one.attempt_id] = log = Log(one, one.folder)
                self._queue(log, now_ms)
        for key in [key for key, log in self._logs.items() if log.kept is None and key not in seen]:
            self._logs.pop(key).close()

    def _queue(self, log: Log, due_ms: int) -> None:
        log.due_ms = due_ms
        heapq.heappush(self._line, (due_ms, next(self._counter), log))

    # --- one message

    def _ship(self, log: Log) -> int:
        """Send the next of one log, if there is any; whether it was answered."""
        try:
            new = log.next()
            if new is None:
                self._queue(log, self._clock() + LOOK_MS)
                return 0
            chunk, dropped = new
            there = self._send(log.author, log.there, chunk, dropped)
            taken = there >= log.there + len(chunk)
            ended = dropped is not None and taken
            log.answered(chunk, there)
            self._say_untaken(log, bool(chunk) and taken)
        except (Unknown, Fenced, Malformed) as error:
            self._refused(log, f"is not wanted: {error}")
            return 0
        except Exception:  # whoever sends tells of a door that is away
            self._failed(log)
            return 0
        finally:
            if log.kept is not None:  # many may wait
                log.close()
        self._failures = 0
        if ended:
            self._forget(log, remove=True)
        elif log.failures:
            self._queue(log, self._clock() + _again_ms(log.failures, AGAIN_MOST_MS))
        else:
            self._queue(log, self._clock() + LOOK_MS * (log.kept is None))
        return 1

    def _say_untaken(self, log: Log, taken: bool) -> None:
        """Say it once that the other side does not take what it is sent: its disk may be full."""
        if taken:
            self._untaken = False
        elif log.failures >= UNTAKEN and not log.told and not self._untaken:
            log.told = self._untaken = True
            one = log.author
            self._note(
                f"the ingress takes no more of run {one.run_id}: {one.step_key} #{one.number}, it"
                f" holds {log.there} bytes; its own log says why, and what is left waits here"
            )

    def _refused(self, log: Log, words: str) -> None:
        """The other side may be of another release, for a while."""
        log.failures += 1
        if log.kept is not None and (log.given_up or log.failures >= REFUSALS):
            self._forget(log, f"{words}; it stays here")
        else:
            self._queue(log, self._clock() + _again_ms(log.failures, AGAIN_MOST_MS))

    def _failed(self, log: Log) -> None:
        if log.given_up:
            self._forget(log, remove=True)
            return
        log.failures += 1
        self._failures += 1
        now_ms = self._clock()
        self._quiet_ms = now_ms + _again_ms(self._failures, QUIET_MOST_MS)
        self._queue(log, now_ms + _again_ms(log.failures, AGAIN_MOST_MS))

    # --- the end of it

    def _weigh(self) -> None:
        """Give the oldest up that this disk holds too much of: they are told as dropped, and go."""
        for log in self._fresh:
            if log.kept is not None and self._logs.get(log.author.attempt_id) is log:
                with suppress(OSError):
                    log.size = log.kept.lstat().st_size
                self._bytes += log.size
        self._fresh.clear()
        most_bytes, most_logs = self._most
        if self._bytes <= most_bytes and len(self._logs) <= most_logs:
            return
        left, logs = self._bytes, len(self._logs)
        for log in list(self._logs.values()):
            if left <= most_bytes and logs <= most_logs:
                return
            if log.kept is not None:
                left, logs = left - log.size, logs - 1
                if not log.given_up:
                    log.given_up = True
                    self._note(f"{log.kept}: given up, too much waits to be shipped")
                    self._queue(log, self._clock())

    def _forget(self, log: Log, words: str = "", *, remove: bool = False) -> None:
        """This log is shipped no more; `remove` takes our copy of it away as well."""
        kept = log.kept
        if kept is None:
            return
        if words:
            self._note(f"{kept}: {words}")
        self._logs.pop(log.author.attempt_id, None)
        self._bytes -= log.size
        for suffix in (".log", ".dropped", ".ship") if remove else (".ship",):
            with suppress(OSError):
                kept.with_suffix(suffix).unlink(missing_ok=True)
        with suppress(OSError):
            kept.parent.rmdir()


def _again_ms(failures: int, most_ms: int) -> int:
    return min(most_ms, AGAIN_MS << min(failures - 1, 10))
