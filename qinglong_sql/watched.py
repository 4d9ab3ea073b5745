"""A door that is watched: that it is away is told once, and so is that it is back (DESIGN §9)."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from qinglong_sql.control_log import Log
from qinglong_sql.errors import QinglongError
from qinglong_sql.execution import boottime_ms
from qinglong_sql.port import Away, Port, Shut
from qinglong_sql.store import Row

P = ParamSpec("P")
T = TypeVar("T")


class Watched:
    """See qinglong_sql.port.Port. `place` names the door for people, never with a secret."""

    def __init__(
        self, port: Port, place: str, log: Log, clock: Callable[[], int] = boottime_ms
    ) -> None:
        self._port, self._place, self._log, self._clock = port, place, log, clock
        self._since_ms: int | None = None
        self.lost = 0  # how often no answer came

    @property
    def away(self) -> bool:
        """Whether the last that was asked had no answer."""
        return self._since_ms is not None

    def call(self, step: str, /, **params: object) -> list[Row]:
        """Pass on."""
        return self.watch(lambda: self._port.call(step, **params))

    def watch(self, ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask through the door in another way. Raises what that raises."""
        try:
            answer = ask(*args, **kwargs)
        except (Away, Shut) as error:
            self._gone(error)
            raise
        except QinglongError:
            self._back()
            raise
        self._back()
        return answer

    def close(self) -> None:
        """Pass on."""
        self._port.close()

    def _gone(self, error: Exception) -> None:
        self.lost += 1
        if self._since_ms is None:
            self._since_ms = self._clock()
            said = error.message if isinstance(error, Shut) else error
            words = f"{said}; asked again until it answers, and what runs goes on with its lease"
            self._log.say("warning", "away", words)

    def _back(self) -> None:
        if self._since_ms is not None:
            seconds = (self._clock() - self._since_ms) / 1000
            self._since_ms = None
            words = f"{self._place} answers again, after {seconds:.1f}s"
            self._log.say("info", "back", words, seconds=seconds)
