"""The stop of a control process: what began is stopped in reverse, each part in its own time.

admission withdrawn → cancellation → scheduler → application → pool → listener (DESIGN §7). A part
that is late or raises is told, and the rest still stops.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qinglong_sql.control_log import Log


@dataclass(frozen=True, slots=True)
class Owner:
    """Something that runs: `stop` gets the seconds that it may take, and says whether it ended."""

    name: str
    within_s: float
    stop: Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class Ending:
    """How it ended: why the fence tripped, if it did, and which parts were late."""

    tripped: str
    late: tuple[str, ...]


def stop_all(began: Sequence[Owner], log: Log, words: Callable[[BaseException], str]) -> list[str]:
    """Stop in reverse order; the names of those that did not end as they should."""
    late = []
    for owner in reversed(began):
        began_s = time.monotonic()
        try:
            ended = owner.stop(owner.within_s)
            trouble = "" if ended else f"did not end within {owner.within_s:g}s"
        except Exception as error:
            trouble = f"could not be stopped: {words(error)}"
        if trouble:
            late.append(owner.name)
            log.say("error", "late", f"stopping: {owner.name} {trouble}; going on", part=owner.name)
        else:
            took = time.monotonic() - began_s
            log.say("info", "stop", f"stopping: {owner.name} ended in {took:.2f}s", part=owner.name)
    return late
