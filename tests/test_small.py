"""Small machines: an edge in 128 MiB and half a core does its work, and is small itself.

So is a control process in 512 MiB, which is nobody and can write nothing.
"""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.confined import Kept, kept
from tests.machine import Hold, Machine, Taken, taken
from tests.prove import CannotRun
from tests.prove.small import HALF_OF_THE_RECORDS_MIB, held_too_long, took_too_much


@pytest.mark.parametrize("steps", [2, 128])
def test_an_edge_in_128_mib_and_half_a_core(
    tmp_path: Path, steps: int, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found = taken(tmp_path, "edge", Machine(128, 0.5), steps, runs=1, idle_s=0)
    except CannotRun as error:
        pytest.skip(str(error))
    with capsys.disabled():
        print(f"\nedge, 128 MiB and half a core, {steps} steps: {found}")
    assert found.kills == 0
    assert found.peak < HALF_OF_THE_RECORDS_MIB
    assert held_too_long(found, "edge", steps) == []


def test_a_lock_that_is_held_too_long_is_told() -> None:
    quick = Hold(1.0, 1.0, 10_000, 2.0, 0.5, "advance_frontier")
    found = Taken(128, 1.0, 1.0, 1.0, 0, [1.0], [2.0], [quick] * 19, 1, None)
    assert held_too_long(found, "edge", 128) == []
    slow = replace(quick, instructions=80_000)
    assert held_too_long(replace(found, holds=[quick] * 9 + [slow]), "edge", 128) == [
        "80000 instructions under the lock at p95"
    ]
    assert held_too_long(replace(found, bytes_a_step=100_000), "edge", 128) == [
        "100000 bytes are written for a step"
    ]


def test_a_machine_that_is_too_small_is_noticed(tmp_path: Path) -> None:
    try:
        with pytest.raises(AssertionError, match=f"it ended with -{signal.SIGKILL}:"):
            taken(tmp_path, "edge", Machine(8, 1), 2, runs=1, idle_s=0)
    except CannotRun as error:
        pytest.skip(str(error))


# -- a control process


def test_a_control_process_works_where_it_may_write_nothing(
    tmp_path: Path, postgres_dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found = kept(tmp_path, postgres_dsn, 60)
    except CannotRun as error:
        pytest.skip(str(error))
    with capsys.disabled():
        print(f"\ncontrol, 512 MiB, 256 tasks, nobody, read-only: {found}")
    assert found.runs and took_too_much(found) == []


def test_a_control_process_that_takes_too_much_is_told() -> None:
    good = Kept(40.0, 45.0, 46.0, 46.5, 47.0, 60.0, 0, 18, 100, 50, 9.0)
    assert took_too_much(good) == []
    assert took_too_much(replace(good, kills=1)) == ["1 processes were killed"]
    assert took_too_much(replace(good, peak=120.0)) == ["120.0 MiB, above 96"]
    assert took_too_much(replace(good, end=60.0)) == [
        "it grows: 46.0 MiB after half of its cycles, 60.0"
    ]
