"""One connection to the ingress on which everything that waits has an end (DESIGN §9).

http.client speaks over it. A socket's own time-out starts anew with each byte, so a line that drips
would keep a worker from its renewals; here one moment ends it all.
"""

import io
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import Any, cast

Address = tuple[Any, ...]
RESOLVE_S = 2.0


class Line:
    """A connected TLS socket, as far as http.client needs one. `until` ends what waits."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._end_s = 0.0
        self._readers = 0
        self._closed = False

    def until(self, end_s: float) -> None:
        """From now on nothing waits longer than this moment of time.monotonic()."""
        self._end_s = end_s

    def sendall(self, raw: bytes) -> None:
        """Send all of it. Raises TimeoutError, and what the socket raises."""
        view = memoryview(raw)
        while view:
            self._patient()
            view = view[self._sock.send(view) :]

    def makefile(self, mode: str, *args: Any) -> io.BufferedReader:
        """What comes in; the line stands until it is closed as well, like a socket."""
        self._readers += 1
        return io.BufferedReader(cast(io.RawIOBase, _Incoming(self)))

    def receive(self, buffer: Any) -> int:
        """Some of what comes in; 0 at its end."""
        self._patient()
        return self._sock.recv_into(buffer)

    def close(self) -> None:
        """Hang up, when nobody reads any more: http.client does it before a last answer is read."""
        self._closed = True
        if self._readers == 0:
            self._sock.close()

    def left(self) -> None:
        """A reader has ended."""
        self._readers -= 1
        if self._closed:
            self.close()

    def _patient(self) -> None:
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left_s)


class _Incoming(io.RawIOBase):
    def __init__(self, line: Line) -> None:
        self._line = line

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._line.receive(buffer)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._line.left()


class Places:
    """The addresses of a host; those of the last time when nobody resolves its name in time."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._known: list[tuple[int, Address]] = []

    def look(self, within_s: float) -> Sequence[tuple[int, Address]]:
        """Families and addresses. Raises OSError when none was ever known."""
        found: list[tuple[int, Address]] = []
        errors: list[OSError] = []

        def ask() -> None:
            try:
                rows = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
                found.extend((int(row[0]), row[4]) for row in rows)
            except OSError as error:
                errors.append(error)

        # The resolver takes its own time, which nothing can end.
        asking = threading.Thread(target=ask, name="resolve", daemon=True)
        asking.start()
        asking.join(min(within_s, RESOLVE_S))
        self._known = found or self._known
        if not self._known:
            raise errors[0] if errors else TimeoutError(f"nobody resolves {self._host}")
        return self._known


def connect(places: Places, context: ssl.SSLContext, host: str, within_s: float) -> Line:
    """A line to the first of the places that answers, within so many seconds. Raises OSError."""
    end_s = time.monotonic() + within_s
    first: OSError | None = None
    found = places.look(within_s)
    for number, (family, address) in enumerate(found):
        left_s = (end_s - time.monotonic()) / (len(found) - number)
        if left_s <= 0:
            break
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.settimeout(left_s)
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(max(0.001, end_s - time.monotonic()))
            return Line(context.wrap_socket(sock, server_hostname=host))
        except ssl.SSLCertVerificationError:
            sock.close()
            raise
        except OSError as error:
            sock.close()
            first = first or error
    raise first or TimeoutError("timed out")
