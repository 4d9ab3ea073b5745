"""The clock that is set under a process is seen, told, and what it put off is found at once."""

import pytest

from qinglong_sql.clock_watch import ClockWatch, words_of_jump
from qinglong_sql.drive import drive
from qinglong_sql.scheduler import WHOLE_SLICE, Turn, local_cycle
from tests.stores import FakeClock
from tests.test_scheduler import Scripted

HOUR_MS = 3_600_000


class Idle:
    """A worker that has nothing to do."""

    offered = False

    def __init__(self, store: object) -> None:
        self.store = store

    def settle(self, fuse: object, lease: bool) -> int:
        return 0

    def dispatch(self, lease: bool) -> int:
        return 0

    def owes(self) -> bool:
        return False

    def renew_soon(self) -> None:
        pass

    def due_at_ms(self) -> None:
        return None

    def filenos(self) -> list[int]:
        return []


@pytest.fixture
def clocks() -> tuple[FakeClock, FakeClock]:
    """The wall clock, and the one that nobody sets."""
    return FakeClock(), FakeClock(1_000)


def watched(clocks: tuple[FakeClock, FakeClock]) -> ClockWatch:
    return ClockWatch(clocks[0].now, clocks[1].now)


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS, 1_000, -1_000])
def test_a_jump_is_seen_once(clocks: tuple[FakeClock, FakeClock], jump_ms: int) -> None:
    watch = watched(clocks)
    for clock in clocks:
        clock.advance(5_000)
    assert watch.look() == 0
    clocks[0].advance(jump_ms)
    assert [watch.look(), watch.look()] == [jump_ms, 0]


def test_what_ntp_does_all_day_is_no_jump(clocks: tuple[FakeClock, FakeClock]) -> None:
    watch = watched(clocks)
    for _ in range(100):
        clocks[0].advance(5_900)
        clocks[1].advance(5_000)
        assert watch.look() == 0


def test_a_look_that_took_long_says_nothing(clocks: tuple[FakeClock, FakeClock]) -> None:
    """The process was stopped between the two clocks: their difference is that of two moments."""
    wall, steady = clocks
    slow = False

    def stopped() -> int:
        if slow:
            wall.advance(9_000)
            steady.advance(9_000)
        return wall.now_ms

    watch = ClockWatch(stopped, steady.now)
    slow = True
    assert watch.look() == 0
    slow = False
    assert watch.look() == 0


def test_the_words_of_a_jump_say_how_far() -> None:
    assert "set back by 1h:" in words_of_jump(-HOUR_MS + 12)
    assert "set ahead by 1h30m:" in words_of_jump(HOUR_MS * 3 // 2 - 7)


def test_a_loop_sweeps_everything_first_and_when_the_clock_is_set_back(
    clocks: tuple[FakeClock, FakeClock],
) -> None:
    store, jumps = Scripted(), []
    store.runs = [f"run-{number:04}" for number in range(WHOLE_SLICE * 2 + 5)]
    worker, watch, ticks = Idle(store), watched(clocks), 0
    slices: list[int] = []

    def until() -> bool:
        nonlocal ticks
        ticks += 1
        slices.extend(limit for stage, _, limit in store.asked if stage == "sweep")
        store.asked.clear()
        clocks[0].advance({5: HOUR_MS, 7: -HOUR_MS}.get(ticks, 0))
        return ticks == 12

    drive(store, worker, until, idle_ms=1, watch=watch, on_jump=jumps.append)  # type: ignore[arg-type]
    assert jumps == [HOUR_MS, -HOUR_MS]
    whole, slow = [WHOLE_SLICE] * 3, [32] * 3
    assert slices == [*whole, *slow, *whole, 32, 32]


def test_a_sweep_of_everything_waits_for_nothing(clocks: tuple[FakeClock, FakeClock]) -> None:
    """Cycles follow at once until it is through; then the loop is as idle as before."""
    store, turn = Scripted(), Turn(whole=True)
    store.runs = [f"run-{number:04}" for number in range(WHOLE_SLICE + 1)]
    turn = local_cycle(store, turn).next
    assert turn.whole and turn.swept == store.runs[WHOLE_SLICE - 1]
    turn = local_cycle(store, turn).next
    assert not turn.whole and turn.swept == ""
