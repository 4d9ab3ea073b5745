"""The long proof of the core: one module a check, each with `prove(setting) -> Verdict`.

`scripts/prove` runs them (tests.prove.__main__). The quick part of each check stands in
`tests/test_*.py` and uses the same code.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Counts = dict[str, int | float | str]
Status = Literal["passed", "failed", "not run"]


@dataclass(frozen=True, slots=True)
class Setting:
    """What one check is given.

    seconds: what it should take, about; a check that goes on by time stops drawing then. quick: the
    smallest counts that still can fail. folder: its own scratch, gone afterwards. majors: the
    PostgreSQL versions to use. say: progress, one line that may be overwritten by the next.
    history: what was asked for; None leaves it to the check.
    """

    seed: int
    quick: bool
    seconds: float
    folder: Path
    majors: tuple[int, ...]
    say: Callable[[str], None]
    history: int | None = None  # rows of ended runs, for checks that measure with many

    def random(self, *parts: object) -> random.Random:
        """A generator of its own for each part of a check, the same for the same seed."""
        return random.Random(":".join(map(str, (self.seed, *parts))))

    def until(self) -> Callable[[], bool]:
        """True until the check's time is over, counted from this call."""
        end = time.monotonic() + self.seconds
        return lambda: time.monotonic() < end


@dataclass(slots=True)
class Verdict:
    """What a check found: counts for the report, and every failure in words, with its way back.

    A failure says how to see it again: seed, script, command.
    """

    counts: Counts = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)  # parts that could not run here, and why

    def check(self, holds: object, failure: str) -> bool:
        """Note `failure` unless `holds`."""
        if not holds:
            self.failures.append(failure)
        return bool(holds)

    def count(self, name: str, by: int = 1) -> None:
        self.counts[name] = int(self.counts.get(name, 0)) + by


class CannotRun(Exception):
    """This machine lacks what the check needs; the message says what, and how to get it."""


@contextmanager
def needing(verdict: Verdict, part: str) -> Iterator[None]:
    """Note a part that cannot run here instead of ending the check."""
    try:
        yield
    except CannotRun as error:
        verdict.not_run.append(f"{part}: {error}")
