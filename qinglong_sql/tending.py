"""The loop of a worker process: renew and report, lease and start, ship logs, wait (DESIGN §7, §9).

It never gives up on a door that is away: that is told once, and so is its end. What runs meanwhile
goes on until its lease ends, and is told of afterwards. What an earlier process of this folder left
is taken over at the start.
"""

import math
import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, Protocol

from qinglong_sql.cadence import next_delay
from qinglong_sql.control_log import Log
from qinglong_sql.duration import write_duration
from qinglong_sql.errors import Fenced
from qinglong_sql.execution import boottime_ms
from qinglong_sql.lease_ends import LeaseEnds
from qinglong_sql.limits import IDLE_CLUSTER_MS, LOCAL_PAUSE_MS
from qinglong_sql.port import Away, Shut
from qinglong_sql.shipping import Shipping
from qinglong_sql.store import Contended
from qinglong_sql.watched import Watched
from qinglong_sql.worker import Worker

HEARTBEAT_MS = 10_000
SWEEP_MS = 1_000
AWAY_IDLE_MS = 1_000  # how often a door that is away is asked, unless something is due
AWAY_LEAST_MS = 200  # and then
DRAIN_IDLE_MS = 100
KILL_WITHIN_MS = 5_000
SHIP_WITHIN_MS = 5_000
CLEAR_WITHIN_MS = 1_000

Ending = Literal["stopped", "replaced", "killed"]


class Taken(Exception):
    """Another process is the worker of this state folder."""


class Chore(Protocol):
    """Something that is looked at now and then."""

    def look(self) -> object:
        """Do what is due."""


class Tending:
    """Tends one worker until it is interrupted or replaced. `interrupts` says how often it was.

    `words` are those of an error. Times are CLOCK_BOOTTIME milliseconds.
    """

    def __init__(
        self,
        worker: Worker,
        port: Watched,
        log: Log,
        words: Callable[[BaseException], str],
        *,
        name: str,
        drain_ms: int,
        shipping: Shipping | None = None,
        chore: Chore | None = None,
        clock: Callable[[], int] = boottime_ms,
    ) -> None:
        self.interrupts: Callable[[], int] = lambda: 0
        self._worker, self._port, self._log, self._words = worker, port, log, words
        self._name = name
        self._drain_ms = drain_ms
        self._shipping, self._chore = shipping, chore
        self._clock = clock
        self._ends = LeaseEnds(log)
        self._standing = ""  # not heard yet
        self._stopping = False
        self._beat_at_ms = self._sweep_at_ms = 0
        self._delay_ms = 0.0
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> Ending:
        """Work until the end, and drain.

        Raises Taken, ValueError for the folder of another worker, and what the first heartbeat
        raises when waiting would not help. Close it afterwards.
        """
        if not self._worker.own():
            raise Taken(f"another process is the worker of {self._worker.state_dir}")
        if taken := len(self._worker.held):
            self._log.say("info", "found", f"found {_executions(taken)} of an earlier process")
        while not self.interrupts():
            moved = self._tick()
            if self._standing == "replaced" and not self._worker.busy():
                break
            self._wait(moved, AWAY_IDLE_MS if self._port.away else IDLE_CLUSTER_MS)
        if self.interrupts():
            return self._drain()
        self._rest()
        self._log.say("error", "end", f"stopped: another process is worker {self._name} now")
        return "replaced"

    def wake(self) -> None:
        """End the wait; from any thread or signal."""
        with suppress(OSError):  # full is awake
            os.write(self._wake_write, b".")

    def leave(self) -> None:
        """Kill what runs, on a thread of its own: something hangs."""
        self._worker.stop("shutdown", grace_ms=0)
        self._log.say("warning", "killed", "killed what ran, left")

    def close(self) -> None:
        """End the session and leave; what still runs keeps its lease. May be repeated."""
        try:
            self._trying(self._worker.close)
        finally:
            if self._shipping:
                self._shipping.close()
            self._port.close()
            for fd in (self._wake_read, self._wake_write):
                with suppress(OSError):
                    os.close(fd)
            self._wake_read = self._wake_write = -1

    # --- one tick

    def _tick(self) -> bool:
        """What is due, what keeps executions alive first; whether something moved.

        It ends with the first answer that does not come: what is due next must not wait for more.
        """
        leases = not self._stopping and self._standing in ("", "online")
        if not leases:
            self._worker.hand_back()
        lost = self._port.lost
        moved, well = 0, True
        try:
            moved += self._worker.settle()
        except Exception as error:
            well = self._failed(error)
        self._ends.look(self._worker.held.values())
        if self._port.lost == lost:
            self._beat()
        if self._standing and self._port.lost == lost:
            try:
                moved += self._worker.dispatch(lease=leases and self._standing == "online")
            except Fenced:  # drained, replaced or forgotten: a heartbeat tells which
                self._beat_at_ms = 0
                self._beat()
            except Exception as error:
                well = self._failed(error)
        if self._port.lost == lost:
            self._aside()
        if well and not self._port.away and not self._worker.backs_off():
            self._log.well("worker")
        return moved > 0

    def _beat(self) -> None:
        """A heartbeat, when it is due."""
        now_ms = self._clock()
        if now_ms < self._beat_at_ms:
            return
        try:
            standing = self._worker.heartbeat()
        except Away:
            return
        except Contended as error:
            self._failed(error)
            return
        except Exception as error:
            if not self._standing:  # nothing that waiting would help
                raise
            self._beat_at_ms = now_ms + HEARTBEAT_MS // 10
            self._failed(error)
            return
        self._beat_at_ms = now_ms + HEARTBEAT_MS
        if standing != self._standing:
            before, self._standing = self._standing, standing
            self._told(before)

    def _told(self, before: str) -> None:
        """Say that the standing has changed."""
        runs = _executions(self._worker.busy())
        match self._standing:
            case "online" if before:
                self._log.say("info", "undrained", "leases again: no operator drains it any more")
            case "online":
                self._log.say("info", "ready", "ready: leases what waits")
            case "draining":
                words = f"drained by an operator: leases nothing, {runs} to end or to hand back"
                self._log.say("info", "drained", words)
            case "replaced":
                words = f"another process has registered as worker {self._name}: leases nothing"
                self._log.say("error", "replaced", f"{words}, {runs} to end or to hand back")

    def _aside(self) -> None:
        """Logs, what nobody guards any more, and the certificate; no renewal waits for them."""
        if self._shipping:
            shipping = self._shipping
            self._trying(lambda: shipping.tick(list(self._worker.held.values())))
        now_ms = self._clock()
        if now_ms >= self._sweep_at_ms:
            self._sweep_at_ms = now_ms + SWEEP_MS
            if self._worker.held:
                self._trying(self._worker.owes)
            if self._chore:
                self._trying(self._chore.look)

    def _wait(self, moved: bool, idle_ms: float) -> None:
        """Until an execution, an interrupt, or what is due by itself."""
        self._delay_ms = next_delay(self._delay_ms, applied=moved, idle_ms=idle_ms)
        start, now_ms = time.monotonic(), self._clock()
        dues = [self._worker.due_at_ms(), self._shipping.due_at_ms() if self._shipping else None]
        left_ms = min([self._delay_ms, *(due - now_ms for due in dues if due is not None)])
        if self._port.away:
            left_ms = max(left_ms, AWAY_LEAST_MS)
        poll = select.poll()
        for fd in (*self._worker.filenos(), self._wake_read):
            poll.register(fd, select.POLLIN)
        ready = dict(poll.poll(max(0.0, left_ms)))
        pause_s = LOCAL_PAUSE_MS / 1000 - (time.monotonic() - start)
        if pause_s > 0:
            time.sleep(pause_s)
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)

    # --- leaving

    def _drain(self) -> Ending:
        """Give what runs its time to end; what goes on after that keeps a full lease."""
        self._stopping = True
        worker = self._worker
        worker.hand_back()
        if worker.busy():
            words = f"stopping: {_executions(worker.busy())} may take"
            words += f" {write_duration(self._drain_ms) if self._drain_ms else '0s'} to end"
            self._log.say("info", "draining", f"{words} (again: kill now)")
        self._until_over(self._drain_ms, lambda: not worker.busy(), 1)
        if self.interrupts() > 1:
            self._log.say("warning", "killed", f"killing {_executions(worker.busy())}")
            worker.stop("shutdown", grace_ms=0)
            self._until_over(KILL_WITHIN_MS, lambda: not worker.busy())
            self._rest()
            return "killed"
        if worker.busy() and not self._port.away:
            worker.renew_soon()
            self._trying(worker.settle)
        self._rest()
        if worker.busy():
            words = f"stopped; {_executions(worker.busy())} may go on for"
            words += f" {write_duration(worker.lease_ms)}, and longer if a process of this folder"
            self._log.say("warning", "left", f"{words} is back by then and takes over")
        else:
            self._log.say("info", "end", "stopped")
        return "stopped"

    def _until_over(
        self, within_ms: int, over: Callable[[], bool], interrupts: float = math.inf
    ) -> None:
        """Tick until it is over, or the time is, or there are more interrupts than that."""
        end_ms = self._clock() + within_ms
        while True:
            moved = self._tick()
            if over() or self._clock() >= end_ms or self.interrupts() > interrupts:
                return
            self._wait(moved, DRAIN_IDLE_MS)

    def _rest(self) -> None:
        """Remove folders that launchers are about to leave, and ship what is left of logs."""
        if not self._worker.busy():
            self._until_over(CLEAR_WITHIN_MS, lambda: self._worker.due_at_ms() is None)
        if self._shipping and not self._port.away:
            left = self._shipping.rest(SHIP_WITHIN_MS)
            if left:
                words = f"{left} log{'s' * (left != 1)} not shipped yet: the next process does it"
                self._log.say("warning", "logs", words)

    def _trying(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> bool:
        if not isinstance(error, Away | Shut):  # that is told by who watches the door
            self._log.trouble("worker", self._words(error))
        return False


def _executions(count: int) -> str:
    return f"{count} execution{'s' * (count != 1)}"
