"""Which cron expressions and time zone names a trigger may use, and why the others are refused."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cronsim import CronSim
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qinglong_sql.cron import (
    FIELDS,
    MACROS,
    SECOND,
    CronFault,
    check_cron,
    check_timezone,
    plain_cron,
    timezone_warning,
)

CASES = Path(__file__).resolve().parent.parent.parent / "shared" / "cases" / "cron.json"
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)

GOOD = [
    "* * * * *", "30 2 * * *", "*/5 * * * *", "0 0-23/6 1,15 * mon-FRI", "0 4 * * 7",
    "0 0 * * 5-7", "0 0 29 2 *", "15 * * * * *", "*/10 0 0 * * sun", "25 6\t* *  *",
    "  0 9 * * *\n", "0 0 1 JAN *",
    "1 1 */100,1-7 * MON", "0 0 31 2 1", "0 */24 * * *", *MACROS, "@Daily",
]  # fmt: skip
# expression: a word that its reason must hold
REFUSED = {
    "": "empty",
    "* * * *": "4 fields",
    "* * * * * * *": "7 fields",
    "60 * * * *": "minute: 60",
    "* 24 * * *": "hour: 24",
    "* * 0 * *": "day of month: 0",
    "* * * 13 *": "month: 13",
    "* * * * 8": "day of week: 8",
    "60 * * * * *": "second: 60",
    "* * * * mun": "day of week: 'mun'",
    "* * * mon *": "month: 'mon'",
    "1,,2 * * * *": "minute: an entry is empty",
    "*/0 * * * *": "step 0",
    "*/ * * * *": "no step",
    "*/-1 * * * *": "no step",
    "1/4 * * * *": "write 1-59/4",
    "5-5/10 * * * *": "without a range",
    "*/90 * * * *": "step 90",
    "40-20 * * * *": "backwards",
    "0 0 * * fri-sun": "backwards",
    "-5 * * * *": "lacks a number",
    "1-2-3 * * * *": "not a number",
    "0 0 L * *": "L (",
    "0 0 L-3 * *": "L (",
    "0 0 * * 5L": "L (",
    "0 0 1W * *": "W (",
    "0 0 * * fri#2": "# (",
    "0 0 ? * *": "write *",
    "H * * * *": "H (",
    "H(0-7) * * * *": "H (",
    "@reboot": "@reboot is not a time",
    "@every 5m": "not a macro",
    "TZ=UTC 0 0 * * *": "in tz",
    "CRON_TZ=UTC 0 0 * * *": "in tz",
    "cron(0 0 * * ? *)": "another system",
    "0 0 31 2 *": "never fires",
    "0 0 31 4,6,9,11 *": "never fires",
    "0 0 31 2 */2": "never fires",
    "0 9 * * *\n* * * * *": "more than one line",
    "０ 9 * * *": "ASCII",
    "9" * 5000 + " * * * *": "out of range",
    "61 25 * * *": "minute: 61 is out of range 0-59; hour: 25",
}
ZONES_REFUSED = {
    "": "empty",
    "CST": "abbreviation",
    "IST": "abbreviation",
    "UTC+8": "offset",
    "+08:00": "offset",
    "8": "offset",
    "europe/berlin": "spelt Europe/Berlin",
    " Asia/Shanghai": "blank",
    "China Standard Time": "not an IANA",
    "Etc/Unknown": "not an IANA",
    "Factory": "not an IANA",
    "../../etc/passwd": "not an IANA",
    "Asia/Shanghai\0x": "not an IANA",
}


def accepted(expr: str) -> bool:
    try:
        check_cron(expr)
    except CronFault as fault:
        assert str(fault)
        return False
    return True


@pytest.mark.parametrize("expr", GOOD)
def test_a_good_expression_is_accepted_and_the_calendar_can_read_it(expr: str) -> None:
    check_cron(expr)
    assert next(CronSim(plain_cron(expr), NEW_YEAR)) > NEW_YEAR


@pytest.mark.parametrize("expr", REFUSED, ids=lambda expr: expr[:24])
def test_an_expression_is_refused_with_a_reason(expr: str) -> None:
    with pytest.raises(CronFault) as caught:
        check_cron(expr)
    assert REFUSED[expr] in str(caught.value)
    assert len(str(caught.value)) < 300


def _terms(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    ends = st.tuples(number, number).map(lambda two: f"{min(two)}-{max(two)}")
    step = st.integers(1, 70).map(lambda n: f"/{n}")
    base = st.just("*") | number.map(str) | ends
    return st.tuples(base, step | st.just("")).map("".join)


def _expressions() -> st.SearchStrategy[str]:
    fields = [
        st.lists(_terms(field.low, field.high), min_size=1, max_size=3).map(",".join)
        for field in (SECOND, *FIELDS)
    ]
    return st.tuples(*fields).map(" ".join) | st.tuples(*fields[1:]).map(" ".join)


@settings(max_examples=300, deadline=None)
@given(_expressions())
@example("5-5/10 * * * *")
@example("0 0 * * 6,7")
def test_what_is_accepted_means_the_same_to_the_calendar(expr: str) -> None:
    """cronsim is the calendar: it must read every accepted field as Debian's cron would."""
    if not accepted(expr):
        return
    sim = CronSim(expr, NEW_YEAR)
    texts = expr.split()
    found = [sim.minutes, sim.hours, sim.days, sim.months, sim.weekdays]
    fields = list(FIELDS)
    if len(texts) == 6:
        found, fields = [sim.seconds, *found], [SECOND, *fields]
    for text, values, field in zip(texts, found, fields, strict=True):
        assert values == _members(text, field.low, field.high), text


def _members(text: str, low: int, high: int) -> set[int]:
    """The values of a numeric field, restated from crontab(5)."""
    members = set()
    for term in text.split(","):
        body, _, step = term.partition("/")
        first, _, last = (f"{low}-{high}" if body == "*" else body).partition("-")
        members |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return members


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=30) | st.text("0123456789*/-,LW#?H@ \tmonjan", max_size=30))
def test_any_text_is_accepted_or_refused_with_a_reason(text: str) -> None:
    if accepted(text):
        next(CronSim(plain_cron(text), NEW_YEAR), None)


@pytest.mark.parametrize(
    "name",
    ["UTC", "Europe/Berlin", "Asia/Shanghai", "Asia/Chongqing", "America/Indianapolis",
     "US/Central", "Etc/GMT-8", "America/Argentina/Buenos_Aires", "EST"],
)  # fmt: skip
def test_a_zone_of_the_iana_list_is_accepted(name: str) -> None:
    check_timezone(name)


@pytest.mark.parametrize("name", ZONES_REFUSED)
def test_any_other_zone_name_is_refused_with_a_reason(name: str) -> None:
    with pytest.raises(CronFault, match=ZONES_REFUSED[name]):
        check_timezone(name)


def test_a_zone_that_means_something_else_than_it_says_is_warned_of() -> None:
    assert "UTC+8" in (timezone_warning("Etc/GMT-8") or "")
    assert "UTC-5" in (timezone_warning("Etc/GMT+5") or "")
    assert "summer time" in (timezone_warning("EST") or "")
    assert timezone_warning("Europe/Berlin") is None


def shared_cases() -> dict[str, list[dict[str, str]]]:
    if not CASES.exists():
        pytest.skip(f"no shared cases at {CASES}")
    cases: dict[str, list[dict[str, str]]] = json.loads(CASES.read_text(encoding="utf-8"))
    return cases


def test_real_expressions_get_their_verdicts() -> None:
    judged = 0
    for case in shared_cases()["expressions"]:
        must, expr = case["expected"], case["expr"]
        if must == "accept" or case["class"] == "macro":
            assert accepted(expr), case
        elif must.startswith("reject"):
            assert not accepted(expr), case
        elif case["class"] == "seconds6":
            assert accepted(expr), case
        else:
            assert must.startswith("either"), case
            assert not accepted(expr), case
        judged += 1
    assert judged >= 100


def test_refused_real_expressions_name_their_field() -> None:
    names = [field.name for field in (SECOND, *FIELDS)]
    for case in shared_cases()["expressions"]:
        fields = len(case["expr"].split())
        if case["expected"] == "reject with the field named" and fields in (5, 6):
            with pytest.raises(CronFault) as caught:
                check_cron(case["expr"])
            reason = str(caught.value)
            assert any(f"{name}:" in reason for name in names) or "ASCII" in reason, case


def test_real_zone_names_get_their_verdicts() -> None:
    for case in shared_cases()["timezone_names"]:
        try:
            check_timezone(case["name"])
            verdict = "accept"
        except CronFault:
            verdict = "reject"
        assert case["expected"].startswith(verdict), case
