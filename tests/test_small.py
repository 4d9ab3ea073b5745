"""Small machines: an edge in 128 MiB and half a core does its work, and is small itself."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.machine import Hold, Machine, Taken, taken
from tests.prove import CannotRun
from tests.prove.small import HALF_OF_THE_RECORDS_MIB, held_too_long


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
