"""Logs at the workers' door: they come in pieces, and a full folder holds up no work."""

import errno
import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from qinglong_sql import ingress_logs
from qinglong_sql.store.postgres import PostgresStore
from qinglong_sql.wire import LOG_BYTES
from tests import acting
from tests.doors_remote import Site


@pytest.fixture
def site(ingress_site: Site) -> Site:
    return ingress_site


@pytest.fixture(scope="module")
def store(shared_ingress: Site) -> Iterator[PostgresStore]:
    with closing(PostgresStore(shared_ingress.dsn)) as store:
        yield store


def test_a_log_comes_in_pieces_and_ends(site: Site, store: PostgresStore) -> None:
    acting.publish(store, {"a": []})
    run_id = acting.start(store, key="logs")
    acting.page(store, "task_admission_page")
    with site.client("w1") as door:
        acting.register(door, "w1", "s-log")  # type: ignore[arg-type]
        held = acting.lease(door, "logs", run_id=run_id, worker="w1", session="s-log")["a"]  # type: ignore[arg-type]
        path = site.settings.log_folder() / run_id / "a.1.log"
        assert door.log(held, 0, b"") == (200, {"size": 0})
        assert door.log(held, 0, b"one\n") == (200, {"size": 4})
        assert door.log(held, 0, b"one\ntwo\n") == (200, {"size": 8})  # what is held stays
        assert door.log(held, 99, b"a gap") == (200, {"size": 8})
        assert door.log(held, 8, b"x" * LOG_BYTES)[1] == {"size": 8 + LOG_BYTES}
        assert door.log(held, 8 + LOG_BYTES, b"x" * (LOG_BYTES + 1))[0] == 413
        assert door.log(held, 8 + LOG_BYTES, b"", QL_Dropped="7")[0] == 200
        assert path.read_bytes().startswith(b"one\ntwo\nxxx")
        assert path.with_suffix(".dropped").read_text() == "7\n"
        for odd in ({"QL_Token": "wrong"}, {"QL_Fence": "2"}):
            assert door.log(held, 0, b"forged", **odd)[1]["code"] == "QL410"
        assert door.log(held, 0, b"forged", QL_Attempt="none")[0] == 404
        for odd in ({"QL_Offset": "-1"}, {"QL_Fence": "x"}, {"QL_Token": ""}):
            assert door.log(held, 0, b"forged", **odd)[1]["code"] == "QL400"
        assert door.send("/v1/log", b"x", Content_Type="application/octet-stream")[1] == {
            "code": "QL400", "message": "the header QL-Attempt is missing",
        }  # fmt: skip
    assert "forged" not in path.read_text()
    assert held.token not in site.out.getvalue()


def test_a_log_folder_that_is_full_is_told_and_counted_and_work_goes_on(
    site: Site, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    acting.publish(store, {"a": []})
    run_id = acting.start(store, key="full")
    acting.page(store, "task_admission_page")
    write = os.pwrite

    def no_room(fd: int, chunk: bytes, at: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def told(event: str) -> list[str]:
        lines = [one["message"] for one in site.lines(event) if one.get("source") == "logs"]
        return [line.replace(str(site.settings.log_folder()), "FOLDER") for line in lines]

    monkeypatch.setattr(ingress_logs, "CALM_S", 0.0)
    before = site.count("log_failures_total")
    with site.client("w1") as door:
        acting.register(door, "w1", "s-full")  # type: ignore[arg-type]
        held = acting.lease(door, "full", run_id=run_id, worker="w1", session="s-full")["a"]  # type: ignore[arg-type]
        monkeypatch.setattr(os, "pwrite", no_room)
        for _ in range(3):
            assert door.log(held, 0, b"one\n") == (200, {"size": 0})
        assert told("trouble") == ["logs: log folder FOLDER: No space left on device"]
        assert site.count("log_failures_total") == before + 3
        assert site.ingress.refusal() is None and told("well") == []
        monkeypatch.setattr(os, "pwrite", write)
        assert door.log(held, 0, b"one\n", QL_Dropped="0") == (200, {"size": 4})
        assert told("well") == ["logs: it works again"]
    assert site.count("log_failures_total") == before + 3
