"""What an edge says on standard error: one line each, as text or JSON, and never a flood."""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Literal, TextIO

from qinglong_sql.troubles import Troubles

Form = Literal["text", "json"]
WINDOW_S = 10.0
LINES_A_WINDOW = 30
SAME_AGAIN_S = 60.0
CALM_S = 1.0  # without trouble, and only then it works again


class Log:
    """Says lines; of `often` ones at most LINES_A_WINDOW in WINDOW_S, the rest is counted.

    What nobody reads any more, or a full disk does not take, is lost without harm.
    """

    def __init__(
        self,
        form: Form,
        quiet: bool,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._form = form
        self._quiet = quiet
        self._out = sys.stderr if out is None else out
        self._clock = clock
        self._window_s = clock()
        self._said = self._left_out = 0
        self._troubles = Troubles(SAME_AGAIN_S, clock)
        self._trouble_s = -CALM_S

    def say(self, event: str, words: str, **more: object) -> None:
        """One line. With `quiet` nothing but faults and trouble is said."""
        if not self._quiet or event in ("fault", "trouble", "folder", "killed"):
            self._write(event, words, more)

    def often(self, event: str, words: str, **more: object) -> None:
        """One line of a kind that may come hundreds of times a second."""
        self.tidy()
        if self._said < LINES_A_WINDOW:
            self._said += 1
            self.say(event, words, **more)
        else:
            self._left_out += 1

    def tidy(self) -> None:
        """Begin a new window when it is time, and say how many lines the last one left out."""
        now = self._clock()
        if now - self._window_s < WINDOW_S:
            return
        self._window_s, self._said = now, 0
        left_out, self._left_out = self._left_out, 0
        if left_out:
            self.say("more", f"{left_out} more runs started or ended", count=left_out)

    def trouble(self, words: str) -> None:
        """The same trouble is said again only now and then, also when it comes in turns."""
        self._trouble_s = self._clock()
        if self._troubles.news(words):
            self.say("trouble", f"trying again: {words}")

    def over(self) -> None:
        """A cycle came through: trouble that was told has an end, unless it comes and goes."""
        if self._troubles and self._clock() - self._trouble_s >= CALM_S:
            self._troubles.clear()
            self.say("well", "it works again")

    def _write(self, event: str, words: str, more: dict[str, object]) -> None:
        at = datetime.now().astimezone()
        if self._form == "json":
            line = json.dumps({"at": at.isoformat("T", "milliseconds"), "event": event,
                               "message": words, **more})  # fmt: skip
        else:
            plain = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in words)
            line = f"{at:%Y-%m-%d %H:%M:%S%z} {plain}"
        encoding = getattr(self._out, "encoding", None) or "ascii"
        line = line.encode(encoding, "backslashreplace").decode(encoding)
        if self._out is None:  # started without a standard error
            return
        try:
            self._out.write(line + "\n")
            self._out.flush()
        except (OSError, ValueError):
            _drop(self._out)


def _drop(out: TextIO) -> None:
    """Lose what could not be written: else it is tried again with each line, and at our end."""
    with suppress(OSError, ValueError):
        fd = out.fileno()
        kept, nowhere = os.dup(fd), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, fd)
        out.flush()
        os.dup2(kept, fd)
        os.close(kept)
        os.close(nowhere)
