"""A TCP proxy in front of PostgreSQL that loses one command, or the answer of one.

It reads just enough of the protocol: where a message begins, which one executes something (Execute
or Query), and when the server has finished (ReadyForQuery). It speaks no TLS, so the client asks
for none twice.
"""

import contextlib
import select
import socket
import threading
from typing import Literal
from urllib.parse import urlsplit

Loss = Literal["command", "answer", "part"]

ENCRYPTION = frozenset({80877103, 80877104})  # SSLRequest, GSSENCRequest
CANCEL = 80877102
LARGE = 1 << 16


class Proxy:
    """Listens on a loopback `port` in front of `server_port` until it is closed.

    `lose` arms it for the next command of any connection, or one `after` that many: the command
    itself never arrives; or the server finishes it and its answer is not passed on, or only the
    first half of it is. Then both sides are closed. `lost` counts what was lost.
    """

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.lost = 0
        self._armed: Loss | None = None
        self._after = 0
        self._closing = False
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def lose(self, what: Loss | None, after: int = 0) -> None:
        self._armed, self._after = what, after

    def close(self) -> None:
        """Cut every connection and wait for the threads."""
        self._closing = True
        for one in (self._listener, *tuple(self._sockets)):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _start(self, target: object, *words: object) -> None:
        thread = threading.Thread(target=target, args=words, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, EOFError):
            server = socket.create_connection(("127.0.0.1", self.server_port), 10)
            with server:
                server.settimeout(None)
                self._sockets |= {client, server}
                try:
                    greet(client, server)
                    self._relay(client, server)
                finally:
                    self._sockets -= {client, server}

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on whole batches of the client's messages, and whatever the server says."""
        waiting = bytearray()
        while True:
            for ready in select.select([client, server], [], [])[0]:
                received = ready.recv(LARGE)
                if not received:
                    return
                if ready is server:
                    client.sendall(received)
                    continue
                waiting += received
                whole = whole_batch(waiting)
                batch = bytes(waiting[:whole])
                del waiting[:whole]
                if self._armed and executes(batch):
                    if not self._after:
                        self._lose(batch, client, server)
                        return
                    self._after -= 1
                server.sendall(batch)

    def _lose(self, batch: bytes, client: socket.socket, server: socket.socket) -> None:
        what, self._armed = self._armed, None
        self.lost += 1
        if what == "command":
            return
        server.sendall(batch)
        answer = bytearray()
        while not ready_for_query(answer):
            received = server.recv(LARGE)
            if not received:
                return
            answer += received
        if what == "part":
            client.sendall(answer[: len(answer) // 2])


def in_front_of(dsn: str) -> tuple[Proxy, str]:
    """A proxy in front of where a DSN leads, and the DSN that goes through it."""
    port = urlsplit(dsn).port
    assert port, "it says no port"
    proxy = Proxy(port)
    return proxy, dsn.replace(f":{port}/", f":{proxy.port}/")


def greet(client: socket.socket, server: socket.socket) -> None:
    """Refuse encryption, then pass on the start packet. Raises EOFError."""
    while True:
        length = exactly(client, 4)
        rest = exactly(client, int.from_bytes(length) - 4)
        code = int.from_bytes(rest[:4])
        if code not in ENCRYPTION:
            server.sendall(length + rest)
            if code == CANCEL:
                raise EOFError
            return
        client.sendall(b"N")


def exactly(source: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        received = source.recv(count - len(found))
        if not received:
            raise EOFError
        found += received
    return bytes(found)


def messages(stream: bytes | bytearray) -> list[tuple[int, int]]:
    """Kind and end of every whole message."""
    found, at = list[tuple[int, int]](), 0
    while at + 5 <= len(stream):
        end = at + 1 + int.from_bytes(stream[at + 1 : at + 5])
        if end > len(stream):
            break
        found.append((stream[at], end))
        at = end
    return found


def whole_batch(stream: bytearray) -> int:
    """Where the last batch ends that the server acts on: Sync, Flush, Query, Terminate, login."""
    kinds = [kind for kind, _ in messages(stream)]
    if not kinds:
        return 0
    ends = [end for kind, end in messages(stream) if kind in b"SQpXH"]
    return ends[-1] if ends else 0


def executes(batch: bytes) -> bool:
    return any(kind in b"EQ" for kind, _ in messages(batch))


def ready_for_query(stream: bytearray) -> bool:
    """Whether the stream ends with it."""
    found = messages(stream)
    return bool(found) and found[-1][0] == ord("Z") and found[-1][1] == len(stream)
