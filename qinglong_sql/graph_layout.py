"""Where the steps and lines of a picture stand: as straight as the order of the ranks allows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from qinglong_sql.graph import Needs, depths, necessary
from qinglong_sql.graph_order import GAP, SWEEPS, Ranks, Spot, levels, parts, ranked, untangle

RANK_GAP, RANK_GAP_MAX = 36.0, 110.0
LONGEST_RANK = {True: 1250.0, False: 1000.0}  # pixels; by whether ranks go down the page
PAGE = (960.0, 1600.0)
DRAWN_EDGES, DRAWN_BENDS = 400, 1500

Size = tuple[float, float]
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Box:
    """Where a step stands, in pixels."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Line:
    """A piece of the way from a need to a step; `arrow` when it ends at a step."""

    start: Point
    end: Point
    arrow: bool


@dataclass(slots=True)
class Picture:
    """Boxes and lines; `left_out` counts the needs that follow from others and are not drawn."""

    down: bool
    width: float = 0.0
    height: float = 0.0
    boxes: dict[str, Box] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    left_out: int = 0


def placed(
    steps: Sequence[str], needs: Needs, sizes: Mapping[str, Size], down: bool | None = None
) -> Picture:
    """Place every step below (or right of) all that it needs; no two boxes touch.

    `sizes` are width and height in pixels. Without `down` the way is taken that fits a page.
    Raises ValueError for an unknown need or a cycle.
    """
    if down is None:
        both = [placed(steps, needs, sizes, way) for way in (True, False)]
        return min(both, key=_unfit)
    order = depths(steps, needs)
    edges = [(need, step) for step in steps for need in dict.fromkeys(needs.get(step, ()))]
    kept = edges
    if len(edges) > DRAWN_EDGES or sum(order[b] - order[a] for a, b in edges) > DRAWN_BENDS:
        kept = necessary(edges, order)
    picture = Picture(down, left_out=len(edges) - len(kept))
    u = v = shelf = 0.0
    breadths = {step: size[0 if down else 1] for step, size in sizes.items()}
    for part in parts(steps, kept):
        inside = [(need, step) for need, step in kept if step in part]
        rows = levels([step for step in steps if step in part], inside, order)
        ranks = ranked(rows, inside, breadths, LONGEST_RANK[down])
        untangle(ranks)
        length = _straighten(ranks)
        if u and u + length > LONGEST_RANK[down]:
            u, v, shelf = 0.0, v + shelf + 2 * GAP, 0.0
        shelf = max(shelf, _put(picture, ranks, sizes, u, v))
        u += length + GAP
    return picture


def _unfit(picture: Picture) -> tuple[float, float]:
    over = max(1.0, picture.width / PAGE[0], picture.height / PAGE[1])
    return over, picture.width * picture.height


def _straighten(ranks: Ranks) -> float:
    """Give every spot its `u`: near the middle of its neighbours, in the order of its rank."""
    for rank in ranks:
        _settle(rank, [0.0] * len(rank))
    for sweep in range(3 * SWEEPS):
        upward, late = sweep % 2 == 1, sweep >= SWEEPS
        for rank in reversed(ranks) if upward else ranks:
            _settle(rank, [_wish(spot, upward, late) for spot in rank])
    _align(ranks)
    left = min(spot.u - spot.breadth / 2 for rank in ranks for spot in rank)
    for rank in ranks:
        for spot in rank:
            spot.u -= left
    return max(spot.u + spot.breadth / 2 for rank in ranks for spot in rank)


def _align(ranks: Ranks) -> None:
    """Let what hangs together one by one stand in one line, where its neighbours have the room."""
    beside = {}
    for rank in ranks:
        for left, spot, right in zip([None, *rank], rank, [*rank[1:], None], strict=False):
            beside[id(spot)] = (left, right)
    for _ in range(3):
        seen: set[int] = set()
        for spot in (spot for rank in ranks for spot in rank):
            chain: list[Spot] = []
            one: Spot | None = spot
            while one is not None and id(one) not in seen:
                seen.add(id(one))
                chain.append(one)
                one = _follower(one)
            _line_up(chain, beside)


def _line_up(chain: list[Spot], beside: Mapping[int, tuple[Spot | None, Spot | None]]) -> None:
    """The longest pieces, from the first on, that can stand in one line."""
    piece: list[Spot] = []
    least, most = -inf, inf
    for spot in [*chain, None]:
        low, high = -inf, inf
        if spot is not None:
            left, right = beside[id(spot)]
            low = left.u + left.apart(spot) if left else low
            high = right.u - spot.apart(right) if right else high
        if piece and (spot is None or max(least, low) > min(most, high)):
            wanted = sum(one.u for one in piece) / len(piece)
            for one in piece:
                one.u = min(max(wanted, least), most)
            piece, least, most = [], -inf, inf
        if spot is not None:
            piece.append(spot)
            least, most = max(least, low), min(most, high)


def _follower(spot: Spot) -> Spot | None:
    """What stands straight below: the same bundle, or the only dependent of an only need."""
    same = [one for one in spot.below if not spot.key and not one.key]
    if same or len(spot.below) != 1:
        return same[0] if same else None
    return spot.below[0] if len(spot.below[0].above) == 1 else None


def _wish(spot: Spot, upward: bool, both: bool) -> float:
    if spot.wrapped:
        return 0.0  # rows of one block stand below each other
    near = spot.below if upward else spot.above
    near = [*spot.above, *spot.below] if both or not near else near
    # A line through several ranks should be straight before anything else is.
    weights = [1.0 if spot.key or one.key else 12.0 for one in near]
    if not near:
        return spot.u
    return sum(one.u * w for one, w in zip(near, weights, strict=True)) / sum(weights)


def _settle(rank: list[Spot], wishes: list[float]) -> None:
    """As near to the wishes as the gaps allow, in least squares: neighbours in each other's way
    move together (pool adjacent violators)."""
    at = 0.0
    starts = []
    for n, spot in enumerate(rank):
        at += rank[n - 1].apart(spot) if n else 0.0
        starts.append(at)
    pools: list[tuple[float, int]] = []  # sum of wishes, count
    for wish, start in zip(wishes, starts, strict=True):
        total, count = wish - start, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            more, others = pools.pop()
            total, count = total + more, count + others
        pools.append((total, count))
    shifts = [total / count for total, count in pools for _ in range(count)]
    for spot, start, shift in zip(rank, starts, shifts, strict=True):
        spot.u = start + shift


def _put(picture: Picture, ranks: Ranks, sizes: Mapping[str, Size], u: float, v: float) -> float:
    """Draw the ranks from (u, v) on; returns how far they go in `v`."""
    across = 1 if picture.down else 0
    at = v

    def point(along: float, through: float) -> Point:
        return (u + along, through) if picture.down else (through, u + along)

    for rank in ranks:
        thick = max((sizes[spot.key][across] for spot in rank if spot.key), default=0.0)
        over = at + thick
        slants = [abs(one.u - spot.u) for spot in rank for one in spot.below]
        gap = min(RANK_GAP_MAX, RANK_GAP + max(slants, default=0.0) * 0.08)
        for spot in rank:
            if spot.key:
                x, y = point(spot.u - spot.breadth / 2, at)
                size = (spot.breadth, thick) if picture.down else (thick, spot.breadth)
                picture.boxes[spot.key] = Box(x, y, *size)
                picture.width = max(picture.width, x + size[0])
                picture.height = max(picture.height, y + size[1])
            else:
                picture.lines.append(Line(point(spot.u, at), point(spot.u, over), arrow=False))
                x, y = point(spot.u, over)
                picture.width = max(picture.width, x)
                picture.height = max(picture.height, y)
            picture.lines.extend(
                Line(point(spot.u, over), point(one.u, over + gap), arrow=bool(one.key))
                for one in spot.below
            )
        at = over + gap
    return over - v
