"""A door that is watched: that it is away is told once, and so is that it is back (DESIGN §9).

So is that it does not let this worker in. Who is not let in at its first registration ends, and
says it with its end.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from qinglong_sql.control_log import Log
from qinglong_sql.errors import QinglongError
from qinglong_sql.execution import boottime_ms
from qinglong_sql.port import Away, Port, Shut
from qinglong_sql.store import Row

P = ParamSpec("P")
T = TypeVar("T")
REGISTRATION = "register_worker"


class Watched:
    """See qinglong_sql.port.Port. `place` names the door for people, never with a secret."""

    def __init__(
        self, port: Port, place: str, log: Log, clock: Callable[[], int] = boottime_ms
    ) -> None:
        self._port, self._place, self._log, self._clock = port, place, log, clock
        self._since_ms: int | None = None
        self._registered = self._shut = False
        self.lost = 0  # how often no answer came

    @property
    def away(self) -> bool:
        """Whether the last that was asked had no answer."""
        return self._since_ms is not None

    def call(self, step: str, /, **params: object) -> list[Row]:
        """Pass on."""
        first = step == REGISTRATION and not self._registered
        rows = self._watch(lambda: self._port.call(step, **params), ends=first)
        self._registered = self._registered or first
        return rows

    def watch(self, ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask through the door in another way. Raises what that raises."""
        return self._watch(lambda: ask(*args, **kwargs))

    def _watch(self, ask: Callable[[], T], *, ends: bool = False) -> T:
        """`ends`: who is not let in now does not ask again."""
        try:
            answer = ask()
        except (Away, Shut) as error:
            self._gone(error, ends=ends)
            raise
        except QinglongError:
            self._back()
            raise
        self._back()
        return answer

    def close(self) -> None:
        """Pass on."""
        self._port.close()

    def _gone(self, error: Away | Shut, *, ends: bool) -> None:
        self.lost += 1
        news = self._since_ms is None
        if news:
            self._since_ms = self._clock()
        if isinstance(error, Shut):
            if not self._shut and not ends:
                self._shut = True
                self._log.say("warning", "away", shut_words(error))
        elif news:
            words = f"{error}; asked again until it answers, and what runs goes on with its lease"
            self._log.say("warning", "away", words)

    def _back(self) -> None:
        self._shut = False
        if self._since_ms is not None:
            seconds = (self._clock() - self._since_ms) / 1000
            self._since_ms = None
            words = f"{self._place} answers again, after {seconds:.1f}s"
            self._log.say("info", "back", words, seconds=seconds)


def shut_words(error: Shut) -> str:
    """What becomes of who is not let in, and of what it runs."""
    return (
        f"this worker is not let in: {error.message}; it is asked again every second, and what runs"
        " ends with its lease"
    )
