"""The fence of a control process: what trips it, and that it goes one way (DOMAIN §7)."""

import psycopg
import psycopg_pool
import pytest

from qinglong_sql.errors import Conflict, NotReady, Violated
from qinglong_sql.fence import Fence, trips
from qinglong_sql.scheduler import Cycle, StageFailed, Turn
from qinglong_sql.store import Contended

GONE = [
    "08000", "08001", "08003", "08004", "08006", "08P01", "25006",
    "57P01", "57P02", "57P03", "57P04",
]  # fmt: skip
NOT_GONE = [
    "23505", "23503", "23514", "40001", "40P01", "40002", "55P03", "57014", "57P05", "42501",
    "42883", "0A000", "22023", "53100", "25P02", "P0001", "QL409", "QL503",
]  # fmt: skip


def of_state(code: str) -> psycopg.Error:
    kind = psycopg.errors.lookup(code) if not code.startswith("QL") else psycopg.DatabaseError
    error = kind("in words")
    error.sqlstate = code
    return error


@pytest.mark.parametrize("code", GONE)
def test_an_error_of_the_connection_trips_the_fence(code: str) -> None:
    assert trips(of_state(code))
    assert trips(behind(of_state(code))), "as a stage raises it"


@pytest.mark.parametrize("code", NOT_GONE)
def test_an_error_of_a_statement_does_not_trip_the_fence(code: str) -> None:
    assert not trips(of_state(code)) and not trips(behind(of_state(code)))


@pytest.mark.parametrize(
    "error",
    [psycopg.OperationalError("server closed the connection"), psycopg_pool.PoolTimeout("in 5 s"),
     psycopg.InterfaceError("the connection is closed"), ConnectionResetError(104, "reset"),
     TimeoutError("timed out"), BrokenPipeError(32, "broken pipe")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_an_error_of_the_network_trips_the_fence(error: Exception) -> None:
    assert trips(error) and trips(behind(error))


@pytest.mark.parametrize(
    "error",
    [Contended("held"), Conflict("lost"), Violated("broken"), NotReady("isolation"),
     ValueError("a bug"), psycopg.ProgrammingError("a bug"), psycopg.DataError("odd")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_refusal_does_not_trip_the_fence(error: Exception) -> None:
    assert not trips(error) and not trips(behind(error))


def behind(error: BaseException) -> StageFailed:
    failed = StageFailed("frontier", Cycle({}, Turn()))
    failed.__cause__ = error
    return failed


def test_the_fence_goes_one_way() -> None:
    told: list[str] = []
    fence = Fence(told.append)
    assert (fence.state, fence.refusal(), fence.shut) == ("starting", "starting", False)
    assert fence.ready() and not fence.ready()
    assert (fence.state, fence.refusal(), fence.shut) == ("ready", None, False)
    fence.starting("never again")
    assert fence.withdraw("stopping") and not fence.ready() and not fence.withdraw("again")
    assert (fence.state, fence.refusal(), fence.shut) == ("unavailable", "stopping", True)
    assert fence.trip("gone") and told == ["gone"] and fence.refusal() == "stopping"
    assert fence.stopped() and not fence.withdraw("x") and not fence.ready()
    assert not fence.trip("late") and (told, fence.tripped) == (["gone"], "gone")
    early = Fence()
    assert early.withdraw("no") and not early.ready() and early.shut, "a stop while it starts"
