"""An ingress as a process of its own: listener, papers, pool, readiness, door; and back again.

Unlike a control process it does not end when the database goes away: it answers 503, /readyz says
so, and it serves again when the database does. There is nothing that it could do wrong meanwhile.
"""

import threading
from collections.abc import Callable
from typing import Final

from qinglong_sql.control_boot import BootFailed, Done, Interrupted, Step, boot
from qinglong_sql.control_log import Log
from qinglong_sql.control_stop import Ending, Owner, stop_all
from qinglong_sql.fence import Fence
from qinglong_sql.health import Health
from qinglong_sql.ingress import Ingress
from qinglong_sql.ingress_settings import IngressSettings

SETTING: Final = "boot_timeout"


class Alone:
    """One ingress process. `run` it once; `ask` from any thread."""

    def __init__(
        self, settings: IngressSettings, log: Log, words: Callable[[BaseException], str]
    ) -> None:
        self._settings, self._log, self._words = settings, log, words
        self._ingress = Ingress(settings, log)
        self._fence = Fence()
        self._asked = threading.Event()
        self._began: list[Owner] = []

    def run(self) -> Ending:
        """Boot, serve until asked to stop, stop.

        Raises BootFailed when it did not get so far; what had begun was stopped.
        """
        try:
            boot(self._steps(), self._began, self._fence, self._log, self._asked)
        except Interrupted:
            self._log.say("info", "stop", "asked to stop while starting")
        except BootFailed as error:
            self._fence.withdraw(f"{error.step} failed")
            self._stop()
            raise
        if self._fence.ready():
            self._log.say("info", "ready", "ready")
        self._asked.wait()
        return self._stop()

    def ask(self, reason: str) -> None:
        """Be not ready from now on, and stop soon. May be repeated; never waits."""
        if self._fence.withdraw(reason):
            self._log.say("info", "stop", reason)
        self._asked.set()

    def refusal(self) -> str | None:
        """Why this process is not ready, for people; None when it is."""
        told = self._fence.refusal()
        return self._ingress.refusal() if told is None else told

    def text(self) -> bytes:
        """What /metrics answers."""
        self._ingress.sample()
        return self._ingress.meter.text(self.refusal())

    def _stop(self) -> Ending:
        self._fence.withdraw("stopping")
        late = stop_all(self._began, self._log, self._words)
        self._fence.stopped()
        return Ending("", tuple(late))

    def _steps(self) -> list[Step]:
        boot_s = self._settings.boot_timeout / 1000
        works: dict[str, Callable[[], Done]] = {
            "listener": self._listen,
            "papers": lambda: Done(self._ingress.read_papers()),
            "pool": self._connect,
            "readiness": lambda: Done(self._ingress.check()),
            "ingress": self._serve,
        }
        return [Step(name, boot_s, SETTING, work) for name, work in works.items()]

    def _listen(self) -> Done:
        listen = self._settings.health_listen
        listener = Health(
            listen,
            self.refusal,
            self.text,
            on_error=lambda words: self._log.trouble("health", words),
        )
        listener.start()
        words = f"on {listen[0]} port {listener.port}"
        return Done(words, self._owner("listener", listener.stop, self._settings.stop_timeout))

    def _connect(self) -> Done:
        words = self._ingress.connect()
        return Done(words, self._owner("pool", self._ingress.hang_up, self._settings.stop_timeout))

    def _serve(self) -> Done:
        words = self._ingress.serve()
        return Done(words, self._owner("ingress", self._ingress.halt, self._settings.drain_timeout))

    def _owner(self, name: str, stop: Callable[[float], bool], within_ms: int) -> Owner:
        return Owner(name, within_ms / 1000, stop)
