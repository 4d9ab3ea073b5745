"""A run moved by hand while somebody looks: each pause of the looking does the next thing."""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from qinglong_sql.cli import events, follow, watch
from qinglong_sql.store import Store
from tests import acting
from tests.acting import Held
from tests.shell import Done, Shell
from tests.stores import FakeClock, sqlite_store

FLOW = {"build": [], "test": [], "ship": ["build", "test"]}


@dataclass(slots=True)
class Scene:
    """A started run with its attempts in the worker's folders; `held` by step key."""

    folder: Path
    store: Store
    clock: FakeClock
    shell: Shell
    run_id: str
    held: dict[str, Held] = field(default_factory=dict)
    waits: int = 0

    def lease(self, mark: str, count: int = 1) -> None:
        """Lease so many attempts; their folders have an empty log."""
        leased = acting.lease(self.store, *(f"{mark}{n}" for n in range(count)))
        self.held.update(leased)
        for one in leased.values():
            at = self.live(one)
            at.parent.mkdir(parents=True)
            at.touch()

    def begin(self, mark: str, count: int = 1) -> None:
        """Lease and start so many attempts, one a millisecond, by step key."""
        known = set(self.held)
        self.lease(mark, count)
        for key in sorted(set(self.held) - known or set(self.held)):
            self.clock.advance(1)
            acting.run(self.store, self.held[key])

    def live(self, one: Held) -> Path:
        return self.folder / "worker" / "0" / "exec" / str(one.row["offer_id"]) / "log"

    def kept(self, one: Held) -> Path:
        name = f"{one.row['step_key']}.{one.row['number']}.log"
        return self.folder / "worker" / "0" / "log" / self.run_id / name

    def write(self, key: str, text: bytes) -> None:
        with self.live(self.held[key]).open("ab") as log:
            log.write(text)

    def end(self, key: str, text: bytes = b"", *, code: int = 0, moved: bool = True) -> None:
        """Write the rest, report the end, and move the log to where it stays."""
        one = self.held[key]
        self.write(key, text)
        acting.report(self.store, one, exit_code=code)
        if moved:
            self.move(key)

    def move(self, key: str) -> None:
        one = self.held[key]
        self.kept(one).parent.mkdir(parents=True, exist_ok=True)
        self.live(one).rename(self.kept(one))
        shutil.rmtree(self.live(one).parent)

    def advance(self) -> None:
        acting.advance(self.store, self.run_id)

    def look(
        self, patch: pytest.MonkeyPatch, things: Iterable[Callable[[], object]], *words: object,
        **env: str,
    ) -> Done:  # fmt: skip
        """Call a command that waits; each of its waits is one of these things, then it must end."""
        left = iter(things)
        done = object()

        def step(seconds: float = 0.0) -> None:
            self.waits += 1
            thing = next(left, done)
            assert thing is not done or self.waits < 400, "it does not end"
            if callable(thing):
                thing()

        for module in (events, follow, watch):
            patch.setattr(module, "pause", step)
        return self.shell(*words, env=env or None)


def staged(folder: Path, **work: object) -> Scene:
    """A run of FLOW with its roots admitted."""
    clock = FakeClock()
    store = sqlite_store(folder, clock)
    run_id = acting.begun(store, FLOW, **work)
    return Scene(folder, store, clock, Shell(folder, "sqlite:///qinglong.db"), run_id)
