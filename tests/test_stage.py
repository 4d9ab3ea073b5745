"""The stages as data, and the one bounded page loop: it fails closed (DESIGN §6, §7)."""

from collections.abc import Callable
from typing import Any

import pytest

from qinglong_sql.limits import PAGE_SIZE, PAGES
from qinglong_sql.stage import STAGES, START, Stage, StalledContinuation, Tally, run_stage
from qinglong_sql.store.steps import STEPS

Row = dict[str, Any]
Page = Callable[[tuple[int, str], int], list[Row]]


class Scripted:
    """A store that has only pages, written down by the test."""

    engine = "sqlite"

    def __init__(self, page: Page) -> None:
        self.asked: list[tuple[str, tuple[int, str], int]] = []
        self._page = page

    def page(self, stage: Stage, after: tuple[int, str], limit: int) -> list[Row]:
        self.asked.append((stage.name, after, limit))
        return self._page(after, limit)

    def call(self, step: str, /, **_: object) -> list[Row]:
        raise AssertionError(f"the loop called {step}")

    def read(self, view: str, /, **_: object) -> list[Row]:
        raise AssertionError(f"the loop read {view}")

    def close(self) -> None:
        pass


def row(number: int, outcome: str = "applied", effects: int = 1, **changes: int) -> Row:
    counts = {"settled_attempts": 0, "blocked_count": int(outcome == "blocked")} | changes
    run_id = f"run-{number:04}"
    return {"run_id": run_id, "due_at_ms": 7, "outcome": outcome, "effects": effects, **counts}


def rows_of(count: int) -> Page:
    """A page function over `count` runs that are all due at the same time."""

    def page(after: tuple[int, str], limit: int) -> list[Row]:
        rest = [row(number) for number in range(count)]
        return [one for one in rest if (7, one["run_id"]) > after][:limit]

    return page


def tally(page: Page, stage: str = "frontier", **bounds: int) -> tuple[Scripted, Tally]:
    store = Scripted(page)
    return store, run_stage(store, STAGES[stage], **bounds)


def stalled(page: Page, stage: str = "frontier", **bounds: int) -> StalledContinuation:
    with pytest.raises(StalledContinuation) as raised:
        tally(page, stage, **bounds)
    return raised.value


def test_every_stage_names_steps_that_exist_and_take_what_the_store_gives() -> None:
    for name, stage in STAGES.items():
        assert stage.name == name and (stage.page_step or stage.run_step)
        if stage.run_step:
            assert STEPS[stage.run_step].params == ("p_run_id",)
        if stage.page_step:
            keys = ("p_after_due_at_ms", "p_after_run_id", "p_limit")
            assert STEPS[stage.page_step].params == keys


def test_the_two_roads_of_cancellation_share_one_word_of_the_agenda() -> None:
    assert {stage.agenda for stage in STAGES.values()} == {
        "frontier", "task_admission", "cancellation", "deadline", "retry", "expiry",
    }  # fmt: skip
    assert STAGES["task_cancellation"].agenda == "cancellation"


def test_the_loop_begins_before_every_key_and_goes_on_from_the_last_one() -> None:
    store, told = tally(rows_of(5), size=2)
    assert [after for _, after, _ in store.asked] == [START, (7, "run-0001"), (7, "run-0003")]
    assert (told.scanned, told.applied, told.effects, told.has_more) == (5, 5, 5, False)


def test_a_page_that_is_just_full_is_followed_by_an_empty_one() -> None:
    store, told = tally(rows_of(2), size=2)
    assert len(store.asked) == 2 and told.scanned == 2 and not told.has_more


def test_four_pages_of_thirty_two_are_the_most() -> None:
    store, told = tally(rows_of(PAGE_SIZE * PAGES + 1))
    assert [limit for _, _, limit in store.asked] == [PAGE_SIZE] * PAGES
    assert told.scanned == PAGE_SIZE * PAGES and told.has_more


def test_nothing_due_is_one_empty_page() -> None:
    store, told = tally(rows_of(0))
    assert len(store.asked) == 1 and told == Tally()


def test_each_outcome_is_counted_apart() -> None:
    page = [
        row(1, "applied", 3),
        row(2, "settled", 0),
        row(3, "blocked", 0),
        row(4, "contended", 0),
        row(5, "faulted", 0),
    ]
    _, told = tally(lambda after, limit: page)
    assert told == Tally(
        scanned=5, applied=1, settled=1, blocked=1, contended=1, faulted=1, effects=3
    )


def test_a_blocked_run_that_moved_counts_as_moved() -> None:
    page = [row(1, "blocked", 0, settled_attempts=2, blocked_count=1)]
    _, told = tally(lambda after, limit: page, "cancellation")
    assert (told.applied, told.blocked, told.settled_attempts) == (1, 1, 2)


@pytest.mark.parametrize(("stage", "moved"), [("cancellation", 1), ("frontier", 0)])
def test_what_convergence_settled_has_just_ended(stage: str, moved: int) -> None:
    _, told = tally(lambda after, limit: [row(1, "settled", 0)], stage)
    assert (told.applied, told.settled) == (moved, 1)


@pytest.mark.parametrize("bounds", [{}, {"size": 4, "pages": 1}])
def test_an_oversized_page_fails_closed(bounds: dict[str, int]) -> None:
    size = bounds.get("size", PAGE_SIZE)
    stalled(lambda after, limit: [row(number) for number in range(size + 1)], **bounds)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param([row(1), row(1)], id="the same key twice"),
        pytest.param([row(2), row(1)], id="keys that fall"),
        pytest.param([row(1) | {"due_at_ms": -1, "run_id": ""}], id="the key it began after"),
        pytest.param([row(1), row(2) | {"due_at_ms": 6}], id="a time that falls"),
    ],
)
def test_keys_that_do_not_grow_fail_closed(page: list[Row]) -> None:
    stalled(lambda after, limit: page)


def test_a_second_page_that_repeats_the_first_fails_closed() -> None:
    error = stalled(lambda after, limit: [row(number) for number in range(limit)], size=2)
    assert (error.stage, error.after) == ("frontier", (7, "run-0001"))


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(row(1, "finished"), id="an outcome that is none"),
        pytest.param(row(1, "blocked", 0, settled_attempts=129), id="more attempts than steps"),
        pytest.param(row(1, "settled", 0, blocked_count=1), id="ended and held"),
        pytest.param(row(1, "applied", -1), id="effects below nothing"),
        pytest.param(row(1, "blocked", 0, settled_attempts=-1), id="attempts below nothing"),
    ],
)
def test_counts_that_cannot_be_fail_closed(bad: Row) -> None:
    stalled(lambda after, limit: [bad], "cancellation")


def test_what_the_store_raises_ends_the_loop() -> None:
    def broken(after: tuple[int, str], limit: int) -> list[Row]:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        tally(broken)
