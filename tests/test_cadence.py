"""The timer: coalescing, back-off, drain, stop (DESIGN §7)."""

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from qinglong_sql.cadence import Lifecycle, drain, next_delay
from qinglong_sql.limits import IDLE_CLUSTER_MS, IDLE_FIRST_MS

WITHIN_S = 5.0


def test_idle_cycles_back_off_from_two_milliseconds_by_a_quarter_up_to_the_cadence() -> None:
    delays = [0.0]
    for _ in range(40):
        delays.append(next_delay(delays[-1], applied=False, idle_ms=IDLE_CLUSTER_MS))
    assert delays[1:5] == [2.0, 2.5, 3.125, 3.90625]
    assert all(b == pytest.approx(min(a * 1.25, 250.0)) for a, b in pairwise(delays[1:]))
    assert delays[-1] == 250.0


def test_a_cycle_that_applied_something_is_followed_at_once_and_the_back_off_begins_anew() -> None:
    assert next_delay(250.0, applied=True, idle_ms=250) == 0.0
    assert next_delay(0.0, applied=False, idle_ms=250) == IDLE_FIRST_MS


def test_a_cadence_below_the_first_delay_is_kept() -> None:
    assert next_delay(0.0, applied=False, idle_ms=1) == 1.0


def test_a_drain_ends_with_the_first_idle_cycle() -> None:
    outcomes = iter([True, True, False, True])
    assert drain(lambda: next(outcomes), cycles=10, within_ms=1000)
    assert next(outcomes) is True


def test_a_drain_gives_up_after_its_cycles() -> None:
    ran: list[int] = []
    assert not drain(lambda: ran.append(1) is None, cycles=3, within_ms=1000)
    assert len(ran) == 3


def test_a_drain_gives_up_after_its_time() -> None:
    now = iter([0.0, 0.4, 0.8, 1.2])
    ran: list[int] = []
    cycle = lambda: ran.append(1) is None  # noqa: E731
    assert not drain(cycle, cycles=10, within_ms=1000, clock=lambda: next(now))
    assert len(ran) == 3


class Gate:
    """A cycle that says when it runs and ends when it is told how."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.outcomes: list[bool | Exception] = []
        self.running = self.most = self.count = 0

    def __call__(self) -> bool:
        self.running += 1
        self.count += 1
        self.most = max(self.most, self.running)
        self.began.release()
        assert self.go_on.acquire(timeout=WITHIN_S)
        self.running -= 1
        outcome = self.outcomes.pop(0) if self.outcomes else False
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def wait(self) -> None:
        assert self.began.acquire(timeout=WITHIN_S)


Made = Callable[..., tuple[Lifecycle, Gate, list[Exception]]]


@pytest.fixture
def lifecycle() -> Iterator[Made]:
    made: list[tuple[Lifecycle, Gate]] = []

    def make(idle_ms: float = 60_000, **options: object) -> tuple[Lifecycle, Gate, list[Exception]]:
        gate, errors = Gate(), []
        one = Lifecycle(gate, name="test", idle_ms=idle_ms, on_error=errors.append, **options)
        made.append((one, gate))
        return one, gate, errors

    yield make
    for one, gate in made:
        gate.go_on.release(100)
        assert one.stop(WITHIN_S)


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


def never_early(condition: threading.Condition, seconds: float) -> None:
    """Sleep as a timer would that nothing but a request wakes."""
    condition.wait(None if seconds > 0.001 else seconds)


def test_requests_while_a_cycle_runs_join_it(lifecycle: Made) -> None:
    one, gate, _ = lifecycle(sleep=never_early)
    gate.outcomes = [True]
    one.start()
    gate.wait()
    asked = [in_thread(lambda: one.ask(WITHIN_S)) for _ in range(3)]
    wait_until(lambda: len(one._changed._waiters) == 3)
    gate.go_on.release()
    for thread, _ in asked:
        thread.join(WITHIN_S)
    assert [results for _, results in asked] == [[True], [True], [True]]
    gate.wait()  # the next one, because the first applied something: not four
    gate.go_on.release()
    wait_until(lambda: gate.running == 0)
    assert (gate.count, gate.most) == (2, 1)


def test_a_request_wakes_an_idle_timer_once(lifecycle: Made) -> None:
    one, gate, _ = lifecycle(sleep=never_early)
    one.start()
    gate.wait()
    gate.go_on.release()
    wait_until(lambda: gate.running == 0 and not one._running)
    gate.go_on.release()
    assert one.ask(WITHIN_S) is False
    assert gate.count == 2


def test_a_failed_cycle_is_told_backs_off_and_stops_nothing(lifecycle: Made) -> None:
    slept: list[float] = []

    def sleep(condition: threading.Condition, seconds: float) -> None:
        slept.append(seconds)
        condition.wait(0.001)

    one, gate, errors = lifecycle(idle_ms=3, sleep=sleep, clock=iter_clock(0.0005))
    gate.outcomes = [ValueError("broken"), ValueError("again")]
    one.start()
    for _ in range(3):
        gate.wait()
        gate.go_on.release()
    wait_until(lambda: len(errors) == 2)
    assert [str(error) for error in errors] == ["broken", "again"]
    assert slept and max(slept) <= 0.003


def iter_clock(step: float) -> Callable[[], float]:
    now = [0.0]

    def clock() -> float:
        now[0] += step
        return now[0]

    return clock


def test_who_joined_a_failed_cycle_gets_its_error(lifecycle: Made) -> None:
    one, gate, _ = lifecycle(sleep=never_early)
    gate.outcomes = [ValueError("broken")]
    one.start()
    gate.wait()
    thread, results = in_thread(lambda: one.ask(WITHIN_S))
    wait_until(lambda: len(one._changed._waiters) == 1)
    gate.go_on.release()
    thread.join(WITHIN_S)
    assert [str(error) for error in results] == ["broken"]


def test_a_stop_waits_for_the_running_cycle_and_no_other_begins(lifecycle: Made) -> None:
    one, gate, _ = lifecycle(idle_ms=1)
    gate.outcomes = [True]
    one.start()
    gate.wait()
    assert not one.stop(0.02)
    gate.go_on.release()
    assert one.stop(WITHIN_S)
    assert gate.count == 1
    with pytest.raises(RuntimeError):
        one.ask(WITHIN_S)


def test_a_stop_wakes_a_sleeping_timer(lifecycle: Made) -> None:
    one, gate, _ = lifecycle(sleep=never_early)
    one.start()
    gate.wait()
    gate.go_on.release()
    wait_until(lambda: not one._running)
    assert one.stop(WITHIN_S)
