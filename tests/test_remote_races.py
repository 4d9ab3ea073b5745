"""The race matrix of workers (remote_cases), asked of the steps themselves and at the ingress."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_sql.port import Shut
from qinglong_sql.revocations import REVOKED_LOOK_S
from qinglong_sql.store.postgres import PostgresStore
from tests import acting, remote_cases, remote_room, workers
from tests.acting import GRACE_MS, LEASE_MS, Engine, Store
from tests.remote_room import Case, Named, Room
from tests.stores import FakeClock, ServerClock
from tests.workers import Authority

cases = pytest.mark.parametrize("case", remote_cases.CASES, ids=lambda case: case.__name__)


@cases
def test_who_loses_is_told_so_and_moves_nothing(
    store: Store, engine: Engine, clock: FakeClock, case: Case
) -> None:
    room = Room(engine, store, clock, lambda worker: Named(store, worker))
    remote_room.judge(room, case(room))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("authority"))
    for name in ("w1", "w2"):
        made.worker(name)
    return made


@pytest.fixture
def behind(
    postgres_server, postgres_dsn: str, authority: Authority, tmp_path: Path
) -> Iterator[Room]:
    """A room whose workers come through an ingress."""
    engine = Engine("postgres", postgres_dsn, postgres_server)
    clock, store = ServerClock(postgres_dsn), PostgresStore(postgres_dsn)
    with (
        workers.ingress_here(postgres_dsn, authority, tmp_path) as ingress,
        workers.doors(ingress, authority) as found,
    ):
        yield Room(engine, store, clock, found)
    store.close()
    clock.close()


@cases
def test_at_the_ingress_who_loses_is_told_the_same(behind: Room, case: Case) -> None:
    remote_room.judge(behind, case(behind))


def test_a_revoked_certificate_moves_nothing_and_is_not_even_audited(behind: Room) -> None:
    acting.begun(behind.store, {"a": [], "b": []})
    running = behind.bring(behind.lease("w3", "o1"), "running", "w3")
    claimed = behind.lease("w3", "o2")
    time.sleep(REVOKED_LOOK_S)  # the list was looked at just now
    behind.door.authority.revoke("w3")  # type: ignore[attr-defined]
    before = acting.everything(behind.engine)
    for held in (claimed, running):
        for one in remote_room.every("w3", held, remote_room.REFUSED):
            with pytest.raises(Shut):
                one.ask(behind.door("w3"))
    with pytest.raises(Shut):
        acting.register(behind.door("w3"), "w3", "s2")  # type: ignore[arg-type]
    with pytest.raises(Shut):
        remote_room.offered("w3", "o3")(behind.door("w3"))
    assert acting.everything(behind.engine) == before
    behind.clock.advance(LEASE_MS + GRACE_MS)  # its work is lost as any silent worker's is
    acting.recover(behind.store, running.row["run_id"])
    assert {row["status"] for row in behind.store.read("attempt_state")} == {"lost"}
