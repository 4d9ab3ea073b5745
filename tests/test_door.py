"""The edge's socket: who may ask, how little it may cost, and what is left of it."""

import json
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from qinglong_sql import door
from qinglong_sql.door import ANSWER_BYTES, MAX_CLIENTS, NAME, PATH_BYTES, Door, ask
from tests.site import descriptors

ANSWERS: dict[str, dict[str, Any]] = {
    "status": {"pid": 7},
    "long": {"text": "x" * 100_000},
    "huge": {"text": "x" * ANSWER_BYTES},
}
answer = ANSWERS.get


@contextmanager
def served(folder: Path) -> Iterator[Door]:
    """A door whose owner does nothing else."""
    before = descriptors()
    one = Door(folder, answer)
    over = threading.Event()

    def loop() -> None:
        poll = select.poll()
        poll.register(one.fileno(), select.POLLIN)
        while not over.is_set():
            poll.poll(20)
            one.serve()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield one
    finally:
        over.set()
        thread.join()
        one.close()
        one.close()
    assert descriptors() == before
    assert not (folder / NAME).exists()


def connected(folder: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(5)
    sock.connect(str(folder / NAME))
    return sock


@pytest.mark.parametrize("word, found", [
    ("status", {"pid": 7}),
    ("long", {"text": "x" * 100_000}),
    ("huge", {"error": "the answer is too long"}),
    ("nonsense", {"error": "no such word"}),
])  # fmt: skip
def test_a_word_is_answered(tmp_path: Path, word: str, found: dict[str, Any]) -> None:
    with served(tmp_path):
        assert ask(tmp_path, word) == found
        assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600


def test_nobody_is_there(tmp_path: Path) -> None:
    assert ask(tmp_path, "status") is None
    assert ask(tmp_path / "nowhere", "status") is None
    (tmp_path / NAME).write_text("no socket")
    assert ask(tmp_path, "status") is None


def test_an_owner_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    one = Door(tmp_path, answer)
    try:
        start = time.monotonic()
        assert ask(tmp_path, "status", within_s=0.1) is None
        assert time.monotonic() - start < 1
    finally:
        one.close()


def test_the_socket_of_a_dead_owner_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / NAME))
    assert ask(tmp_path, "status") is None
    with served(tmp_path) as one:
        assert ask(tmp_path, "status") == {"pid": 7}
    with served(tmp_path):
        one.close()  # what has come after it stays
        assert ask(tmp_path, "status") == {"pid": 7}


def test_a_folder_with_a_long_name_is_reached(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 120) / ("b" * 120)
    folder.mkdir(parents=True)
    assert len(os.fsencode(folder / NAME)) > PATH_BYTES
    with served(folder):
        assert ask(folder, "status") == {"pid": 7}


@pytest.mark.parametrize("said", [
    b"x" * 10_000, b"status\n", b"[1]\n", b'{"word": 3}\n', b"\xff\n", b"[" * 200 + b"\n", b'"',
])  # fmt: skip
def test_nonsense_costs_its_own_connection_only(tmp_path: Path, said: bytes) -> None:
    with served(tmp_path), connected(tmp_path) as sock:
        try:
            sock.sendall(said)
            sock.shutdown(socket.SHUT_WR)
            heard = sock.recv(4096)
        except ConnectionError:
            heard = b""
        assert heard in (b"", b'{"error": "no such word"}\n')
        assert ask(tmp_path, "status") == {"pid": 7}


def test_clients_that_are_silent_are_sent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "PATIENCE_S", 0.2)
    with served(tmp_path), connected(tmp_path) as silent, connected(tmp_path) as deaf:
        deaf.sendall(json.dumps({"word": "long"}).encode() + b"\n")
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        assert ask(tmp_path, "status") == {"pid": 7}, "they hold up nobody"
        assert silent.recv(1) == b""


def test_a_crowd_does_not_take_all_descriptors(tmp_path: Path) -> None:
    with served(tmp_path) as one:
        crowd = []
        for _ in range(3 * MAX_CLIENTS):
            crowd.append(connected(tmp_path))
            time.sleep(0.002)
        assert ask(tmp_path, "status") == {"pid": 7}
        assert len(one._clients) <= MAX_CLIENTS
        for sock in crowd:
            sock.close()


def test_only_its_user_and_root_may_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path):
        monkeypatch.setattr(door, "_uid_of", lambda sock: 4242)
        assert ask(tmp_path, "status") is None
