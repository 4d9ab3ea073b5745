"""When an expression fires next: a pure function of expression, zone and time (DESIGN §11).

cronsim is the calendar: it gives the times of an expression on a wall clock that never changes.
What a clock change does to them is decided here, by Debian's rules, so that no day is lost or
doubled:

- A fixed time (no field of the time of day begins with a star) fires when the wall clock shows it,
  or a later time, for the first time. One that the clock jumps over fires once, at the first
  instant after the jump, together with what else is due then; one in a repeated hour fires once.
- All others follow real time: they fire whenever the wall clock shows one of their times, so in
  both passes of a repeated hour, and never for times that the clock jumps over.
- A jump of more than LONGEST_GAP is no summer time but a day that was left out, as in Pacific/Apia
  in 2011: its times were never there, and nothing is fired for them.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Final

from qinglong_sql.cron import check_cron, check_timezone, plain_cron
from qinglong_sql.zones import zone_of

if TYPE_CHECKING:
    from cronsim import CronSim

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LAST: Final = datetime(9900, 1, 1, tzinfo=UTC)  # a search looks some decades ahead of it
SECOND: Final = timedelta(seconds=1)
MILLISECOND: Final = timedelta(milliseconds=1)
LONGEST_GAP: Final = timedelta(hours=3)
# No zone of the pinned database has changed its offset twice within this time since 1970.
LOOK: Final = timedelta(days=3)


@dataclass(frozen=True, slots=True)
class Fire:
    """One fire: the instant, and the wall time that it stands for if the clock jumped over it."""

    at: datetime
    missed: datetime | None = None

    @property
    def at_ms(self) -> int:
        return (self.at - EPOCH) // MILLISECOND


def next_fire(expression: str, zone: str, after_ms: int) -> int | None:
    """The first time later than `after_ms` at which it fires; both are epoch milliseconds.

    Nothing fires before 1970; None means not before the year 9900. Raises CronFault for an
    expression or a zone that is refused, NotReady when tzdata is not the pinned version.
    """
    found = next(fires(expression, zone, after_ms), None)
    return None if found is None else found.at_ms


def fires(expression: str, zone: str, after_ms: int) -> Iterator[Fire]:
    """Every fire later than `after_ms`, in order; as `next_fire`, and raises what it raises."""
    check_timezone(zone)
    return _fires(_calendar(expression), zone_of(zone), max(after_ms, -1))


def is_fixed(expression: str) -> bool:
    """Whether a good expression names fixed times; the others follow real time."""
    return not any(field.startswith("*") for field in plain_cron(expression).split()[:-3])


@dataclass(frozen=True, slots=True)
class _Calendar:
    expression: str
    fixed: bool

    def after(self, wall: datetime) -> "CronSim":
        """Times of a wall clock that never changes, later than `wall`; ends if there are none."""
        from cronsim import CronSim

        return CronSim(self.expression, wall)


@functools.lru_cache(maxsize=4096)
def _calendar(expression: str) -> _Calendar:
    check_cron(expression)
    return _Calendar(plain_cron(expression), is_fixed(expression))


def _fires(calendar: _Calendar, zone: tzinfo, after_ms: int) -> Iterator[Fire]:
    if after_ms >= (LAST - EPOCH) // MILLISECOND:
        return
    after = EPOCH + after_ms // 1000 * SECOND
    find = _first_shown if calendar.fixed else _next_real
    while after < LAST and (found := find(calendar, zone, after)) is not None:
        yield found
        after = found.at


def _first_shown(calendar: _Calendar, zone: tzinfo, after: datetime) -> Fire | None:
    for wall in calendar.after(_wall(after, zone)):
        found = _reached(wall, zone)
        # in the second pass of a repeated hour the calendar begins with times that have been
        if found is not None and found.at > after:
            return found
    return None


def _reached(wall: datetime, zone: tzinfo) -> Fire | None:
    """When the wall clock shows this time or a later one for the first time."""
    at = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    gap = _wall(at, zone) - wall
    if not gap:
        return Fire(at)
    return Fire(_change(zone, at - gap, at), wall) if gap <= LONGEST_GAP else None


def _next_real(calendar: _Calendar, zone: tzinfo, after: datetime) -> Fire | None:
    """The first instant at which the wall clock shows a time, from one clock change to the next."""
    start, wall = after, _wall(after, zone)
    before = wall
    while (shown := next(calendar.after(before), None)) is not None:
        at = start + (shown - wall)
        change = _next_change(zone, start, at)
        if change is None:
            return Fire(at)
        start, wall = change, _wall(change, zone)
        before = wall - SECOND
    return None


def _next_change(zone: tzinfo, start: datetime, end: datetime) -> datetime | None:
    """The first instant after `start`, up to `end`, with another offset."""
    offset = _offset(start, zone)
    while start < end:
        later = min(start + LOOK, end)
        if _offset(later, zone) != offset:
            return _change(zone, start, later)
        start = later
    return None


def _change(zone: tzinfo, low: datetime, high: datetime) -> datetime:
    """The second in (low, high] at which the offset changes; it changes once there."""
    offset = _offset(low, zone)
    while high - low > SECOND:
        middle = low + (high - low) // SECOND // 2 * SECOND
        if _offset(middle, zone) == offset:
            low = middle
        else:
            high = middle
    return high


def _wall(at: datetime, zone: tzinfo) -> datetime:
    return at.astimezone(zone).replace(tzinfo=None, fold=0)


def _offset(at: datetime, zone: tzinfo) -> timedelta | None:
    return at.astimezone(zone).utcoffset()
