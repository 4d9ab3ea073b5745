"""Trouble that is told once and then only now and then, also when several kinds come in turns."""

import re
import time
from collections.abc import Callable

MOST = 32  # that are told apart; of more the oldest is forgotten
MOVES = re.compile(r"[0-9.]+")  # as free space does, and it is the same trouble still


class Troubles:
    """What was told, by its words; the same is news again after `again_s` seconds."""

    def __init__(self, again_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._again_s = again_s
        self._clock = clock
        self._told: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._told)

    def news(self, words: str) -> bool:
        """Whether to tell it now; it counts as told then."""
        now, same = self._clock(), MOVES.sub("", words)
        if now - self._told.get(same, now - self._again_s) < self._again_s:
            return False
        self._told.pop(same, None)
        self._told[same] = now
        if len(self._told) > MOST:
            del self._told[next(iter(self._told))]
        return True

    def clear(self) -> None:
        """All of it is over."""
        self._told.clear()
