"""Clock changes as the files of the tzdata package have them (RFC 9636), read by hand.

The tests judge the product by these, so nothing of it, and not zoneinfo either, is used here.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import tzdata

DAY = 86_400
FOLDER = Path(tzdata.__file__).parent
NAMES = sorted(
    set((FOLDER / "zones").read_text(encoding="ascii").split())
    - {"Factory", "localtime", "posixrules"}
)
OFFSET = r"([+-]?\d+(?::\d+){0,2})"
NAME = r"(?:[A-Za-z]+|<[A-Za-z0-9+-]+>)"
RULE = r"M(\d+)\.(\d)\.(\d)(?:/([+-]?\d+(?::\d+){0,2}))?"
FOOTER = re.compile(rf"{NAME}{OFFSET}(?:{NAME}{OFFSET}?,{RULE},{RULE})?")


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """A change of offset: its instant, the offset before and after it, all in seconds."""

    at: int
    before: int
    after: int


def start_of(year: int) -> int:
    return int(datetime(year, 1, 1, tzinfo=UTC).timestamp())


@cache
def changes(name: str, until: int) -> tuple[int, tuple[Change, ...]]:
    """The first offset of a zone, and every change of it before the year `until`."""
    raw = (FOLDER / "zoneinfo" / name).read_bytes()
    counts, start = head(raw, 0)
    utc, std, leaps, times, types, chars = counts
    counts, start = head(raw, start + 5 * times + 6 * types + chars + 8 * leaps + std + utc)
    utc, std, leaps, times, types, chars = counts
    instants = struct.unpack_from(f">{times}q", raw, start)
    kinds = raw[start + 8 * times : start + 9 * times]
    offsets = [struct.unpack_from(">l", raw, start + 9 * times + 6 * n)[0] for n in range(types)]
    end = start + 9 * times + 6 * types + chars + 12 * leaps + std + utc
    steps = list(zip(instants, (offsets[kind] for kind in kinds), strict=True))
    last = instants[-1] if instants else -(2**60)
    steps += [step for step in footer(raw[end:].strip().decode(), last, until) if step[0] > last]
    found, before = [], offsets[0]
    for at, after in steps:
        if after != before and at < start_of(until):
            found.append(Change(at, before, after))
        before = after
    return offsets[0], tuple(found)


def head(raw: bytes, start: int) -> tuple[tuple[int, ...], int]:
    assert raw[start : start + 4] == b"TZif" and raw[start + 4 : start + 5] >= b"2"
    return struct.unpack_from(">6l", raw, start + 20), start + 44


def footer(text: str, last: int, until: int) -> Iterator[tuple[int, int]]:
    """Changes by the rule at the end of a file, from the year of its last one."""
    found = FOOTER.fullmatch(text)
    assert found, text
    if found[3] is None:
        return
    standard = -seconds(found[1])
    summer = -seconds(found[2]) if found[2] else standard + 3_600
    first = 1970 if last < 0 else datetime.fromtimestamp(last, UTC).year
    for year in range(first, until):
        into = day_of(year, *found.group(3, 4, 5)) + seconds(found[6] or "2") - standard
        out = day_of(year, *found.group(7, 8, 9)) + seconds(found[10] or "2") - summer
        yield from sorted([(into, summer), (out, standard)])


def seconds(text: str) -> int:
    sign = -1 if text[0] == "-" else 1
    parts = [int(part) for part in text.lstrip("+-").split(":")]
    return sign * sum(part * unit for part, unit in zip(parts, (3_600, 60, 1), strict=False))


def day_of(year: int, month: str, week: str, weekday: str) -> int:
    """Midnight, as if in UTC, of the n-th such weekday of a month; week 5 is the last one."""
    at = datetime(year, int(month), 1, tzinfo=UTC)
    at += timedelta(days=(int(weekday) - at.isoweekday()) % 7 + 7 * (int(week) - 1))
    if at.month != int(month):
        at -= timedelta(days=7)
    return int(at.timestamp())


def offset_at(name: str, at: int, until: int) -> int:
    offset, found = changes(name, until)
    for change in found:
        if change.at > at:
            break
        offset = change.after
    return offset
