"""Cycles in a workflow's needs: one whole cycle out of every knot."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from qinglong_sql.limits import MAX_STEPS


@dataclass(frozen=True, slots=True)
class Knot:
    """Steps that all wait for each other, and one cycle among them: `(a, b)` is a → b → a."""

    cycle: tuple[str, ...]
    steps: tuple[str, ...]


def knots(needs: Mapping[str, Collection[str]]) -> list[Knot]:
    """Every knot with a shortest cycle in it (any cycle, once it has more than MAX_STEPS steps).

    Unknown needs and self-needs are left out. The order follows the mapping's, so the same file
    gives the same answer.
    """
    edges = {step: [n for n in needs[step] if n in needs and n != step] for step in needs}
    place = {step: number for number, step in enumerate(edges)}
    found = []
    for component in _components(edges):
        steps = sorted(component, key=place.__getitem__)
        inside = set(steps)
        starts = steps if len(steps) <= MAX_STEPS else steps[:1]
        cycle = min((_round_trip(start, edges, inside) for start in starts), key=len)
        found.append(Knot(cycle, tuple(steps)))
    return sorted(found, key=lambda knot: place[knot.steps[0]])


def _components(edges: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Strongly connected components of two steps or more (Tarjan's, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    waiting: dict[str, None] = {}
    found = []
    for root in edges:
        if root in index:
            continue
        walk = [(root, iter(edges[root]))]
        index[root] = low[root] = len(index)
        waiting[root] = None
        while walk:
            step, rest = walk[-1]
            need = next(rest, None)
            if need is None:
                walk.pop()
                if walk:
                    above = walk[-1][0]
                    low[above] = min(low[above], low[step])
                if low[step] == index[step]:
                    component = _popped(waiting, step)
                    if len(component) > 1:
                        found.append(component)
            elif need not in index:
                index[need] = low[need] = len(index)
                waiting[need] = None
                walk.append((need, iter(edges[need])))
            elif need in waiting:
                low[step] = min(low[step], index[need])
    return found


def _popped(waiting: dict[str, None], until: str) -> list[str]:
    component = [waiting.popitem()[0]]
    while component[-1] != until:
        component.append(waiting.popitem()[0])
    return component


def _round_trip(
    start: str, edges: Mapping[str, Sequence[str]], inside: set[str]
) -> tuple[str, ...]:
    came_from: dict[str, str] = {}
    queue = [start]
    for step in queue:
        for need in edges[step]:
            if need == start:
                path = [step]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return tuple(reversed(path))
            if need in inside and need not in came_from:
                came_from[need] = step
                queue.append(need)
    raise AssertionError(f"{start} is in no cycle")
