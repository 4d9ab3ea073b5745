"""A day on a fast clock: whole crontabs imported, published, fired and run; every run is counted.

The number of runs comes from a count of its own: `wanted` looks at each minute of the day and asks
nobody else what a cron expression means. Its rules are crontab(5)'s and Debian's for clock changes.
"""

from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from qinglong_sql.cli.package import publish_package
from qinglong_sql.package import load_package
from tests import acting
from tests.acting import Store
from tests.firing import Driver
from tests.shell import Shell
from tests.stores import FakeClock

LISTS = Path(__file__).parent / "crontabs"
MINUTE_MS = 60_000
WAKE_MS = 60 * MINUTE_MS
OFTEN = 100  # fires a day; what fires more often is driven over an hour, not over the day
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
NAMES = {name: number for number, name in enumerate(MONTHS, start=1)}
NAMES |= {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
MACROS = {"@hourly": "0 * * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
          "@monthly": "0 0 1 * *"}  # fmt: skip
RANGES = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


class Plain:
    """An expression as six sets of numbers."""

    def __init__(self, expr: str) -> None:
        texts = MACROS.get(expr.lower(), expr).lower().split()
        self.fixed = not any(text[0] == "*" for text in texts[:-3])
        texts = ["0"] * (len(texts) == 5) + texts
        sets = [members(text, *bounds) for text, bounds in zip(texts, RANGES, strict=True)]
        self.seconds, self.minutes, self.hours, self.days, self.months, weekdays = sets
        self.weekdays = {number % 7 for number in weekdays}
        self.both = texts[3][0] == "*" or texts[5][0] == "*"

    def matches(self, wall: datetime) -> bool:
        if wall.minute not in self.minutes or wall.hour not in self.hours:
            return False
        day, weekday = wall.day in self.days, wall.isoweekday() % 7 in self.weekdays
        return wall.month in self.months and (day and weekday if self.both else day or weekday)


def members(text: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for term in text.split(","):
        body, _, step = term.partition("/")
        ends = [low, high] if body == "*" else [
            NAMES[end] if end in NAMES else int(end) for end in body.split("-")
        ]  # fmt: skip
        found.update(range(ends[0], ends[-1] + 1, int(step or 1)))
    return found


def wanted(expr: str, tz: str, start: datetime, end: datetime) -> list[int]:
    """When it fires, in milliseconds: each minute of the time is looked at.

    A fixed time (no field of the time of day begins with a star) that the clock jumps over fires
    once when it has jumped, and not again in an hour that comes twice.
    """
    plain, found = Plain(expr), []
    for at_ms, wall, missed in minutes(tz, start, end):
        times = {at_ms} if plain.fixed and any(map(plain.matches, missed)) else set()
        if plain.matches(wall) and not (plain.fixed and wall.fold):
            times |= {at_ms + 1000 * second for second in plain.seconds}
        found += sorted(times)
    return found


@cache
def minutes(
    tz: str, start: datetime, end: datetime
) -> list[tuple[int, datetime, tuple[datetime, ...]]]:
    """Each minute, in milliseconds and on the wall, and those that the wall clock left out."""
    zone, found = ZoneInfo(tz), []
    at, before = start, (start - timedelta(minutes=1)).astimezone(zone)
    while at < end:
        wall = at.astimezone(zone)
        jump = (wall.replace(tzinfo=None) - before.replace(tzinfo=None)) // timedelta(minutes=1)
        missed = tuple(wall - timedelta(minutes=n) for n in range(1, jump))
        found.append((int(at.timestamp() * 1000), wall, missed))
        before, at = wall, at + timedelta(minutes=1)
    return found


def local(tz: str, *parts: int, fold: int = 0) -> datetime:
    year, month, day, *time = parts
    return datetime(year, month, day, *time, tzinfo=ZoneInfo(tz), fold=fold).astimezone(UTC)


def published(store: Store, folder: Path, name: str, tz: str) -> dict[str, str]:
    """Import a list as its user would, with another zone, and publish it; its times by trigger."""
    text = (LISTS / f"{name}.crontab").read_text().replace("CRON_TZ=Asia/Shanghai\n", "")
    shell = Shell(folder, "sqlite:///never.db")
    shell.write("list", text)
    done = shell("import-crontab", "list", "--tz", tz, "--output", "crontab.yaml")
    assert done.returncode in (0, 1), done.stderr
    publish_package(store, load_package(folder / "crontab.yaml"))
    rows = store.read("trigger_state", package_key="crontab")
    assert {row["tz"] for row in rows} == {tz}
    return {row["trigger_key"]: row["cron"] for row in rows}


@cache
def busy(cron: str) -> bool:
    """Whether it fires more often than OFTEN times on a Sunday that is the first of a month."""
    return len(wanted(cron, "UTC", local("UTC", 2026, 11, 1), local("UTC", 2026, 11, 2))) > OFTEN


def pause(store: Store, keys: set[str]) -> None:
    for key in keys:
        store.call("pause_trigger", p_package_key="crontab", p_trigger_key=key)


SHANGHAI, NEW_YORK = "Asia/Shanghai", "America/New_York"
DAYS = [
    # 110 of five fields, which the list came with, and the one with seconds
    pytest.param("qinglong", SHANGHAI, (2026, 8, 1), 24, 111, id="first of August"),
    pytest.param("qinglong", SHANGHAI, (2028, 2, 29), 24, None, id="leap day"),
    pytest.param("qinglong", NEW_YORK, (2026, 3, 8), 23, None, id="an hour is missing"),
    pytest.param("assorted", NEW_YORK, (2026, 11, 1), 25, None, id="Sunday, first, hour twice"),
]


@pytest.mark.parametrize(("name", "tz", "day", "hours", "total"), DAYS)
def test_every_run_of_a_day_is_there_once(
    store: Store, clock: FakeClock, tmp_path: Path,
    name: str, tz: str, day: tuple[int, int, int], hours: int, total: int | None,
) -> None:  # fmt: skip
    """Six lines that fire more often than OFTEN have an hour of their own below: they would be nine
    runs in ten of a day, and each is like the one before."""
    lines = published(store, tmp_path, name, tz)
    assert len(lines) == {"qinglong": 97, "assorted": 91}[name]
    often = {key for key, cron in lines.items() if busy(cron)}
    assert len(often) == {"qinglong": 0, "assorted": 6}[name]
    pause(store, often)
    start = local(tz, *day)
    end = start + timedelta(hours=hours)
    assert end.astimezone(ZoneInfo(tz)).hour == 0
    times = {key: wanted(lines[key], tz, start, end) for key in lines.keys() - often}
    runs = driven(store, clock, times, start, end)
    assert total is None or runs == total
    assert runs > 100


def test_busy_lines_fire_through_an_hour_that_comes_twice(
    store: Store, clock: FakeClock, tmp_path: Path
) -> None:
    lines = published(store, tmp_path, "assorted", NEW_YORK)
    often = {key for key, cron in lines.items() if busy(cron)}
    pause(store, lines.keys() - often)
    start, end = local(NEW_YORK, 2026, 11, 1, 1, 40), local(NEW_YORK, 2026, 11, 1, 1, 50, fold=1)
    assert end - start == timedelta(minutes=70)
    times = {key: wanted(lines[key], NEW_YORK, start, end) for key in often}
    assert sorted(map(len, times.values())) == [7, 14, 70, 70, 70, 70]
    assert driven(store, clock, times, start, end) == 301


def driven(
    store: Store, clock: FakeClock, times: dict[str, list[int]], start: datetime, end: datetime
) -> int:
    """Fire and run all of it, compare, and repeat some of it; the number of runs."""
    clock.set(int(start.timestamp() * 1000))
    driver = Driver(store, clock)
    driver.pass_time(int(end.timestamp() * 1000), every_ms=WAKE_MS)
    fired: dict[str, list[int]] = {key: [] for key in times}
    for key, at_ms in driver.fired:
        fired[key].append(at_ms)
    assert fired == times
    counted = Counter({key: len(found) for key, found in times.items() if found})
    assert driver.counts() == counted
    for key, at_ms in (driver.fired[0], *driver.fired[:: len(driver.fired) // 10]):
        assert driver.fire(key, at_ms)["outcome"] == "existing"
    driver.settle()
    assert driver.counts() == counted
    assert acting.unbroken(store)
    return counted.total()


def test_the_count_agrees_with_a_calendar_by_hand() -> None:
    """What `wanted` says, worked out on paper."""
    start, end = local(NEW_YORK, 2026, 3, 8), local(NEW_YORK, 2026, 3, 9)
    jump = int(local(NEW_YORK, 2026, 3, 8, 3).timestamp() * 1000)
    assert wanted("15,45 2 * * *", NEW_YORK, start, end) == [jump]
    assert wanted("0 2,3 * * *", NEW_YORK, start, end) == [jump]
    assert len(wanted("0 * * * *", NEW_YORK, start, end)) == 23
    assert len(wanted("*/20 2 * * *", NEW_YORK, start, end)) == 0
    start, end = local(NEW_YORK, 2026, 11, 1), local(NEW_YORK, 2026, 11, 2)
    assert len(wanted("30 1 * * *", NEW_YORK, start, end)) == 1
    assert len(wanted("*/30 1 * * *", NEW_YORK, start, end)) == 4
    assert len(wanted("1,2 3 1 * 1", NEW_YORK, start, end)) == 2  # the first, or a Monday
    assert len(wanted("1 3 2-8 * */7", NEW_YORK, start, end)) == 0  # those days, if Sundays
    assert len(wanted("5,6 0 0 * nov 7", NEW_YORK, start, end)) == 2
    assert len(wanted("5,6 30 1 * * *", NEW_YORK, start, end)) == 2
    assert len(wanted("*/30 30 1 * * *", NEW_YORK, start, end)) == 4
