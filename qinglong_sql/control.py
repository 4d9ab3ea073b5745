"""The control process of a cluster: boot, two lifecycles, health, stop (DESIGN §7, DOMAIN §7).

Any number of them work on one PostgreSQL, without a leader and with nothing of their own to lose.
They decide what is due; they execute nothing, which is the workers' part.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from qinglong_sql.cadence import Lifecycle
from qinglong_sql.clock_watch import ClockWatch
from qinglong_sql.control_boot import BootFailed, Done, Interrupted, Step, boot, recover
from qinglong_sql.control_cycle import Coordinator, Meter, Rounds, Words
from qinglong_sql.control_log import Log
from qinglong_sql.control_stop import Ending, Owner, stop_all
from qinglong_sql.fence import READ_ONLY, Fence
from qinglong_sql.scheduler import CLUSTER, cancellation_cycle, scheduler_cycle
from qinglong_sql.settings import ControlSettings

SCHEDULER: Final = "scheduler"
CANCELLATION: Final = "cancellation"


class Listener(Protocol):
    """What answers for this process; qinglong_sql.health.Health is one."""

    @property
    def port(self) -> int:
        """The port that it got."""

    def start(self) -> object:
        """Answer from now on. Raises OSError."""

    def stop(self, within_s: float) -> bool:
        """Answer no more; whether that came in time."""


class Application(Protocol):
    """What serves others beside the lifecycles, such as the workers' door."""

    name: str

    def start(self) -> str:
        """Serve from now on; in words where."""

    def stop(self, within_s: float) -> bool:
        """Serve no more; whether that came in time."""


class Opened(Protocol):
    """An open pool."""

    def close(self, timeout: float) -> object:
        """Close every connection that nobody uses."""

    def get_stats(self) -> dict[str, int]:
        """How it is used."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a control process is put together from. Making one starts nothing."""

    listener: Callable[[Callable[[], str | None], Callable[[], bytes]], Listener]
    pool: Callable[[], Opened]
    readiness: Callable[[Any], str]
    store: Callable[[Any], Any]
    meter: Meter
    watch: Callable[[Any], ClockWatch | None] = lambda store: None
    applications: Sequence[Application] = ()
    lifecycle: Callable[..., Lifecycle] = Lifecycle


class Control:
    """One control process. `run` it once; `ask` and `stop` from any thread."""

    def __init__(self, settings: ControlSettings, parts: Parts, log: Log, words: Words) -> None:
        self.fence = Fence(self._tripped)
        self._settings, self._parts, self._log, self._words = settings, parts, log, words
        self._asked = threading.Event()
        self._began: list[Owner] = []
        self._rounds: list[Rounds] = []
        self._pool: Any = None
        self._store: Any = None
        self._sampling = threading.Lock()
        self._stopping = threading.Lock()
        self._ended: threading.Event | None = None
        self._ending = Ending("", ())

    def run(self) -> Ending:
        """Boot, work until asked to stop or the database is gone, stop.

        Raises BootFailed when it did not get so far; what had begun was stopped.
        """
        try:
            boot(self._steps(), self._began, self.fence, self._log, self._asked)
        except Interrupted:
            self._log.say("info", "stop", "asked to stop while starting")
        except BootFailed as error:
            self.fence.withdraw(f"{error.step} failed")
            self.stop()
            raise
        if self.fence.ready():
            self._log.say("info", "ready", "ready")
        self._asked.wait()
        return self.stop()

    def ask(self, reason: str) -> None:
        """Be not ready from now on, and stop soon. May be repeated; never waits."""
        if self.fence.withdraw(reason):
            self._log.say("info", "stop", reason)
        self._asked.set()

    def stop(self) -> Ending:
        """Stop all that began, in reverse. Who comes second waits for the first one's end."""
        with self._stopping:
            first = self._ended is None
            ended = self._ended = self._ended or threading.Event()
        if not first:
            ended.wait()
            return self._ending
        try:
            self.fence.withdraw("stopping")
            self._asked.set()
            late = stop_all(self._began, self._log, self._words)
            self._ending = Ending(self.fence.tripped, tuple(late))
        finally:
            self.fence.stopped()
            ended.set()
        return self._ending

    def refusal(self) -> str | None:
        """Why this process is not ready, for people; None when it is."""
        idle_s = self._settings.idle_ms / 1000
        told = [self.fence.refusal(), *(one.stalled(idle_s) for one in self._rounds)]
        return next((words for words in told if words is not None), None)

    def text(self) -> bytes:
        """What /metrics answers; what is due is looked at now, by one asker at a time."""
        meter, store, pool = self._parts.meter, self._store, self._pool
        if store is not None and not self.fence.shut and self._sampling.acquire(blocking=False):
            try:
                meter.pool(pool.get_stats())
                failure = meter.sample(store)
            finally:
                self._sampling.release()
            if failure:  # the lifecycles find out what it means
                self._log.trouble("metrics", self._words(failure))
                if getattr(failure, "sqlstate", None) == READ_ONLY:  # once: the store has left it
                    self.fence.trip(f"metrics: {self._words(failure)}")
            else:
                self._log.well("metrics")
        meter.ready(self.refusal())
        return meter.text()

    def _tripped(self, reason: str) -> None:
        words = f"the database is gone, stopping for the supervisor: {reason}"
        self._log.say("error", "fence", words)
        self._asked.set()

    # --- the boot

    def _steps(self) -> list[Step]:
        setting = self._settings
        boot_s, recovery_s = setting.boot_timeout / 1000, setting.recovery_timeout / 1000

        def step(name: str, work: Callable[[], Done]) -> Step:
            return Step(name, boot_s, "boot_timeout", work)

        return [
            step("listener", self._listen),
            step("pool", self._open_pool),
            step("readiness", lambda: Done(self._parts.readiness(self._pool))),
            Step("recovery", recovery_s, "recovery_timeout", self._recover),
            *(step(one.name, lambda one=one: self._apply(one))  # type: ignore[misc]
              for one in self._parts.applications),
            step(SCHEDULER, lambda: self._begin(SCHEDULER, scheduler_cycle)),
            step(CANCELLATION, lambda: self._begin(CANCELLATION, cancellation_cycle)),
        ]  # fmt: skip

    def _listen(self) -> Done:
        listener = self._parts.listener(self.refusal, self.text)
        listener.start()
        host = self._settings.listen[0]
        return Done(f"on {host} port {listener.port}", self._owner("listener", listener.stop))

    def _open_pool(self) -> Done:
        pool = self._parts.pool()

        def close(within_s: float) -> bool:
            if self._store is not None:
                self._store.close()
            pool.close(timeout=within_s)
            return True

        self._pool = pool
        return Done(f"{self._settings.pool_size} connections", self._owner("pool", close))

    def _recover(self) -> Done:
        store = self._parts.store(self._pool)
        words = recover(store, CLUSTER, self._asked)
        self._store = store
        return Done(words)

    def _apply(self, application: Application) -> Done:
        return Done(application.start(), self._owner(application.name, application.stop))

    def _begin(self, name: str, coordinator: Coordinator) -> Done:
        setting = self._settings
        rounds = Rounds(
            name,
            coordinator,
            self._store,
            replace(CLUSTER, grace_ms=setting.grace_ms),
            self.fence,
            self._log,
            self._parts.meter,
            self._words,
            watch=self._parts.watch(self._store) if name == SCHEDULER else None,
        )
        self._rounds.append(rounds)
        lifecycle = self._parts.lifecycle(
            rounds, name=name, idle_ms=setting.idle_ms, on_error=rounds.failed
        )
        lifecycle.start()
        owner = Owner(name, setting.drain_timeout / 1000, lifecycle.stop)
        return Done(f"looks every {setting.idle_ms} ms when idle", owner)

    def _owner(self, name: str, stop: Callable[[float], bool]) -> Owner:
        return Owner(name, self._settings.stop_timeout / 1000, stop)
