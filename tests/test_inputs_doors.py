"""Bad arguments of every step: both engines refuse them alike, and store nothing."""

from collections.abc import Iterator
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest

from qinglong_sql.errors import Conflict, Malformed
from qinglong_sql.stage import STAGES
from tests import acting, hostile
from tests.engines import Engine
from tests.hostile import Place
from tests.stores import FakeClock, ServerClock, store_on


@pytest.fixture
def places(sqlite_dsn: str, postgres_dsn: str) -> Iterator[list[Place]]:
    """Both engines with the same run under way, at the same time of their clocks."""
    with ExitStack() as stack:
        clock = ServerClock(postgres_dsn)
        stack.callback(clock.close)
        found = []
        for engine, own in (
            (Engine("sqlite", sqlite_dsn, None), FakeClock()),
            (Engine("postgres", postgres_dsn, None), clock),
        ):
            store = store_on(engine, own)
            stack.callback(store.close)
            found.append(hostile.prepared(engine, store))
        yield found


def test_every_parameter_of_every_step_is_refused_alike_and_stores_nothing(
    places: list[Place],
) -> None:
    count, faults = 0, []
    for calls in hostile.groups(places[0].valid):
        count += len(calls)
        faults += hostile.faults_of(places, calls)
    assert not faults, "\n".join(faults[:20])
    assert count > 3_000
    assert all(acting.unbroken(place.store) for place in places)


def test_drawn_arguments_are_refused_alike(places: list[Place]) -> None:
    random = Random(4)
    for _ in range(25):
        assert not list(hostile.faults_of(places, hostile.drawn_group(random, places[0].valid)))


def test_a_door_that_takes_what_the_other_refuses_is_found(
    places: list[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check has teeth: one engine without the common look at arguments."""
    monkeypatch.setattr("qinglong_sql.store.postgres.check_params", lambda *_: None)
    calls: list[hostile.Call] = [("withdraw_package", "p_package_key", value) for value in ("\0",)]
    calls += [
        ("due_page", "p_limit", 2**63),
        ("start_attempts", "p_commands", '[{"fence":1,"fence":1}]'),
    ]
    assert len(list(hostile.faults_of(places, calls))) == 2


def test_functions_called_by_themselves_refuse_by_code_and_store_nothing(
    places: list[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a login of another program, which has no Python of ours before it."""
    monkeypatch.setattr("qinglong_sql.store.postgres.check_params", lambda *_: None)
    _, postgres = places
    for calls in hostile.groups(postgres.valid):
        # what is no number of the parameter's type finds no function
        mine = [one for one in calls if one[2] is None or one[1] in hostile.LISTS | hostile.OBJECTS]
        assert not list(hostile.faults_of([postgres], mine))
    assert acting.unbroken(postgres.store)


def test_a_fault_of_any_words_is_kept(places: list[Place], monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the page would end at it, and hide every run behind."""
    stage = STAGES["task_admission"]
    for place in places:
        run_id = acting.start(place.store, key="faulty")
        real = place.store.call

        def call(step: str, /, real: Any = real, **params: Any) -> Any:
            if step in (stage.page_step, stage.run_step):
                raise Conflict("odd \0 \ud800 " + "x" * 5_000)
            return real(step, **params)

        monkeypatch.setattr(place.store, "call", call)
        (row,) = place.store.page(stage, acting.START, 32)
        assert (row["run_id"], row["outcome"]) == (run_id, "faulted")
        (fault,) = place.store.read("fault_state", run_id=run_id)
        assert fault["error"].startswith("QL409 odd ? ? x")


@pytest.mark.parametrize(
    "text",
    ['{"a":1e400}', '{"a":1,"\\u0061":2}', '{"a":9223372036854775808}', hostile.NESTED[65]],
)  # fmt: skip
def test_sql_itself_refuses_what_readers_take_differently(places: list[Place], text: str) -> None:
    """Not only Python before it: an input and an output are read in SQL."""
    for place in places:
        with pytest.raises(Malformed):
            place.store.call("start_run", **(place.valid["start_run"] | {"p_input": text}))
