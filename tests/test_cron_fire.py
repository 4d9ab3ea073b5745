"""When expressions fire, by the shared cases and by what holds for any expression and time."""

import json
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qinglong_sql.cron import CronFault, check_cron
from qinglong_sql.cron_fire import LAST, fires, is_fixed, next_fire
from tests.tzfile import DAY, NAMES, Change, changes

CASES = Path(__file__).resolve().parent.parent.parent / "shared" / "cases" / "cron.json"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MINUTE_MS = 60_000
NEW_YORK = "America/New_York"


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def times(expression: str, zone: str, after_ms: int, count: int) -> list[int]:
    """What next_fire gives, each asked with the one before."""
    found: list[int] = []
    while len(found) < count:
        at_ms = next_fire(expression, zone, found[-1] if found else after_ms)
        if at_ms is None:
            break
        found.append(at_ms)
    return found


def shared(group: str) -> list[dict[str, Any]]:
    if not CASES.exists():
        pytest.skip(f"no shared cases at {CASES}")
    cases: list[dict[str, Any]] = json.loads(CASES.read_text(encoding="utf-8"))[group]
    return cases


# -- the shared cases


def test_real_expressions_fire_when_they_should() -> None:
    """What is accepted fires at the three times of the file; what is refused fires never."""
    judged = refused = 0
    for case in shared("expressions"):
        expression, known = case["expr"], case.get("next_utc")
        try:
            check_cron(expression)
        except CronFault:
            with pytest.raises(CronFault):
                next_fire(expression, "UTC", 0)
            refused += 1
            continue
        wanted = known["fires"] if known else case["libs_accept"]["cronsim"]
        after = known["after"] if known else "2026-02-27T23:58:30Z"
        assert times(expression, "UTC", ms(after), 3) == list(map(ms, wanted)), case
        judged += 1
    assert (judged, refused) == (90, 60)


def test_real_clock_changes_are_taken_as_debian_does() -> None:
    judged = 0
    for case in shared("dst_cases"):
        wanted = [ms(one["utc"]) for one in case["expected_vixie"]]
        after = ms(case["after_utc"])
        assert times(case["expr"], case["tz"], after, len(wanted)) == wanted, case
        assert is_fixed(case["expr"]) == (case["job_kind"] == "fixed-time"), case
        for at_ms, text in zip(wanted, case["expected_vixie"], strict=True):
            assert ms(text["local"]) == at_ms
        judged += 1
    assert judged == 38


def test_asked_at_any_minute_of_a_case_the_answer_is_the_same_list() -> None:
    """A process that starts anew, within a gap, a fold or anywhere else, goes on as if it had not.

    Every seventh minute from the first time on, and just before, at and just after each fire.
    """
    for case in shared("dst_cases"):
        expression, zone = case["expr"], case["tz"]
        wanted = [ms(one["utc"]) for one in case["expected_vixie"]]
        asked = {at_ms + more for at_ms in wanted[:-1] for more in (-1000, -1, 0, 1, 999)}
        asked |= set(range(wanted[0], min(wanted[-1], wanted[0] + 2 * DAY_MS), 7 * MINUTE_MS))
        for after in sorted(asked):
            due = next((at_ms for at_ms in wanted if at_ms > after), None)
            if due is not None:
                assert next_fire(expression, zone, after) == due, (case, after)


def test_real_zone_names_lead_to_a_time_or_a_reason() -> None:
    for case in shared("timezone_names"):
        if case["expected"].startswith("accept"):
            assert next_fire("0 12 * * *", case["name"], 0) is not None
        else:
            with pytest.raises(CronFault):
                next_fire("0 12 * * *", case["name"], 0)
    assert next_fire("0 12 * * *", "Etc/GMT-8", 0) == 4 * HOUR_MS, "eight hours ahead"


# -- single rules


def test_a_fire_that_is_moved_says_for_which_time_it_stands() -> None:
    found = list(islice(fires("30 2 * * *", NEW_YORK, ms("2026-03-07T12:00:00Z")), 2))
    assert found[0].missed == datetime(2026, 3, 8, 2, 30)
    assert found[0].at == datetime(2026, 3, 8, 7, tzinfo=UTC)
    assert found[1].missed is None


def test_seconds_follow_the_same_rules() -> None:
    gap, fold = ms("2026-03-08T05:00:00Z"), ms("2026-11-01T04:00:00Z")
    noon = ms("2026-03-08T16:00:00Z")
    assert times("15,45 30 2 * * *", NEW_YORK, gap, 2) == [
        ms("2026-03-08T07:00:00Z"), ms("2026-03-09T06:30:15Z"),
    ]  # fmt: skip
    assert times("5 30 1 * * *", NEW_YORK, fold, 2) == [
        ms("2026-11-01T05:30:05Z"), ms("2026-11-02T06:30:05Z"),
    ]  # fmt: skip
    assert times("*/30 30 1 * * *", NEW_YORK, fold, 4) == [
        ms(f"2026-11-01T0{hour}:30:{second}Z") for hour in (5, 6) for second in ("00", "30")
    ]
    assert times("*/20 * * * * *", NEW_YORK, noon + 1, 2) == [noon + 20_000, noon + 40_000]


def test_a_star_that_meets_a_gap_has_nothing_to_make_up_for() -> None:
    after = ms("2026-03-08T05:00:00Z")
    assert times("*/20 2 * * *", NEW_YORK, after, 1) == [ms("2026-03-09T06:00:00Z")]


def test_a_day_that_was_left_out_is_not_made_up_for_by_either_kind() -> None:
    """Pacific/Apia had no 30 December 2011."""
    before = ms("2011-12-29T00:00:00-10:00")
    for expression in ("0 12 * * *", "*/60 12 * * *"):
        assert times(expression, "Pacific/Apia", before, 2) == [
            ms("2011-12-29T12:00:00-10:00"), ms("2011-12-31T12:00:00+14:00"),
        ]  # fmt: skip
    assert times("0 0 * * *", "Pacific/Apia", before, 2) == [
        ms("2011-12-31T00:00:00+14:00"), ms("2012-01-01T00:00:00+14:00"),
    ]  # fmt: skip


def test_rare_days_are_found_and_soon() -> None:
    after = ms("2096-03-01T00:00:00Z")
    assert next_fire("0 0 29 2 *", "UTC", after) == ms("2104-02-29T00:00:00Z")
    # a leap day that is a Sunday: 40 years when a century is not a leap year
    assert next_fire("0 0 29 2 */7", "UTC", after) == ms("2128-02-29T00:00:00Z")
    assert next_fire("* * 29 2 */7", NEW_YORK, after) == ms("2128-02-29T00:00:00-05:00")


def test_what_never_fires_is_refused_and_the_end_of_time_is_none() -> None:
    for expression in ("0 0 30 2 *", "0 0 31 4,6 */2"):
        with pytest.raises(CronFault, match="never fires"):
            next_fire(expression, "UTC", 0)
    last = round(LAST.timestamp() * 1000)
    for after in (last, last + 1, 10**18, 2**63 - 1, 10**30):
        assert next_fire("* * * * *", "Europe/Berlin", after) is None
        assert next_fire("0 0 29 2 */7", "Europe/Berlin", after) is None
    for expression in ("* * * * *", "0 0 * * *", "0 0 29 2 */7", "* * 29 2 */7"):
        found = next_fire(expression, "Europe/Berlin", last - 1)
        assert found is not None and found >= last


def test_nothing_fires_before_1970() -> None:
    for after in (-1, -2, -(10**9), -(10**30)):
        assert next_fire("* * * * *", "UTC", after) == 0
    assert next_fire("* * * * *", "UTC", 0) == MINUTE_MS


# -- whatever the expression, the zone and the time


def near_changes(zone: str) -> list[Change]:
    """What a zone changes from 1970 to 2036, without days that are left out."""
    found = [one for one in changes(zone, 2036)[1] if one.at > 2 * DAY]
    return [one for one in found if one.after - one.before <= 3 * 3_600]


ZONES = st.sampled_from(
    [name for name in NAMES if near_changes(name)]
    + ["Antarctica/Troll", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Beirut"] * 20
)
AFTER = st.integers(ms("2000-01-01T00:00:00Z"), ms("2037-01-01T00:00:00Z"))
MINUTES = st.sampled_from(["*", "*/30", "*/7", "0", "30", "15,45", "0-59/20", "59"])
HOURS = st.sampled_from(["*", "*/2", "0", "1", "2", "1-3", "23", "0,12", "22-23"])
DAYS = st.sampled_from(["* * *", "* * *", "1 * *", "*/2 * *", "* * 0", "29 3 *", "1-7 * */7"])


@settings(max_examples=400, deadline=None)
@given(MINUTES, HOURS, DAYS, ZONES, AFTER, st.floats(0, 1, exclude_max=True))
@example("30", "1", "* * *", NEW_YORK, ms("2026-11-01T05:29:00Z"), 0.5)
@example("*/7", "*", "* * *", "Australia/Lord_Howe", ms("2026-04-04T14:31:00Z"), 0.9)
def test_times_only_grow_and_do_not_depend_on_when_they_are_asked_for(
    minutes: str, hours: str, days: str, zone: str, after: int, part: float
) -> None:
    expression = f"{minutes} {hours} {days}"
    found = times(expression, zone, after, 6)
    assert len(found) == 6 and found[0] > after
    assert [fire.at_ms for fire in islice(fires(expression, zone, after), 6)] == found
    for one, two in pairwise([after, *found]):
        assert one < two
        between = one + int((two - one) * part)
        assert next_fire(expression, zone, between) == two
        assert next_fire(expression, zone, two - 1) == two


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 23), st.integers(0, 59), ZONES, AFTER)
@example(2, 30, NEW_YORK, ms("2026-01-01T00:00:00Z"))
@example(0, 0, "Asia/Beirut", ms("2026-01-01T00:00:00Z"))
@example(23, 45, "Asia/Pyongyang", ms("2018-01-01T00:00:00Z"))
def test_a_fixed_time_has_every_day_and_no_day_twice(
    hour: int, minute: int, zone: str, after: int
) -> None:
    """After any number of days it is that number of days later, but for what the clock changed.

    Left out are days that the clock itself leaves out: there are two such zones in these years.
    """
    found = times(f"{minute} {hour} * * *", zone, after, 500)
    left_out = zone in ("Pacific/Apia", "Pacific/Fakaofo")
    for days, at_ms in enumerate(found):
        late = at_ms - found[0] - days * DAY_MS
        assert abs(late) <= 5 * HOUR_MS or (left_out and abs(late + DAY_MS) <= 5 * HOUR_MS)
    for one, two in pairwise(found):
        assert 20 * HOUR_MS < two - one < 28 * HOUR_MS or left_out


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 23), st.integers(0, 59), ZONES, st.data())
def test_a_fixed_time_fires_when_the_clock_first_shows_it_or_a_later_one(
    hour: int, minute: int, zone: str, draw: st.DataObject
) -> None:
    """Near a clock change, by the offsets of the files alone."""
    change = draw.draw(st.sampled_from(near_changes(zone)))
    wall = (change.at + change.before) // 86_400 * 86_400 + hour * 3_600 + minute * 60
    at = wall - change.before  # on the old clock
    if at >= change.at:
        at = max(change.at, wall - change.after)
    got = next_fire(f"{minute} {hour} * * *", zone, at * 1000 - 1)
    assert got == at * 1000
    again = next_fire(f"{minute} {hour} * * *", zone, got)
    assert again is not None and again - got > 20 * HOUR_MS


def test_local_times_are_those_that_were_asked_for() -> None:
    """Over a plain month, in zones whose offsets are no whole hours."""
    for zone, ahead in (("Asia/Kathmandu", 345), ("Pacific/Chatham", 765), ("UTC", 0)):
        start = datetime(2026, 6, 1, tzinfo=UTC)
        found = times("45 6 * * 1-5", zone, round(start.timestamp() * 1000), 20)
        local = [start + timedelta(milliseconds=at - start.timestamp() * 1000, minutes=ahead)
                 for at in found]  # fmt: skip
        assert {(one.hour, one.minute) for one in local} == {(6, 45)}
        assert {one.isoweekday() for one in local} == {1, 2, 3, 4, 5}
