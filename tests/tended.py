"""A worker process without its process: the loop on a thread, its door in the test's hands."""

import io
import json
import threading
import time
from collections.abc import Callable
from typing import Any

from qinglong_sql.control_log import Log
from qinglong_sql.port import Away, Shut, only_worker_steps
from qinglong_sql.scheduler import STANDALONE, Turn, local_cycle
from qinglong_sql.store import Row, Store, open_store
from qinglong_sql.tending import Tending
from qinglong_sql.watched import Watched
from qinglong_sql.worker import Worker
from tests.site import PATIENCE_S, Site


def decide(
    site: Site, true: Callable[[], object], what: str, told: Callable[[], str] = str
) -> None:
    """Do what a control process does until it is so."""
    end, turn = time.monotonic() + PATIENCE_S, Turn(whole=True)
    while not true():
        assert time.monotonic() < end, f"in vain until {what}; {told()}"
        turn = local_cycle(site.store, turn, STANDALONE, owing=lambda: False).next
        time.sleep(0.01)


class Near:
    """A port to a database of this machine, with the worker's steps alone.

    `away`: nothing gets through. `shut`: nobody is let in. `lose` names steps whose next answer is
    lost after the commit.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._store: Store | None = None
        self.away = self.shut = False
        self.lose: set[str] = set()
        self.asked: list[str] = []

    def call(self, step: str, /, **params: object) -> list[Row]:
        only_worker_steps(step)
        self.asked.append(step)
        if self.shut:
            raise Shut("revoked")
        if self.away:
            raise Away("the door: Connection refused")
        self._store = self._store or open_store(self._dsn)  # on the thread that uses it
        rows = self._store.call(step, **params)
        if step in self.lose:
            self.lose.discard(step)
            raise Away("the door: no answer in time")
        return rows

    def close(self) -> None:
        if self._store:
            self._store.close()
        self._store = None


class Tended:
    """A worker of a site on a thread of its own, until `end`. What it raises is in `error`."""

    def __init__(
        self, site: Site, port: Any = None, *, name: str = "w1", drain_ms: int = 10_000,
        folder: str = "state", **options: Any,
    ) -> None:  # fmt: skip
        self.site = site
        self.port = port or Near(site.dsn)
        self.count = 0
        self.ending: str | None = None
        self.error: BaseException | None = None
        self._out = io.StringIO()
        log = Log("json", "debug", self._out)
        door = Watched(self.port, "the door", log)
        options = {"slots": 4, "stop_grace_ms": 500, **options}
        self.worker = Worker(door, site.root / folder, name=name, **options)
        self.tending = Tending(self.worker, door, log, str, name=name, drain_ms=drain_ms)
        self.tending.interrupts = lambda: self.count
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def lines(self, event: str) -> list[str]:
        """What it said of an event."""
        found = [json.loads(line) for line in self._out.getvalue().splitlines()]
        return [one["message"] for one in found if one["event"] == event]

    def until(self, true: Callable[[], object], what: str = "it is so") -> None:
        """Decide what is due, as a control process does, until it is so."""
        decide(self.site, true, what, self._told)

    def finish(self, run_id: str) -> str:
        """Until a run has ended; how."""
        self.until(lambda: self.site.run(run_id)["status"] != "running", f"{run_id} ends")
        return str(self.site.run(run_id)["status"])

    def interrupt(self) -> None:
        self.count += 1
        self.tending.wake()

    def ended(self) -> str | None:
        """Wait for its end; how it ended."""
        self.until(lambda: not self._thread.is_alive(), "it ends")
        return self.ending

    def stop(self) -> str | None:
        """An interrupt, and its end."""
        self.interrupt()
        return self.ended()

    def close(self) -> None:
        self.count += 2
        self.tending.wake()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.ending = self.tending.run()
        except BaseException as error:
            self.error = error
        finally:
            self.tending.close()

    def _told(self) -> str:
        return f"{self._out.getvalue()}\n{self.error!r}\n{self.site.told()}"
