"""`cron next`: times for programs and for people, and refusals that say the way out."""

import json
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from qinglong_sql.cli import COMPLETING, main
from qinglong_sql.zones import TZ_RELEASE
from tests.shell import Done, Shell
from tests.test_cron_fire import ms, shared

NEW_YORK = "America/New_York"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path, "sqlite:///never.db")


def asked(shell: Shell, expression: str, zone: str, after: str, count: int) -> Done:
    return shell(
        "cron", "next", expression, "--tz", zone, "--after", after, "--count", count, "--json"
    )


def test_programs_get_exactly_the_times(shell: Shell) -> None:
    done = asked(shell, "30 2 * * *", NEW_YORK, "2026-03-07T12:00:00Z", 2)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == '{"next": ["2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"]}\n'
    assert list(shell.folder.iterdir()) == [], "no database is needed or made"


def test_the_shared_cases_through_the_command(shell: Shell) -> None:
    for case in shared("dst_cases"):
        wanted = [one["utc"] for one in case["expected_vixie"]]
        done = asked(shell, case["expr"], case["tz"], case["after_utc"], len(wanted))
        assert json.loads(done.stdout) == {"next": wanted}, case
    accepted = 0
    for case in shared("expressions"):
        known = case.get("next_utc")
        done = asked(shell, case["expr"], "UTC", "2026-02-27T23:58:30Z", 3)
        if done.returncode == 0:
            wanted = known["fires"] if known else case["libs_accept"]["cronsim"]
            assert json.loads(done.stdout) == {"next": wanted}, case
            accepted += 1
        else:
            assert (done.returncode, done.stdout) == (2, "") and "EXPR" in done.stderr, case
    assert accepted == 90
    for case in shared("timezone_names"):
        if "\0" not in case["name"]:  # cannot stand in an argument
            done = asked(shell, "@daily", case["name"], "2026-11-30", 1)
            wanted_code = 0 if case["expected"].startswith("accept") else 2
            assert done.returncode == wanted_code, case


def test_people_see_both_clocks_and_why_a_time_is_another(shell: Shell) -> None:
    done = shell("cron", "next", "30 2 * * *", "--tz", NEW_YORK, "--count", 2,
                 "--after", "2026-03-07T12:00")  # fmt: skip
    assert done.stdout.splitlines() == [
        f"30 2 * * * in {NEW_YORK}, by tzdata {TZ_RELEASE}",
        "LOCAL                          UTC                  NOTE",
        "Sun 2026-03-08 03:00:00 -0400  2026-03-08 07:00:00  moved: the clock jumps over 02:30, "
        "this is the first instant after",
        " " * 52 + "it",
        "Mon 2026-03-09 02:30:00 -0400  2026-03-09 06:30:00",
    ]
    done = shell("cron", "next", "*/30 1 * * *", "--tz", NEW_YORK, "--after", "2026-11-01")
    notes = [line[52:] for line in done.stdout.splitlines()[2:]]
    assert notes == ["this time comes twice: the first time"] * 2 + [
        "this time comes twice: the second time"
    ] * 2 + [""]
    done = shell("cron", "next", "30 1 * * *", "--tz", NEW_YORK, "--after", "2026-11-01")
    notes = [line[52:] for line in done.stdout.splitlines()[2:]]
    assert notes == ["this time comes twice: fires the first time only"] + [""] * 4
    done = shell("cron", "next", "@Daily", "--after", "2026-11-01", "--count", 1)
    assert done.stdout.startswith("0 0 * * * in UTC,") and "NOTE" not in done.stdout
    done = shell("cron", "next", "@daily", "--after", "9999-12-31")
    assert done.returncode == 0 and done.stdout.endswith("it does not fire after that\n")


def test_a_time_without_an_offset_is_one_of_the_zone(shell: Shell) -> None:
    for after, first in (
        ("2026-01-01T02:30", "2026-01-02T01:30:00Z"), ("2026-01-01T02:29", "2026-01-01T01:30:00Z"),
        ("2026-01-01", "2026-01-01T01:30:00Z"), ("2026-01-01T02:30Z", "2026-01-02T01:30:00Z"),
        ("2026-01-01T09:29+08:00", "2026-01-01T01:30:00Z"),
    ):  # fmt: skip
        done = asked(shell, "30 2 * * *", "Europe/Berlin", after, 1)
        assert json.loads(done.stdout) == {"next": [first]}, after


def test_without_a_time_it_is_now(shell: Shell) -> None:
    before = json.loads(shell("cron", "next", "* * * * * *", "--count", 1, "--json").stdout)
    after = json.loads(shell("cron", "next", "* * * * * *", "--count", 1, "--json").stdout)
    assert 0 <= ms(after["next"][0]) - ms(before["next"][0]) < 60_000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["60 25 * * *"], "'EXPR': minute: 60 is out of range 0-59; hour: 25 is out of range 0-23;"
                          " write minute hour day-of-month month day-of-week, such as '30 2"),
        (["-90 * * * *"], "'EXPR': minute: '-90' lacks a number; write"),
        ([""], "'EXPR': is empty"),
        (["0 0 31 2 *"], "day of month: never fires, since none of these months has such a day;"
                         " name a day that one of them has"),
        (["30", "2", "*", "*", "*"], "it is 5 words: put quotes around it, '30 2 * * *'"),
        (["@daily", "--tz", "CST"], "'--tz': 'CST' is an abbreviation and can mean several zones"),
        (["@daily", "--tz", "europe/berlin"], "is spelt Europe/Berlin"),
        (["@daily", "--after", "soon"], "'soon' is no time: write 2026-03-28T12:00:00Z"),
        (["@daily", "--count", "0"], "'--count'"),
        (["@daily", "--cout", "3"], "No such option '--cout'"),
        ([], "Missing argument 'EXPR"),
    ],
)  # fmt: skip
def test_what_is_refused_says_the_field_and_the_way_out(
    shell: Shell, words: list[str], said: str
) -> None:
    done = shell("cron", "next", *words, "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_zone_that_says_something_else_is_warned_of_beside_the_answer(shell: Shell) -> None:
    done = asked(shell, "0 12 * * *", "Etc/GMT-8", "2026-01-01", 1)
    assert json.loads(done.stdout) == {"next": ["2026-01-01T04:00:00Z"]}
    assert done.stderr.startswith("note: Etc/GMT-8 is UTC+8")


def test_another_tzdata_is_not_ready(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    from qinglong_sql import zones

    zones.zone_of.cache_clear()
    monkeypatch.setattr("tzdata.__version__", "2025.2")
    done = asked(shell, "@daily", "UTC", "2026-01-01T00:00Z", 1)
    assert done.returncode == 6 and "pip install 'tzdata==" in done.stderr


def test_the_version_of_the_zones_is_told_by_doctor(shell: Shell) -> None:
    assert shell("migrate").returncode == 0
    assert f"time zones: tzdata {TZ_RELEASE}\n" in shell("doctor").stdout
    assert json.loads(shell("doctor", "--json").stdout)["time_zones"] == f"tzdata {TZ_RELEASE}"


def test_zones_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMPLETING, "bash_complete")
    shell = BashComplete(main, {}, "qinglong-sql", COMPLETING)
    for words in (["cron", "next", "@daily", "--tz"], ["import-crontab", "--tz"]):
        found = [one.value for one in shell.get_completions(words, "Europe/Ber")]
        assert found == ["Europe/Berlin"]
    assert [one.value for one in shell.get_completions(["cron"], "n")] == ["next"]
