"""The ranks of a picture and the order in each: longest distance, bundled long ways, few crossings.

Inside, `u` runs along a rank and `v` from rank to rank, whichever of them is x.
"""

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

GAP, WAY_GAP, WAY_BREADTH = 20.0, 12.0, 2.0
TWINS = 8
SWEEPS = 12

Edges = list[tuple[str, str]]


@dataclass(slots=True, eq=False)
class Spot:
    """A step, or (without a key) the place where bundled lines pass a rank."""

    key: str
    breadth: float  # along the rank
    above: list["Spot"] = field(default_factory=list)
    below: list["Spot"] = field(default_factory=list)
    wrapped: bool = False  # one of many alike, in several rows
    place: int = 0
    u: float = 0.0

    def apart(self, other: "Spot") -> float:
        """The least distance between the middles of two neighbours."""
        return (self.breadth + other.breadth) / 2 + (GAP if self.key and other.key else WAY_GAP)


Ranks = list[list[Spot]]


def parts(steps: Sequence[str], edges: Edges) -> list[set[str]]:
    """The steps that hang together; those that stand alone are one part, the last."""
    near: dict[str, list[str]] = {step: [] for step in steps}
    for need, step in edges:
        near[need].append(step)
        near[step].append(need)
    alone = {step for step in steps if not near[step]}
    parts, seen = [], set(alone)
    for step in steps:
        if step in seen:
            continue
        part = {step}
        queue = [step]
        for one in queue:
            fresh = [other for other in near[one] if other not in part]
            part.update(fresh)
            queue.extend(dict.fromkeys(fresh))
        seen |= part
        parts.append(part)
    return [*parts, alone] if alone else parts


def levels(steps: Sequence[str], edges: Edges, order: Mapping[str, int]) -> list[list[str]]:
    """The steps of each distance, in the order in which a walk from the first root meets them."""
    below: dict[str, list[str]] = {step: [] for step in steps}
    for need, step in edges:
        below[need].append(step)
    levels: list[list[str]] = [[] for _ in range(1 + max(order[step] for step in steps))]
    stack, seen = [step for step in reversed(steps) if not order[step]], set()
    while stack:
        step = stack.pop()
        if step not in seen:
            seen.add(step)
            levels[order[step]].append(step)
            stack.extend(reversed(below[step]))
    return levels


def ranked(
    levels: list[list[str]], edges: Edges, breadths: Mapping[str, float], longest: float
) -> Ranks:
    """A rank a level, several where steps with equal needs and dependents are too many for one."""
    spots = {step: Spot(step, breadths[step]) for level in levels for step in level}
    kin: dict[str, tuple[list[str], list[str]]] = {step: ([], []) for step in spots}
    for need, step in edges:
        kin[need][1].append(step)
        kin[step][0].append(need)
    rows = []
    for level in levels:
        groups: dict[object, list[str]] = {}
        for step in level:
            groups.setdefault(tuple(map(tuple, kin[step])), []).append(step)
        rows.extend(_wrapped(list(groups.values()), spots, longest))
    ranks = [[spots[step] for step in row] for row in rows]
    _bundle(ranks, spots, edges)
    return ranks


def _wrapped(groups: list[list[str]], spots: Mapping[str, Spot], longest: float) -> list[list[str]]:
    def length(steps: list[str]) -> float:
        return sum(spots[step].breadth + GAP for step in steps)

    total = sum(map(length, groups))
    many = [group for group in groups if len(group) >= TWINS]
    wide = sum(map(length, many))
    if total <= longest or not many:
        return [[step for group in groups for step in group]]
    room = max(longest - (total - wide), longest / 2)
    count = min(int(wide // room) + 1, max(map(len, many)) // 3)
    rows: list[list[str]] = [[] for _ in range(count)]
    for group in groups:
        if len(group) < TWINS:
            rows[0].extend(group)
            continue
        each = max(3, -(-len(group) // count))
        for step in group:
            spots[step].wrapped = count > 1
        for n in range(count):
            rows[n].extend(group[n * each : (n + 1) * each])
    return [row for row in rows if row]


def _bundle(ranks: Ranks, spots: Mapping[str, Spot], edges: Edges) -> None:
    """Link neighbours; what passes ranks goes together with what has the same start or end."""
    rank = {spot.key: number for number, row in enumerate(ranks) for spot in row}
    far = [(a, b) for a, b in edges if rank[b] - rank[a] > 1]
    leave, arrive = Counter(a for a, _ in far), Counter(b for _, b in far)
    ways: dict[tuple[str, int], Spot] = {}
    linked = set()

    def link(one: Spot, other: Spot) -> None:
        if (id(one), id(other)) not in linked:
            linked.add((id(one), id(other)))
            one.below.append(other)
            other.above.append(one)

    for a, b in edges:
        shared = f">{a}" if leave[a] >= arrive[b] else f"<{b}"
        before = spots[a]
        for number in range(rank[a] + 1, rank[b]):
            if (shared, number) not in ways:
                ways[shared, number] = Spot("", WAY_BREADTH)
                ranks[number].insert(len(ranks[number]) // 2, ways[shared, number])
            link(before, ways[shared, number])
            before = ways[shared, number]
        link(before, spots[b])


def untangle(ranks: Ranks) -> None:
    """Order each rank so that few lines cross: barycentres both ways, the best of all is kept."""
    _number(ranks)
    best, fewest = [list(rank) for rank in ranks], _crossings(ranks)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        upward = sweep % 2 == 1
        for rank in reversed(ranks) if upward else ranks:
            rank.sort(key=lambda spot: _middle(spot, upward))
            _number([rank])
        if sweep % 4 == 3:
            _swap(ranks)
        count = _crossings(ranks)
        if count < fewest:
            best, fewest = [list(rank) for rank in ranks], count
    for rank, order in zip(ranks, best, strict=True):
        rank[:] = order
    _number(ranks)


def _number(ranks: Ranks) -> None:
    for rank in ranks:
        for place, spot in enumerate(rank):
            spot.place = place


def _middle(spot: Spot, upward: bool) -> float:
    near = (spot.below or spot.above) if upward else (spot.above or spot.below)
    return sum(one.place for one in near) / len(near) if near else float(spot.place)


def _swap(ranks: Ranks) -> None:
    """Change neighbours wherever that saves a crossing."""
    for rank in ranks:
        for n in range(len(rank) - 1):
            one, other = rank[n], rank[n + 1]
            if _pair(one, other) > _pair(other, one):
                rank[n], rank[n + 1] = other, one
                one.place, other.place = n + 1, n


def _pair(left: Spot, right: Spot) -> int:
    return sum(
        a.place > b.place
        for mine, theirs in ((left.above, right.above), (left.below, right.below))
        for a in mine
        for b in theirs
    )


def _crossings(ranks: Ranks) -> int:
    count = 0
    for rank in ranks:
        ends: list[int] = []
        for spot in rank:
            places = sorted(one.place for one in spot.below)
            count += sum(len(ends) - bisect_right(ends, place) for place in places)
            for place in places:
                insort(ends, place)
    return count
