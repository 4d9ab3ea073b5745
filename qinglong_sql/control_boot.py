"""The boot of a control process: one step after the other, each with its own bound and words.

listener (503 with the reason) → pool → readiness → recovery → application → scheduler →
cancellation, and only then it is ready (DESIGN §7).
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from qinglong_sql.control_log import Log
from qinglong_sql.control_stop import Owner
from qinglong_sql.errors import NotReady
from qinglong_sql.fence import Fence
from qinglong_sql.store import Store

if TYPE_CHECKING:
    from qinglong_sql.scheduler import Pages

LISTEN_S = 0.05  # how soon a stop ends the wait for a step
T = TypeVar("T")


class BootFailed(Exception):
    """A step of the boot failed or took too long: its name, and `__cause__`."""

    def __init__(self, step: str) -> None:
        super().__init__(f"{step} failed")
        self.step = step


class Interrupted(Exception):
    """A stop was asked for while the boot went on."""


class Overdue(Exception):
    """A step did not end within its bound."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a step says when it is done, and what it started, if anything runs from now on."""

    words: str
    owner: Owner | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the boot. `setting` is the one that gives it more time."""

    name: str
    within_s: float
    setting: str
    work: Callable[[], Done]


def boot(
    steps: Sequence[Step],
    began: list[Owner],
    fence: Fence,
    log: Log,
    asked: threading.Event,
) -> None:
    """Do the steps in order; what they start is appended to `began` at once.

    Raises BootFailed at the first that fails, Interrupted when `asked` is set.
    """
    for step in steps:
        fence.starting(f"starting: {step.name}")
        try:
            done = bounded(step.work, step.within_s, asked, step.name)
        except Interrupted:
            raise
        except Overdue:
            words = f"it took longer than {step.within_s:g}s, see {step.setting} in the settings"
            raise BootFailed(step.name) from NotReady(words)
        except Exception as error:
            raise BootFailed(step.name) from error
        if done.owner:
            began.append(done.owner)
        log.say("info", "boot", f"{step.name}: {done.words}", part=step.name)


def bounded(work: Callable[[], T], within_s: float, asked: threading.Event, name: str) -> T:
    """What `work` returns or raises, on a thread of its own that nobody waits for too long.

    Raises Overdue, and Interrupted when `asked` is set before it is over.
    """
    ended = threading.Event()
    outcome: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            errors.append(error)
        ended.set()

    end = time.monotonic() + within_s
    threading.Thread(target=run, name=f"boot-{name}", daemon=True).start()
    while not ended.wait(LISTEN_S):
        if asked.is_set():
            raise Interrupted
        if time.monotonic() >= end:
            raise Overdue
    if errors:
        raise errors[0]
    return outcome[0]


def recover(store: Store, pages: "Pages", asked: threading.Event) -> str:
    """Passes of recovery until nothing that is safe to do is left; in words what they did.

    What others hold, what waits for evidence and what raised is not outstanding: the one is theirs,
    and the rest comes back when it is due. Raises what the store and the stages raise.
    """
    from qinglong_sql.stage import STAGES, run_stage  # the ingress boots without what decides

    size, most = pages.recovery
    moved = 0
    for passes in count(1):
        tallies = [
            run_stage(store, STAGES[name], size=size, pages=most) for name in ("expiry", "retry")
        ]
        moved += sum(tally.applied for tally in tallies)
        if not any(tally.scanned > tally.contended + tally.faulted for tally in tallies):
            return f"{moved} runs moved, in {passes} passes" if moved else "nothing outstanding"
        if asked.is_set():
            raise Interrupted
    raise AssertionError("count ends")
