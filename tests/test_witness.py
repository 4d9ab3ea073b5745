"""What executions say of themselves is held against the database: each fault is seen (witness)."""

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests import witness
from tests.witness import ALIVE, BEGIN, END, Life

NOW = 1_000_000  # milliseconds since boot


def attempt(number: int = 1, **changes: Any) -> dict[str, Any]:
    """A row of attempt_state that began and ended well."""
    at_ms = NOW + witness.boot_offset_ms()
    return {
        "run_id": "ru1",
        "step_key": "a",
        "attempt_id": f"ru1-{number}",
        "number": number,
        "status": "succeeded",
        "result_code": None,
        "starting_at_ms": at_ms,
        "finished_at_ms": at_ms + 1_000,
    } | changes


def life(number: int = 1, began: int = 0, last: int = 900, word: str = END, pid: int = 7) -> Life:
    return Life(f"ru1-{number}", pid, NOW + began, NOW + last, word)


def said(lives: list[Life], *rows: dict[str, Any], on_lost: str = "fail") -> list[str]:
    found: dict[str, list[Life]] = {}
    for one in lives:
        found.setdefault(one.attempt_id, []).append(one)
    return [words for _, words in witness.judged(found, list(rows), {("ru1", "a"): on_lost})]


def test_what_went_well_is_not_told() -> None:
    lost = attempt(status="lost", result_code="execution_lost")
    assert said([life()], attempt()) == []
    assert said([], attempt(status="lost", starting_at_ms=None)) == []
    again = [life(word=ALIVE), life(2, 1_100, 1_200)]
    later = attempt(2, finished_at_ms=None, status="running")
    assert said(again, lost, later, on_lost="retry") == []


@pytest.mark.parametrize(
    ("lives", "rows", "words"),
    [
        ([life(), life(pid=8, began=950, last=990)], [attempt()], "was begun twice"),
        ([life()], [attempt(starting_at_ms=None)], "before its start barrier"),
        ([], [attempt()], "succeeded, and says"),
        ([life(word=ALIVE)], [attempt()], "succeeded, and says"),
        ([life(last=1_100)], [attempt()], "past its fence"),
        ([life(), life(2, 950, 990)], [attempt(), attempt(2)], "is not idempotent"),
        ([life(), life(2)], [attempt()], "is no attempt"),
    ],
)
def test_each_fault_is_seen(lives: list[Life], rows: list[dict[str, Any]], words: str) -> None:
    assert any(words in one for one in said(lives, *rows))


def test_what_overlaps_is_seen_even_if_it_may_be_repeated() -> None:
    rows = [attempt(status="lost"), attempt(2)]
    assert any("overlaps" in one for one in said([life(), life(2, 500)], *rows, on_lost="retry"))


def test_the_task_says_when_it_lives(tmp_path: Path) -> None:
    """And when it was killed, the last it said was not long before."""
    env = {**os.environ, "WITNESS": str(tmp_path), "QL_RUN_ID": "ru1", "QL_ATTEMPT": "1"}
    subprocess.run(["/bin/sh", "-c", witness.SCRIPT], env=env | {"TICKS": "2"}, check=True)
    killed = subprocess.Popen(
        ["/bin/sh", "-c", witness.SCRIPT], env=env | {"TICKS": "99", "QL_ATTEMPT": "2"}
    )
    time.sleep(0.4)
    killed.kill()
    killed.wait()
    died_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    found = witness.lives(tmp_path)
    (ended,), (cut,) = found["ru1-1"], found["ru1-2"]
    assert (ended.last, cut.last) == (END, ALIVE)
    assert ended.last_ms - ended.began_ms >= 2 * witness.TICK_MS - witness.RESOLUTION_MS
    assert cut.pid == killed.pid and 0 <= died_ms - cut.last_ms < 1_000
    text = (tmp_path / "ru1-1").read_text()
    assert [line.split()[1] for line in text.splitlines()] == [BEGIN, ALIVE, ALIVE, END]
