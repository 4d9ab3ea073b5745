"""Every check of `scripts/prove`, in the order in which it runs: cheap and telling ones first."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from tests.prove import Setting, Verdict


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report.

    module: `tests.prove.<name>`. quick_s: what it takes with --quick, about. share: its part of the
    minutes that are left over, for checks that go on by time; 0 for those that end by themselves.
    """

    name: str
    sentence: str
    quick_s: float
    share: float = 0.0

    def run(self, setting: Setting) -> Verdict:
        prove: Callable[[Setting], Verdict] = import_module(f"tests.prove.{self.name}").prove
        return prove(setting)


CHECKS = (
    Check("interleavings", "every order of commands on one and on two steps ends well", 100, 1),
    Check("simulation", "random commands: both engines stay equal, and no rule is broken", 32, 4),
    Check("decisions", "the views say what the oracle says of every state, on each PostgreSQL", 40),
    Check("crashes", "killed at every boundary: before the commit nothing, after it all", 60),
    Check("answers", "a lost answer is repeated and changes nothing", 25),
    Check("races", "two that touch one run: one wins, the other hears so; no deadlock", 130, 1),
    Check("cancels", "no run ends while something of it is alive", 30, 1),
    Check("schedules", "each time fires once: clock changes, deaths, wrong clocks, crowds", 60),
    Check("controls", "controls are killed, stopped, restarted: nothing stays or is twice", 60, 1),
    Check("upgrade", "0.1.0 and 0.2.0 work while the schema moves: nothing lost or half", 250),
    Check("remote", "workers and launchers are harmed: nothing runs twice or too long", 70, 2),
    Check("failover", "the primary is lost and another promoted: nothing lost, nothing twice", 200),
    Check("drills", "a partition and a clock that is set: as a DBA drills them", 400),
    Check("power", "power fails: what was acknowledged is there again", 40, 2),
    Check("disks", "a full, failing or vanished disk is told, and work goes on", 80),
    Check("inputs", "bad input is refused in words and leaves nothing", 26, 2),
    Check("small", "small machines: memory, waits, bytes, wake-ups", 60),
)
