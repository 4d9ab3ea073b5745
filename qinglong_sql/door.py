"""The socket at which an edge answers, in its own loop; and who asks there (DESIGN §9, §12).

One line of JSON each way: `{"word": "status"}`, and what the word is answered with. Only the user
of the edge and root may ask.
"""

import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAME = "edge.sock"
PATH_BYTES = 107  # of sun_path, without its NUL
ASKED_BYTES = 256
ANSWER_BYTES = 4 * 1024 * 1024  # 512 files with all their faults, 128 queues
MAX_CLIENTS = 8
PATIENCE_S = 2.0
AGAIN_S = 0.02

Answer = Callable[[str], dict[str, Any] | None]


def ask(folder: Path, word: str, within_s: float = 1.0) -> dict[str, Any] | None:
    """What the edge of a state folder answers to a word; None when nobody is there in time.

    A door with a crowd before it is knocked at again until then. An answer with the one key `error`
    says why not. Raises nothing.
    """
    end = time.monotonic() + within_s
    while True:
        try:
            return _asked(folder, word, end)
        except (BlockingIOError, ConnectionResetError, BrokenPipeError):
            if time.monotonic() + AGAIN_S >= end:
                return None
            time.sleep(AGAIN_S)
        except (OSError, ValueError):
            return None


def _asked(folder: Path, word: str, end: float) -> dict[str, Any] | None:
    """Raises BlockingIOError, ConnectionResetError or BrokenPipeError for a crowd, OSError."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock,
        reachable(folder) as path,
    ):
        sock.settimeout(max(AGAIN_S, end - time.monotonic()))
        sock.connect(path)
        if _uid_of(sock) not in (0, os.geteuid()) and os.geteuid() != 0:
            return None  # somebody else's: what it says is not to be believed
        sock.sendall(json.dumps({"word": word}).encode() + b"\n")
        found = json.loads(_line_from(sock, end))
    return found if isinstance(found, dict) else None


def _line_from(sock: socket.socket, end: float) -> bytes:
    said = b""
    while not said.endswith(b"\n"):
        left = end - time.monotonic()
        if left <= 0 or len(said) > ANSWER_BYTES:
            raise TimeoutError
        sock.settimeout(left)
        more = sock.recv(65536)
        if not more:
            raise ConnectionResetError
        said += more
    return said


@contextmanager
def reachable(folder: Path) -> Iterator[str]:
    """A path to the socket that is short enough, whatever the folder is called. Raises OSError."""
    plain = str(folder / NAME)
    if len(os.fsencode(plain)) <= PATH_BYTES:
        yield plain
        return
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{NAME}"
    finally:
        os.close(fd)


def _uid_of(sock: socket.socket) -> int:
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(uid)


@dataclass(slots=True)
class Client:
    """Somebody at the door: what was heard, what is still to be said, and until when we wait."""

    sock: socket.socket
    until_s: float
    heard: bytes = b""
    owed: memoryview = field(default_factory=lambda: memoryview(b""))


class Door:
    """Answers in the loop of its owner, and never waits for anybody.

    `fileno` is readable when `serve` has something to do. `answer` gives None for an unknown word.
    The caller owns the folder, so an older socket there is a dead one's. Raises OSError.
    """

    def __init__(self, folder: Path, answer: Answer) -> None:
        self._folder = folder
        self._answer = answer
        self._clients: dict[int, Client] = {}
        self._poll = select.epoll(flags=select.EPOLL_CLOEXEC)
        self._sock = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        try:
            with suppress(FileNotFoundError):
                (folder / NAME).unlink()
            os.fchmod(self._sock.fileno(), 0o600)  # the file of a socket gets its mode
            with reachable(folder) as path:
                self._sock.bind(path)
            (folder / NAME).chmod(0o600)
            self._sock.listen(MAX_CLIENTS)
            self._poll.register(self._sock, select.EPOLLIN)
        except BaseException:
            self._sock.close()
            self._poll.close()
            raise

    def fileno(self) -> int:
        return self._poll.fileno()

    def serve(self) -> None:
        """Do what can be done without waiting, and send those away who are too slow."""
        for fd, _ in self._poll.poll(0):
            if fd == self._sock.fileno():
                self._greet()
            elif fd in self._clients:
                try:
                    self._attend(self._clients[fd])
                except (OSError, ValueError):
                    self._part(fd)
        now = time.monotonic()
        for fd, client in list(self._clients.items()):
            if now >= client.until_s:
                self._part(fd)

    def close(self) -> None:
        """Close the door and remove its socket. May be repeated."""
        for fd in list(self._clients):
            self._part(fd)
        if self._sock.fileno() >= 0:
            with suppress(OSError):
                (self._folder / NAME).unlink()
        self._sock.close()
        self._poll.close()

    def _greet(self) -> None:
        for _ in range(MAX_CLIENTS):  # more of them come with the next wake-up
            try:
                sock, _ = self._sock.accept()
            except OSError:  # nobody any more, or no descriptor left for one
                return
            if _uid_of(sock) not in (0, os.geteuid()):
                sock.close()
                continue
            if len(self._clients) >= MAX_CLIENTS:
                self._part(min(self._clients, key=lambda fd: self._clients[fd].until_s))
            sock.setblocking(False)
            fd = sock.fileno()
            self._clients[fd] = Client(sock, time.monotonic() + PATIENCE_S)
            self._poll.register(fd, select.EPOLLIN)

    def _attend(self, client: Client) -> None:
        """Hear a client out, answer it. Raises OSError or ValueError to be rid of it."""
        if not client.owed:
            more = client.sock.recv(ASKED_BYTES + 1)
            client.heard += more
            if not more or len(client.heard) > ASKED_BYTES:
                raise ValueError("it left, or talks too much")
            if not client.heard.endswith(b"\n"):
                return
            client.owed = memoryview(self._said_to(client.heard))
            self._poll.modify(client.sock, select.EPOLLOUT)
        with suppress(BlockingIOError):
            while client.owed:
                client.owed = client.owed[client.sock.send(client.owed) :]
            self._part(client.sock.fileno())

    def _said_to(self, heard: bytes) -> bytes:
        asked = json.loads(heard)
        word = asked.get("word") if isinstance(asked, dict) else None
        found = self._answer(word) if isinstance(word, str) else None
        said = json.dumps(found or {"error": "no such word"}).encode() + b"\n"
        if len(said) > ANSWER_BYTES:
            said = b'{"error": "the answer is too long"}\n'
        return said

    def _part(self, fd: int) -> None:
        client = self._clients.pop(fd)
        with suppress(OSError):
            self._poll.unregister(fd)
        client.sock.close()
