"""What a control process says on standard error: a line each, as text or JSON.

One line a cycle that did something, none for an idle one, and trouble that repeats is not a flood.
"""

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

if TYPE_CHECKING:  # the ingress has the same log, and nothing that decides
    from qinglong_sql.scheduler import Cycle
    from qinglong_sql.stage import Tally

Form = Literal["text", "json"]
Level = Literal["debug", "info", "warning", "error"]
LEVELS: Final[tuple[Level, ...]] = ("debug", "info", "warning", "error")
SAME_AGAIN_S = 60.0
COUNTED = ("scanned", "applied", "settled", "blocked", "contended", "faulted", "effects")


class Log:
    """Says lines of a level and above it. May be used by all threads.

    What nobody reads any more, or a full disk does not take, is lost without harm.
    """

    def __init__(
        self,
        form: Form,
        level: Level,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._form = form
        self._least = LEVELS.index(level)
        self._out = sys.stderr if out is None else out
        self._clock = clock
        self._lock = threading.Lock()
        self._troubles: dict[str, tuple[str, float]] = {}  # of each source: words, said when

    def say(self, level: Level, event: str, words: str, **more: object) -> None:
        """One line; `more` is for programs, and stands in JSON alone."""
        if LEVELS.index(level) < self._least:
            return
        at = datetime.now().astimezone()
        if self._form == "json":
            line = json.dumps(
                {"at": at.isoformat("T", "milliseconds"), "level": level, "event": event,
                 "message": words, **more}
            )  # fmt: skip
        else:
            plain = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in words)
            mark = f"{level}: " if level in ("warning", "error") else ""
            line = f"{at:%Y-%m-%d %H:%M:%S%z} {mark}{plain}"
        with self._lock, suppress(OSError, ValueError):
            self._out.write(line.encode("utf-8", "backslashreplace").decode() + os.linesep)
            self._out.flush()

    def cycle(self, lifecycle: str, cycle: "Cycle", seconds: float) -> None:
        """A cycle that came to its end, if it did something."""
        did = {name: tally for name, tally in cycle.tallies.items() if _did(tally)}
        if not did:
            return
        faulted = sum(tally.faulted for tally in did.values())
        parts = ", ".join(f"{name} {_words(tally)}" for name, tally in did.items())
        self.say(
            "warning" if faulted else "info",
            "cycle",
            f"{lifecycle}: {parts} in {seconds:.3f}s",
            lifecycle=lifecycle,
            seconds=round(seconds, 6),
            stages={name: _counts(tally) for name, tally in did.items()},
        )

    def trouble(self, source: str, words: str, **more: object) -> None:
        """Something failed and is tried again; the same of a source is said once a minute."""
        now = self._clock()
        with self._lock:
            said, at = self._troubles.get(source, ("", now - SAME_AGAIN_S))
            if said == words and now - at < SAME_AGAIN_S:
                return
            self._troubles[source] = words, now
        self.say("error", "trouble", f"{source}: {words}", source=source, **more)

    def well(self, source: str) -> None:
        """What was in trouble came through."""
        with self._lock:
            there = self._troubles.pop(source, None)
        if there:
            self.say("info", "well", f"{source}: it works again", source=source)


def _did(tally: "Tally") -> bool:
    return bool(tally.applied or tally.faulted)


def _counts(tally: "Tally") -> Mapping[str, int]:
    return {name: count for name in COUNTED if (count := getattr(tally, name))}


def _words(tally: "Tally") -> str:
    more = [f"{tally.effects} effects"] * bool(tally.effects)
    more += [f"{tally.faulted} FAULTED, see `qinglong-sql status`"] * bool(tally.faulted)
    return f"{tally.applied}{f' ({chr(44).join(more)})' if more else ''}"


def speak_through(log: Log) -> None:
    """What a pool of connections tells of its own accord is for who looks closely."""

    class Forward(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            log.say("debug", "pool", record.getMessage())

    for name in ("psycopg", "psycopg.pool"):
        logger: Any = logging.getLogger(name)
        logger.handlers, logger.propagate = [Forward()], False
