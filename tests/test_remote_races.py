"""The race matrix of workers (remote_cases), asked of the steps themselves."""

import pytest

from tests import remote_cases
from tests.acting import Engine, Store
from tests.remote_cases import Case, Named, Room
from tests.stores import FakeClock


@pytest.mark.parametrize("case", remote_cases.CASES, ids=lambda case: case.__name__)
def test_who_loses_is_told_so_and_moves_nothing(
    store: Store, engine: Engine, clock: FakeClock, case: Case
) -> None:
    room = Room(engine, store, clock, lambda worker: Named(store, worker))
    remote_cases.judge(room, case(room))
