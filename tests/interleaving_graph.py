"""The graph that an exploration finds, and what must hold of it as a whole."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.interleaving import PEOPLE

# Who can move what waits for that: an offer, or the worker that holds it and whoever declares.
MOVERS = {
    "queue": ("lease",), "worker": ("lease",),
    "hold": ("ok", "declare"), "evidence": ("ok", "declare"),
}  # fmt: skip


@dataclass(slots=True)
class Explored:
    """States by number, 0 the first, and the moves between them. Moves that stay are left out."""

    ends: set[int] = field(default_factory=set)
    waits: dict[int, frozenset[tuple[str, str]]] = field(default_factory=dict)
    leads: dict[int, dict[str, int]] = field(default_factory=dict)
    alone: dict[int, set[int]] = field(default_factory=dict)  # without worker and people
    again: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    moves: int = 0
    refusals: int = 0
    still: int = 0  # commands that were answered and changed nothing, such as replays
    failed: list[tuple[int, str]] = field(default_factory=list)
    whole: bool = True
    _numbers: dict[bytes, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._numbers)

    def knows(self, key: bytes) -> bool:
        return key in self._numbers

    def number(self, key: bytes) -> int:
        """The number of a state, a new one when it is new."""
        return self._numbers.setdefault(key, len(self._numbers))

    def lead(self, before: int, said: str, after: int, *, alone: bool) -> None:
        """Note a move."""
        if before != after:
            self.leads.setdefault(before, {})[said] = after
            if alone:
                self.alone.setdefault(before, set()).add(after)

    def fail(self, state: int, what: str) -> None:
        self.failed.append((state, what))

    @property
    def failures(self) -> list[str]:
        """The first ones, each with the shortest way there that was seen."""
        return [f"{what}, after: {self.way(state)}" for state, what in self.failed[:5]]

    def way(self, state: int) -> str:
        ways, queue = {0: "the start"}, deque([0])
        while queue and state not in ways:
            here = queue.popleft()
            for said, after in self.leads.get(here, {}).items():
                if after not in ways:
                    ways[after] = f"{ways[here]} → {said}"
                    queue.append(after)
        return ways[state]

    def reaching(self, goals: Iterable[int], without: frozenset[str] = frozenset()) -> set[int]:
        """The states from which moves lead to one of the goals, those of some words left out."""
        back: dict[int, list[int]] = {}
        for before, leads in self.leads.items():
            for said, after in leads.items():
                if said.split(" ")[0] not in without:
                    back.setdefault(after, []).append(before)
        seen = set(goals)
        queue = deque(seen)
        while queue:
            for before in back.get(queue.popleft(), ()):
                if before not in seen:
                    seen.add(before)
                    queue.append(before)
        return seen


def judge(found: Explored, *, alike: bool) -> None:
    """What only the whole graph can tell. alike: the steps may have changed places in a state."""
    everything = set(range(len(found)))
    if not found.ends:
        found.fail(0, "no end was ever reached")
    for state in sorted(everything - found.reaching(found.ends)):
        found.fail(state, "no order ends the run")
    for state in sorted(everything - found.reaching(found.ends, PEOPLE)):
        found.fail(state, "without people no order ends the run")
    for state in sorted(circles(found.alone)):
        found.fail(state, "left alone, it goes round in circles")
    for state in sorted(everything - found.ends - found.alone.keys()):
        for what in untold(found, state, alike):
            found.fail(state, what)
    for state, leads in found.again:
        first = found.leads.get(state, {})
        second = {said: after for said, after in leads.items() if after != state}
        if first != second and not (alike and set(first.values()) == set(second.values())):
            parted = set(first.items()) ^ set(second.items())
            found.fail(state, f"two moments are one state and part at {sorted(parted)[0][0]}")


def untold(found: Explored, state: int, alike: bool) -> Iterable[str]:
    """Where nothing comes by itself: explain says who can move it, and they can."""
    waits = {(what, step) for what, step in found.waits[state] if what in MOVERS}
    if not waits:
        yield f"nothing comes by itself, and explain says {sorted(found.waits[state])}"
    said = set(found.leads.get(state, {}))
    for what, step in sorted(waits):
        for word in MOVERS[what]:
            command = word if word == "lease" else f"{word} {step}"
            if command not in said and not (alike and word in {one.split(" ")[0] for one in said}):
                yield f"explain says {what} of {step}, and {command} does nothing"


def circles(leads: dict[int, set[int]]) -> set[int]:
    """The states from which one never gets out of these moves: what is left without the rest."""
    back: dict[int, set[int]] = {}
    for before, afters in leads.items():
        for after in afters:
            back.setdefault(after, set()).add(before)
    left = {state: len(afters) for state, afters in leads.items()}
    queue = deque(set(back) - set(left))
    while queue:
        for before in back.get(queue.popleft(), ()):
            left[before] -= 1
            if not left[before]:
                del left[before]
                queue.append(before)
    return set(left)
