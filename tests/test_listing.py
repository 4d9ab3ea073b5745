"""`runs`: pages that stay what they are while runs arrive, filters, and moments as people write."""

import json
from datetime import UTC, datetime
from typing import Any

import click
import pytest

from qinglong_sql.cli import listing
from qinglong_sql.cli.listing import Wanted, page, pages, read_moment
from qinglong_sql.store import Store
from tests import acting
from tests.engines import Engine
from tests.screens import standing_still
from tests.shell import Shell
from tests.stores import DAWN_MS, FakeClock

EVERY = Wanted(None, None, None, 0, listing.FOREVER_MS)
DAY_MS = 86_400_000


def started(store: Store, clock: FakeClock, count: int, **changes: Any) -> list[str]:
    """Runs of `flow`, three in each millisecond; newest first."""
    acting.publish(store, {"a": []}, **changes)
    found = []
    for number in range(count):
        clock.advance(number % 3 == 0)
        found.append((clock.now_ms, acting.start(store, key=f"{changes}{number}")))
    return [run_id for _, run_id in sorted(found, reverse=True)]


def test_pages_show_every_run_once_while_others_arrive(store: Store, clock: FakeClock) -> None:
    runs = started(store, clock, 20)
    for size in (1, 2, 3, 7):
        seen, behind = [], None
        while rows := page(store, EVERY, behind, size):
            seen += [row["run_id"] for row in rows]
            behind = rows[-1]
            clock.advance(1)
            acting.start(store, key=f"late {size} {len(seen)}")
        assert seen[-20:] == runs and len(set(seen)) == len(seen)


@pytest.mark.parametrize("package", [None, "nightly"])
def test_every_filter_by_every_road(store: Store, clock: FakeClock, package: str | None) -> None:
    runs = started(store, clock, 6) + started(store, clock, 3, queue="other")
    runs = [row["run_id"] for row in page(store, EVERY, None, 99)]
    assert len(runs) == 9
    acting.cancel(store, runs[2])
    acting.converge(store, runs[2])
    task = acting.start(store, "task", key="t")
    at = {row["run_id"]: row["admitted_at_ms"] for row in page(store, EVERY, None, 99)}

    def found(status: str | None = None, target: str | None = None, first: int = 0,
              past: int = listing.FOREVER_MS) -> list[str]:  # fmt: skip
        wanted = Wanted(status, package, target, first, past)
        every = [row["run_id"] for rows in pages(store, wanted, None) for row in rows]
        assert every == [row["run_id"] for row in page(store, wanted, None, 99)]
        return every

    assert set(found()) == {*runs, task}
    assert found("cancelled") == [runs[2]]
    assert set(found("running")) == {*runs, task} - {runs[2]}
    assert found(target="work") == [task]
    assert found(target="flow") == runs, "of both generations"
    assert found("running", "flow") == [one for one in runs if one != runs[2]]
    middle = at[runs[4]]
    assert set(found(first=middle)) == {one for one in at if at[one] >= middle}
    assert set(found(past=middle)) == {one for one in at if at[one] < middle}
    assert found(target="nothing") == []


def test_many_revisions_are_not_asked_one_by_one(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "TARGETS", 1)
    runs = started(store, clock, 3) + started(store, clock, 3, queue="other")
    rows = page(store, Wanted(None, "nightly", "flow", 0, listing.FOREVER_MS), None, 99)
    assert {row["run_id"] for row in rows} == set(runs)


def test_the_last_line_is_the_next_page(engine: Engine, store: Store, clock: FakeClock,
                                        tmp_path: Any) -> None:  # fmt: skip
    runs = started(store, clock, 7)
    shell = Shell(tmp_path, engine.dsn, {"COLUMNS": "80"})
    seen: list[str] = []
    words = ["runs", "--package", "nightly", "--limit", "3", "--utc"]
    with standing_still(clock.now_ms):
        while words:
            done = shell(*words)
            assert done.returncode == 0, done.stderr
            _, *lines = done.stdout.splitlines()
            last = lines.pop() if lines[-1].startswith("more: ") else ""
            seen += [line.split()[0] for line in lines]
            words = last.removeprefix("more: qinglong-sql ").split() if last else []
            assert not words or (words[0], "--utc" in words) == ("runs", True)
        rows = [json.loads(line) for line in shell("runs", "--all", "--json").stdout.splitlines()]
        every = shell("runs", "--all").stdout.splitlines()
        few = json.loads(shell("runs", "--limit", "2", "--json").stdout)
    assert seen == runs == [row["run_id"] for row in rows]
    assert len(every) == 8 and every[0].startswith("RUN ")
    assert [row["run_id"] for row in few] == runs[:2]


@pytest.mark.parametrize(
    ("text", "ago_ms"), [("2d", 2 * DAY_MS), ("1h30m", 5_400_000), ("90s", 90_000)]
)
def test_a_duration_is_before_now(text: str, ago_ms: int) -> None:
    assert read_moment(text, DAWN_MS) == DAWN_MS - ago_ms


@pytest.mark.parametrize(
    ("text", "to_end", "at"),
    [
        ("2026-03-01", False, datetime(2026, 3, 1, tzinfo=UTC)),
        ("2026-03-01", True, datetime(2026, 3, 2, tzinfo=UTC)),
        ("2026-03-01 18:30", True, datetime(2026, 3, 1, 18, 30, tzinfo=UTC)),
        ("2026-03-01T18:30:05", False, datetime(2026, 3, 1, 18, 30, 5, tzinfo=UTC)),
        ("2026-03-01T18:30+08:00", False, datetime(2026, 3, 1, 10, 30, tzinfo=UTC)),
    ],
)
def test_a_date_and_a_time_are_of_the_users_zone(text: str, to_end: bool, at: datetime) -> None:
    assert read_moment(text, DAWN_MS, utc=True, to_end=to_end) == at.timestamp() * 1000
    if "+" not in text:
        local = at.replace(tzinfo=None).astimezone()
        assert read_moment(text, DAWN_MS, to_end=to_end) == local.timestamp() * 1000


@pytest.mark.parametrize("text", ["", "2x", "5", "tomorrow", "2026-13-01", "2026-02-30", "1.5h",
                                  "9999-12-31"])  # fmt: skip
def test_what_is_no_moment_is_a_usage_error(text: str) -> None:
    with pytest.raises(click.BadParameter):
        read_moment(text, DAWN_MS, utc=True, to_end=True)


def test_a_status_is_a_word_in_any_case(store: Store, engine: Engine, tmp_path: Any) -> None:
    acting.publish(store, {"a": []})
    run_id = acting.start(store)
    shell = Shell(tmp_path, engine.dsn)
    assert run_id in shell("runs", "--status", "RUNNING").stdout
    assert shell("runs", "--status", "Failed").stdout == "no runs\n"


def test_today_and_yesterday_begin_at_midnight() -> None:
    for text, to_end, day in (("today", False, 14), ("Yesterday", False, 13), ("today", True, 15)):
        at = datetime(2023, 11, day, tzinfo=UTC)
        assert read_moment(text, DAWN_MS, utc=True, to_end=to_end) == at.timestamp() * 1000
    here = datetime.fromtimestamp(DAWN_MS / 1000).replace(hour=0, minute=0, second=0)
    assert read_moment("today", DAWN_MS) == int(here.timestamp()) * 1000
