"""`show` and `explain`: bars, order, groups, words; and how all screens suit their terminal."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest

from qinglong_sql.cli import cells, progress, steps, timebar
from qinglong_sql.cli.reasons import Screen, reason_of
from qinglong_sql.cli.timebar import Axis
from qinglong_sql.cli.words import age, moment, zone
from qinglong_sql.store import Store
from tests import acting
from tests.engines import Engine
from tests.screens import Facts, prepared, standing_still
from tests.shell import Shell
from tests.stores import FakeClock, sqlite_store

ESCAPE = "\x1b["


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return prepared(tmp_path_factory.mktemp("show"))


# --- bars


def step(**changes: Any) -> dict[str, Any]:
    return {"ready_at_ms": 0, "finished_at_ms": None, "status": "running", **changes}


def attempt(start: int | None, end: int | None) -> dict[str, Any]:
    return {"starting_at_ms": start, "finished_at_ms": end}


@pytest.mark.parametrize(
    ("one", "attempts", "drawn"),
    [
        (step(ready_at_ms=20, finished_at_ms=60, status="failed"), [attempt(40, 60)], "  ··██    "),
        (step(finished_at_ms=100), [attempt(0, 20), attempt(60, 100)], "██░░░░████"),
        (step(), [attempt(50, None)], "·····█████"),
        (step(status="retry_wait"), [attempt(10, 30)], "·██░░░░░░░"),
        (step(status="ready", ready_at_ms=70), [attempt(None, None)], "       ···"),
        (step(status="lost"), [attempt(10, 30)], "·██░░░░░░░"),
        (step(finished_at_ms=51), [attempt(50, 51)], "·····█    "),
        (step(finished_at_ms=100, status="skipped", ready_at_ms=None), [], "          "),
        (step(finished_at_ms=100), [attempt(99, 100)], "·········█"),
    ],
)
def test_a_bar(one: dict[str, Any], attempts: list[dict[str, Any]], drawn: str) -> None:
    assert Axis(0, 100, 10).bar(one, attempts) == f"|{drawn}|"


def test_a_bar_in_ascii_and_of_no_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    attempts = [attempt(0, 20), attempt(60, 100)]
    assert Axis(0, 100, 10).bar(step(ready_at_ms=0, finished_at_ms=100), attempts) == "|##~~~~####|"
    assert Axis(5, 5, 3).bar(step(ready_at_ms=5, finished_at_ms=5), [attempt(5, 5)]) == "|#  |"
    assert timebar.legend().isascii()


# --- a run


def test_steps_stand_in_the_order_of_the_flow_and_what_never_began_in_groups(
    store: Store, engine: Engine, clock: FakeClock, tmp_path: Any
) -> None:
    needs = {"z": [], "m": ["z"], "a": ["m"], "b": ["m"], "c": ["a", "b"]}
    run_id = acting.begun(store, needs)
    acting.finish(store, run_id)
    acting.advance(store, run_id)
    acting.finish(store, run_id, m=4)
    acting.advance(store, run_id)
    rows = {row["step_key"]: row for row in store.read("step_state", run_id=run_id)}
    order = [row["step_key"] for row in steps.in_flow(list(rows.values()), needs)]
    assert order == ["z", "m", "a", "b", "c"]
    rows["b"]["status"] = "ready"  # what is under way is no cause
    rows["b"]["ready_at_ms"] = 1
    assert steps.groups(list(rows.values()), needs)[-1].endswith(" a, c  skipped: m failed")
    rows["b"] |= {"status": "skipped", "ready_at_ms": None}
    (line,) = steps.groups(list(rows.values()), needs)
    assert line.endswith(" a, b, c  skipped: m failed")
    shell = Shell(tmp_path, engine.dsn, {"COLUMNS": "80"})
    told = shell("show", run_id).stdout
    assert "m: it ended with exit code 4\n  look: qinglong-sql logs" in told
    shown = json.loads(shell("show", run_id, "--json").stdout)
    assert shown["needs"] == {key: value for key, value in needs.items() if value}
    assert shown["intent"] is None and shown["retry_of_run_id"] is None
    assert {one["step_key"] for one in shown["steps"]} == set(needs)


def test_who_asked_for_a_cancellation_is_told(store: Store, engine: Engine, tmp_path: Any) -> None:
    run_id = acting.begun(store, {"a": []})
    acting.cancel(store, run_id, actor="ann")
    shell = Shell(tmp_path, engine.dsn)
    assert "cancel   requested: user, by ann, at " in shell("show", run_id).stdout
    intent = json.loads(shell("show", run_id, "--json").stdout)["intent"]
    assert (intent["actor"], intent["reason"]) == ("ann", "user")


def test_every_row_of_explain_says_what_to_type(facts: Facts) -> None:
    kinds = set()
    for name in ("held", "queued", "moving", "faulty"):
        with standing_still(facts.now_ms):
            rows = json.loads(facts.shell("explain", facts.runs[name], "--json").stdout)
        text = facts.screen("explain", name)
        kinds |= {row["waits_for"] for row in rows}
        for row in rows:
            assert row["command"] in text
            assert bool(row["command"]) or row["waits_for"] == "need"
        assert text.rstrip().splitlines()[-1].lstrip().startswith(("look: ", "type: "))
    assert kinds == {"hold", "queue", "need", "report", "fault"}


@pytest.mark.parametrize(
    ("row", "words", "stuck"),
    [
        ({"waits_for": "retry", "waits_on": "execution_failed", "due_at_ms": 9}, "a failure; a", 0),
        ({"waits_for": "retry", "waits_on": "x", "due_at_ms": -60_001}, "nobody does it", 1),
        ({"waits_for": "lease", "waits_on": "w1", "due_at_ms": 9}, "worker w1 has it", 0),
        ({"waits_for": "report", "waits_on": "w1", "due_at_ms": 9}, "runs at worker w1", 0),
        ({"waits_for": "report", "due_at_ms": -60_001}, "silent; its lease ended 1969-12-31", 0),
        ({"waits_for": "lease", "due_at_ms": -5}, "has been silent; its lease", 0),
        ({"waits_for": "report", "waits_on": "w1", "due_at_ms": -400_000}, "nobody does it", 1),
        ({"waits_for": "admission", "waits_on": "task_admission"}, "could go on", 0),
        ({"waits_for": "admission", "since_ms": -60_001}, "nobody does it", 1),
        ({"waits_for": "intent", "waits_on": "user"}, "cancellation requested (user)", 0),
        ({"waits_for": "need", "waits_on": "frontier", "since_ms": -99_000_000}, "could go on", 0),
        ({"waits_for": "evidence", "waits_on": "w1", "due_at_ms": -5}, "nobody knows whether", 1),
    ],
)
def test_the_words_of_every_wait(row: dict[str, Any], words: str, stuck: int) -> None:
    plain = {"run_id": "ru0123456789abcdef", "step_key": "s", "attempt_id": "ru0123456789abcdef-2",
             "status": "x", "waits_on": "", "since_ms": -1, "due_at_ms": None,
             "resolved_by": ""}  # fmt: skip
    found = reason_of(plain | row, Screen(0, True, "sqlite", " --dsn D"))
    assert words in found.words and found.stuck == bool(stuck) and found.then
    assert found.command.endswith(" --dsn D") or row["waits_for"] == "lease"


def test_a_silent_worker_is_told_before_anybody_has_acted_on_it(tmp_path: Path) -> None:
    clock = FakeClock()
    with closing(sqlite_store(tmp_path, clock)) as store:
        run_id = acting.begun(store, {"a": []})
        acting.run(store, *acting.lease(store).values())
    shell = Shell(tmp_path, "sqlite:///qinglong.db")
    for late_ms, told in ((-1, False), (1, True)):
        with standing_still(clock.now_ms + acting.LEASE_MS + late_ms):
            for command in ("show", "explain"):
                said = shell(command, run_id).stdout
                assert ("has been silent; its lease ended" in said) == told, (command, said)
                assert ("will record it as lost" in said) == told
                assert "unless it is renewed" not in said or not told


@pytest.mark.parametrize(
    ("exit_code", "error", "words"),
    [
        (3, None, "it ended with exit code 3"),
        (3, "boom\nat line 2", "it ended with exit code 3: boom at line 2"),
        (126, None, "it ended with exit code 126 (not executable)"),
        (127, None, "it ended with exit code 127 (command not found)"),
        (137, None, "it ended with exit code 137 (killed by KILL; out of memory?)"),
        (None, "ended by signal 9", "it was killed by signal 9 (KILL; out of memory?)"),
        (None, "ended by signal 15", "it was killed by signal 15 (TERM)"),
        (None, "ended by signal 63", "it was killed by signal 63"),
        (None, "no folder", "it ended with a failure: no folder"),
    ],
)
def test_how_a_step_ended_in_one_set_of_words(
    exit_code: int | None, error: str | None, words: str
) -> None:
    step = {"step_key": "a", "status": "failed", "result_code": "execution_failed",
            "attempt_count": 1, "started_at_ms": 1, "finished_at_ms": 2}  # fmt: skip
    attempt = {"step_key": "a", "exit_code": exit_code, "error": error}
    assert steps.in_words(step, attempt) == words
    table = steps.step_table([step], [attempt]).splitlines()
    assert table[0].split() == ["STEP", "STATUS", "TRIES", "TOOK", "WHY"]
    assert table[1].endswith(words.removesuffix(" at line 2"))
    told = steps.in_words({**step, "attempt_count": 2}, attempt)
    assert ", after 2 tries" in told
    skipped = {**step, "status": "skipped", "result_code": "dependency_not_succeeded"}
    assert steps.why(skipped, None) == "a step that it needs did not succeed"


def test_the_run_s_own_timeout_is_told_and_no_other(
    store: Store, engine: Engine, clock: FakeClock, tmp_path: Path
) -> None:
    run_id = acting.begun(store, {"a": [], "b": [], "c": ["b"]}, run_timeout_ms=60_000)
    held = acting.lease(store, "o1", "o2")
    acting.run(store, *held.values())
    acting.report(store, held["a"], how="deadline", exit_code=None)
    acting.advance(store, run_id)
    clock.advance(60_001)
    store.call("deadline_run", p_run_id=run_id)
    acting.converge(store, run_id)
    shell, passed = Shell(tmp_path, engine.dsn), "the run's own timeout passed"
    with standing_still(clock.now_ms):
        told = shell("explain", run_id).stdout
    assert told.startswith(f"{passed} at ") and "(timeout)" not in told
    acting.report(store, held["b"], how="stop", exit_code=None)
    acting.converge(store, run_id)
    told = shell("show", run_id).stdout
    assert "a: it ran longer than its timeout\n" in told
    assert f"b: it was stopped, since {passed}\n" in told
    assert f"c  cancelled: {passed}\n" in told
    assert shell("explain", run_id).stdout.startswith(
        f"nothing: the run has ended, timed_out: {passed}\n"
    )
    watch = progress.Watch(store, run_id, progress.Silent())
    watch.look(clock.now_ms)
    said = {one["step_key"]: progress.said(one, clock.now_ms) for one in watch.steps()}
    assert said["b"].endswith(f": it was stopped, since {passed}")
    assert said["c"] == f"cancelled: {passed}" and "stopped" not in said["a"]
    ended = shell("resume", run_id)
    assert ended.returncode == 4 and f"it was stopped, since {passed}" in ended.stdout


def test_times_on_both_sides_of_a_change_have_their_offsets(
    store: Store, engine: Engine, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock goes back by an hour between start and end."""
    changes = datetime(2026, 11, 30, 13, 15, 28, tzinfo=UTC)  # J334
    monkeypatch.setenv("TZ", "WIN0SUM-1,J1/0,J334/14:15:28")
    time.tzset()
    try:
        clock.advance(int(changes.timestamp() * 1000) - 5_000 - clock.now_ms)
        run_id = acting.begun(store, {"a": []})
        shell = Shell(tmp_path, engine.dsn)
        with standing_still(clock.now_ms):
            assert "\nstarted  14:15:23 UTC+01:00\n" in shell("show", run_id).stdout
            assert "STARTED (UTC+01:00)" in shell("runs").stdout
        clock.advance(10_000)
        acting.finish(store, run_id)
        acting.advance(store, run_id)
        acting.start(store, key="two")
        with standing_still(clock.now_ms):
            told = shell("show", run_id).stdout
            assert "\nstarted  14:15:23+01:00\nended    13:15:33+00:00, after 10s\n" in told
            runs = shell("runs").stdout
            assert "STARTED " in runs and "STARTED (" not in runs
            assert " 14:15:23+01:00 " in runs and " 13:15:33+00:00 " in runs
            told = shell("show", run_id, "--utc").stdout
            assert "\nstarted  13:15:23 UTC\nended    13:15:33, after 10s\n" in told
            assert "STARTED (UTC)" in shell("runs", "--utc").stdout
            assert moment(clock.now_ms - 10_000, clock.now_ms) == "14:15:23+01:00"
    finally:
        monkeypatch.undo()
        time.tzset()


# --- terminals


@pytest.mark.parametrize(
    ("words", "env", "colours"),
    [
        ((), {}, False),  # a pipe
        ((), {"FORCE_COLOR": "1"}, True),
        ((), {"FORCE_COLOR": "0"}, False),
        ((), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (("--no-color",), {"FORCE_COLOR": "1"}, False),
        ((), {"FORCE_COLOR": "1", "TERM": "dumb"}, True),
    ],
)
def test_colours(facts: Facts, words: tuple[str, ...], env: dict[str, str], colours: bool) -> None:
    env = {"NO_COLOR": "", "FORCE_COLOR": "", "TERM": "xterm", **env}
    run_id = facts.runs["bad"]
    for command in (("status",), ("runs",), ("show", run_id), ("explain", facts.runs["held"])):
        plain = facts.shell(*command, env=env | {"FORCE_COLOR": "", "NO_COLOR": ""}).stdout
        told = facts.shell(*command, *words, env=env).stdout
        assert (ESCAPE in told) == colours, command
        if command[0] == "runs":
            assert click.unstyle(told) == plain, "nothing is told by colour alone"
        if words:
            assert ESCAPE not in facts.shell(*words, *command, env=env).stdout, "on the group"


def test_times_of_today_have_no_date_and_the_zone_is_told_once(facts: Facts) -> None:
    at = datetime(2026, 3, 1, 9, 8, 7, tzinfo=UTC)
    now = int(at.timestamp() * 1000)
    assert moment(now - 3_600_000, now, utc=True) == "08:08:07"
    assert moment(now - 10 * 3_600_000, now, utc=True) == "2026-02-28 23:08:07"
    assert (moment(None, now), zone(now, utc=True)) == ("-", "UTC")
    assert re.fullmatch(r"UTC([+-]\d\d:\d\d)?", zone(now))
    for command, run in (("status", ""), ("runs", ""), ("show", "bad")):
        assert facts.screen(command, run).count("UTC") == 1


@pytest.mark.parametrize(
    ("ms", "text"),
    [(-5, "0.0s"), (900, "0.9s"), (65_900, "1m5s"), (3_600_000, "1h"), (93_784_000, "1d2h"),
     (7_384_000, "2h3m")],
)  # fmt: skip
def test_ages_are_short(ms: int, text: str) -> None:
    assert age(ms) == text


def test_wide_signs_stand_below_each_other() -> None:
    assert (cells.cells("名前"), cells.cells("é"), cells.cells("e\u0301")) == (4, 1, 1)
    lines = cells.grid(["KEY", "N"], [["名前", "1"], ["abcdef", "22"]], right=("N",))
    assert lines == ["KEY      N", "名前     1", "abcdef  22"]
    assert [cells.cells(line) for line in lines] == [10, 10, 10]
    assert cells.cut("名前前前", 5) == "名前…" and cells.cut("abc", 3) == "abc"
    assert cells.wrapped("磁盘已满 no space", 6) == ["磁盘已", "满 no", "space"]
    assert cells.wrapped("", 5) == [""]
    whole = "ru0123456789abcdef-1"
    assert cells.wrapped(f"a {whole} b", 8) == ["a", whole, "b"], "what is copied stays whole"


@pytest.fixture
def rows() -> Iterator[list[list[str]]]:
    yield [["one", "12", "a long story about it"], ["two", "3", ""]]


@pytest.mark.parametrize(
    ("wide", "lines"),
    [
        (99, ["KEY  N   WHY", "one  12  a long story about it", "two  3"]),
        (24, ["KEY", "one", "    a long story about", "    it", "two"]),
    ],
)
def test_a_table_that_is_too_wide(rows: list[list[str]], wide: int, lines: list[str]) -> None:
    assert cells.grid(["KEY", "N", "WHY"], rows, wide=wide, drop=("N",))[1:] == lines[1:]


def test_the_room_of_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    for said, wide in (("40", 40), ("0", cells.PIPE_COLUMNS), ("", cells.PIPE_COLUMNS), ("5", 20),
                       ("wide", cells.PIPE_COLUMNS)):  # fmt: skip
        monkeypatch.setenv("COLUMNS", said)
        assert cells.room() == wide
