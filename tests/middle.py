"""Something between a worker and its ingress: it can hold back what is said, and cut lines."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Middle:
    """Listens on a loopback `port` before another one. `held`: answers do not come through.

    A line that was held back stays dead, as one whose packets a network forgets.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self.held = False
        self._lines: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._begin(self._accept)

    def cut(self) -> None:
        """End every line that is open."""
        for one in tuple(self._lines):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _begin(self, target: object, *words: object) -> None:
        threading.Thread(target=target, args=words, daemon=True).start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to), 10)
                self._lines |= {client, server}
                self._begin(self._pass, client, server, False)
                self._begin(self._pass, server, client, True)

    def _pass(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        lost = False
        with contextlib.suppress(OSError):
            while chunk := source.recv(1 << 16):
                lost = lost or (answers and self.held)
                if not lost:
                    sink.sendall(chunk)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        source.close()
        self._lines.discard(source)


@contextmanager
def middle(port: int) -> Iterator[Middle]:
    """One in front of a port; gone afterwards."""
    made = Middle(port)
    try:
        yield made
    finally:
        made.close()
