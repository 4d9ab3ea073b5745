"""Fires around every clock change of every zone, against a scan that looks at each minute.

The scan and the reader of zone files (tests.tzfile) share no code with what they judge.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from functools import cache
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from qinglong_sql import cron_fire, zones
from qinglong_sql.cron import CronFault
from qinglong_sql.cron_fire import Fire, next_fire
from qinglong_sql.errors import NotReady
from tests.tzfile import DAY, FOLDER, NAMES, Change, changes, offset_at, start_of

FIRST, END = 2020, 2036
MINUTE = 60
AROUND = DAY  # before a change, and after it
# minutes of a day at which an expression fires, and whether its times are fixed
EXPRESSIONS: dict[str, tuple[Callable[[int], bool], bool]] = {
    "30 2 * * *": (lambda minute: minute == 150, True),
    "0 0 * * *": (lambda minute: minute == 0, True),
    "*/30 * * * *": (lambda minute: minute % 30 == 0, False),
    "*/20 1-2 * * *": (lambda minute: minute % 20 == 0 and 60 <= minute < 180, False),
}


@cache
def rule_sets() -> dict[tuple[int, tuple[Change, ...]], list[str]]:
    """Zones by what their clocks do in the years: the offset at the beginning, and the changes."""
    found: dict[tuple[int, tuple[Change, ...]], list[str]] = {}
    for name in NAMES:
        mine = tuple(one for one in changes(name, END)[1] if one.at >= start_of(FIRST))
        found.setdefault((offset_at(name, start_of(FIRST), END), mine), []).append(name)
    return found


@cache
def scanned(expression: str, before: int, after: int, phase: int) -> tuple[int, ...]:
    """Fires from a day before a change to a day after it, in seconds from the change.

    `phase` is the second of the day on the old clock at which it changes: what day it is does not
    matter to these expressions, so changes of one form are scanned once.
    """
    due, fixed = EXPRESSIONS[expression]
    found, highest = [], phase - AROUND - MINUTE
    for at in range(-AROUND, AROUND, MINUTE):
        wall = phase + at + (after - before if at >= 0 else 0)
        if not fixed:
            fires = due(wall // MINUTE % 1_440)
        else:  # all that the clock shows or leaves out for the first time
            news = range(highest + MINUTE, wall + MINUTE, MINUTE)
            if len(news) > 181:
                news = range(wall, wall + MINUTE, MINUTE)
            fires = any(due(minute // MINUTE % 1_440) for minute in news)
        highest = max(highest, wall)
        if fires:
            found.append(at)
    return tuple(found)


def fired(expression: str, zone: str, start: int, end: int) -> list[int]:
    found: list[int] = []
    at_ms = start * 1000 - 1
    while (fire_ms := next_fire(expression, zone, at_ms)) is not None and fire_ms < end * 1000:
        assert fire_ms % 1000 == 0 and fire_ms > at_ms
        found.append(fire_ms // 1000)
        at_ms = fire_ms
    return found


def differences(expression: str) -> list[str]:
    """Zones and times at which a fire is not what the scan says, around every change."""
    found, looked = [], 0
    for (_, mine), names in rule_sets().items():
        for one in mine:
            start, end = one.at - AROUND, one.at + AROUND
            phase = (one.at + one.before) % DAY
            wanted = [one.at + at for at in scanned(expression, one.before, one.after, phase)]
            looked += 1
            if fired(expression, names[0], start, end) != wanted:
                found.append(f"{names[0]} {one}")
    assert looked == 1_138
    return found


def test_there_are_rule_sets_of_every_kind() -> None:
    """What the scan relies on: whole minutes, far from each other, and no gap that is a day."""
    assert len(NAMES) == 597 and sum(map(len, rule_sets().values())) == 597
    assert len(rule_sets()) == 86
    every = {one for _, mine in rule_sets() for one in mine}
    assert all(one.at % MINUTE == 0 for one in every)
    jumps = {one.after - one.before for one in every}
    assert {-10_800, -3_600, -1_800, 1_800, 3_600, 7_200, 10_800} <= jumps
    assert max(map(abs, jumps)) == 10_800
    for _, mine in rule_sets():
        assert all(b.at - a.at > 4 * AROUND for a, b in pairwise(mine))


def test_no_clock_changes_twice_within_the_time_that_is_looked_ahead() -> None:
    nearest = min(
        b.at - a.at
        for name in NAMES
        for one in [[change for change in changes(name, 2100)[1] if change.at >= 0]]
        for a, b in pairwise(one)
    )
    assert nearest > 2 * cron_fire.LOOK.total_seconds()


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_around_every_change_of_every_rule_set_it_fires_as_the_minutes_say(expression: str) -> None:
    assert differences(expression) == []


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_in_a_plain_week_of_every_rule_set_it_fires_as_the_minutes_say(expression: str) -> None:
    due, _ = EXPRESSIONS[expression]
    for (offset, mine), names in rule_sets().items():
        edges = [start_of(FIRST), *(one.at for one in mine), start_of(END)]
        plain = [(a, b) for a, b in pairwise(edges) if b - a > 9 * DAY]
        start = plain[-1][0] + DAY
        at = mine[-1].after if mine and plain[-1][0] == mine[-1].at else None
        offset = offset_at(names[0], start, END) if at is None else at
        wanted = [
            minute
            for minute in range(start, start + 7 * DAY, MINUTE)
            if due((minute + offset) // MINUTE % 1_440)
        ]
        assert fired(expression, names[0], start, start + 7 * DAY) == wanted, names[0]


def in_old_time(wall: datetime, zone: tzinfo) -> Fire:
    """A gap taken as others take it: 02:30 becomes 03:30."""
    return Fire(wall.replace(tzinfo=zone).astimezone(UTC))


def second_pass(wall: datetime, zone: tzinfo) -> Fire | None:
    """A fixed time in a repeated hour fires in the second pass."""
    later = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    there = later.astimezone(zone).replace(tzinfo=None, fold=0) == wall
    return Fire(later) if there else RIGHT(wall, zone)


RIGHT = cron_fire._reached


@pytest.mark.parametrize(
    ("name", "broken", "expression"),
    [
        pytest.param("_reached", in_old_time, "30 2 * * *", id="gap"),
        pytest.param("_reached", second_pass, "30 2 * * *", id="fold"),
        pytest.param("_next_change", lambda *_: None, "*/20 1-2 * * *", id="real time"),
    ],
)
def test_a_clock_change_that_is_taken_badly_is_seen(
    monkeypatch: pytest.MonkeyPatch, name: str, broken: Callable[..., object], expression: str
) -> None:
    monkeypatch.setattr(cron_fire, name, broken)
    assert len(differences(expression)) > 100


# -- one pinned database


def test_every_zone_is_read_from_the_package() -> None:
    """Offsets on both sides of every change from 1970 to 2036, by another reader of the files."""
    for name in NAMES:
        zone = zones.zone_of(name)
        assert zone.key == name
        for one in changes(name, END)[1]:
            if one.at > 0:
                assert offset_of(zone, one.at - 1) == one.before, (name, one)
                assert offset_of(zone, one.at) == one.after, (name, one)


def offset_of(zone: ZoneInfo, at: int) -> float:
    offset = datetime.fromtimestamp(at, zone).utcoffset()
    assert offset is not None
    return offset.total_seconds()


def test_the_pinned_version_is_the_one_that_is_installed_and_required() -> None:
    pyproject = Path(__file__).parent.parent / "pyproject.toml"
    assert f'"tzdata=={zones.TZDATA}"' in pyproject.read_text(encoding="utf-8")
    assert (
        (FOLDER / "zoneinfo" / "tzdata.zi")
        .read_text()
        .startswith(f"# version {zones.TZ_RELEASE}\n")
    )
    zones.assert_pinned()


def test_another_version_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    zones.zone_of.cache_clear()
    monkeypatch.setattr("tzdata.__version__", "2025.2")
    with pytest.raises(NotReady, match=r"pip install 'tzdata==2026\.6'"):
        next_fire("0 0 * * *", "Europe/Berlin", 0)


def test_rules_are_those_of_the_pinned_release() -> None:
    """Both changed after the 2025b that this machine may have of its own."""
    december = 1_796_083_200_000  # 2026-12-01 00:00 UTC
    noon = {"America/Vancouver": 19, "Africa/Casablanca": 12}
    for name, hour in noon.items():
        assert next_fire("0 12 * * *", name, december) == december + hour * 3_600_000, name


def test_neither_the_host_nor_the_environment_changes_an_answer(tmp_path: Path) -> None:
    """A process whose TZ, PYTHONTZPATH and working folder all say otherwise."""
    forged = tmp_path / "Europe"
    forged.mkdir()
    (forged / "Berlin").write_bytes((FOLDER / "zoneinfo" / "Asia" / "Tokyo").read_bytes())
    program = (
        "from zoneinfo import ZoneInfo; from datetime import datetime\n"
        "from qinglong_sql.cron_fire import next_fire\n"
        "print(ZoneInfo('Europe/Berlin').utcoffset(datetime(2026, 1, 1)).seconds,"
        " next_fire('30 2 * * *', 'Europe/Berlin', 1774699200000))"
    )
    here = str(Path(__file__).parent.parent)
    env = {**os.environ, "PYTHONTZPATH": str(tmp_path), "TZ": "Asia/Tokyo", "PYTHONPATH": here}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=env, capture_output=True, encoding="utf-8", check=True,
    )  # fmt: skip
    assert done.stdout == "32400 1774746000000\n", "zoneinfo is deceived, and we are not"


def test_a_name_that_is_no_zone_reads_no_file() -> None:
    for name in ("../zones", "Factory", "tzdata.zi", ""):
        with pytest.raises(KeyError):
            zones.zone_of(name)
        with pytest.raises(CronFault):
            next_fire("0 0 * * *", name, 0)
