"""An edge that has its lock and does not answer: never taken for none."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from qinglong_sql.cli import alone
from qinglong_sql.cli.options import state_folder
from qinglong_sql.door import MAX_CLIENTS, NAME, Door, ask
from qinglong_sql.edge_setting import only_one
from tests.shell import Shell


@pytest.fixture
def folder(sqlite_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This process is the edge of a database, and does nothing."""
    monkeypatch.setattr(alone, "SILENT_S", 0.0)
    folder = state_folder(sqlite_dsn)
    with only_one(folder):
        yield folder


def test_an_edge_that_does_not_answer_is_a_fault(
    folder: Path, sqlite_dsn: str, tmp_path: Path
) -> None:
    shell, me = Shell(tmp_path, sqlite_dsn), os.getpid()
    silent = {"pid": me, "error": "it is busy"}
    assert alone.edge_here(sqlite_dsn) == silent, "before it has a door"
    door = Door(folder, lambda word: {"pid": me})
    try:
        done = shell("status", "--check", "--json")
        found = json.loads(done.stdout)
        assert (done.returncode, found["ok"], found["edge"]) == (1, False, silent)
        assert [(row["waits_for"], row["waits_on"]) for row in found["stuck"]] == [
            ("edge", str(me))
        ]
        assert found["stuck"][0]["command"] == f"kill {me}"
        told = shell("status").stdout
        words = f"an edge (pid {me}) that does not answer (it is busy)"
        assert f"edge      {words}" in told and "all is well" not in told
        assert alone.who_works(sqlite_dsn) == words
    finally:
        door.close()


@pytest.mark.parametrize("said", ["", "1\n", "99999999\n", "nonsense"])
def test_a_lock_of_somebody_else_is_no_edge(sqlite_dsn: str, said: str) -> None:
    """`restore` and others keep an edge out by its lock, in which the last edge stands."""
    folder = state_folder(sqlite_dsn)
    folder.mkdir(parents=True)
    (folder / alone.EDGE).write_text(said)
    with alone.alone(sqlite_dsn, "a test"):
        assert alone.edge_here(sqlite_dsn) is None
    assert alone.edge_here(sqlite_dsn) is None


def test_a_crowd_before_the_door_is_waited_for(tmp_path: Path) -> None:
    one = Door(tmp_path, lambda word: {"pid": 7})
    with ExitStack() as crowd:
        for _ in range(MAX_CLIENTS + 1):
            sock = crowd.enter_context(socket.socket(socket.AF_UNIX))
            sock.setblocking(False)
            sock.connect(str(tmp_path / NAME))
        with crowd.enter_context(socket.socket(socket.AF_UNIX)) as more:
            more.setblocking(False)
            with pytest.raises(BlockingIOError):
                more.connect(str(tmp_path / NAME))
        over = threading.Event()

        def late() -> None:
            over.wait(0.2)
            while not over.wait(0.01):
                one.serve()

        thread = threading.Thread(target=late)
        thread.start()
        try:
            assert ask(tmp_path, "status", within_s=5.0) == {"pid": 7}
        finally:
            over.set()
            thread.join()
            one.close()
