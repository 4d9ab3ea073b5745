"""The launcher's end of the socket to its worker; the newest worker's counts (DESIGN §9).

Only light modules may be imported here: each launcher is a fork of a process that holds them.
"""

from __future__ import annotations

import json
import select
import socket
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send one packet without waiting; who does not read misses it (the receipt is the truth)."""
    with suppress(OSError):
        connection.send(json.dumps(message).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


class Channel:
    """The connection of the worker and the named socket by which another takes over."""

    def __init__(self, folder_fd: int, poll: select.poll) -> None:
        self.poll = poll
        self.connection: socket.socket | None = None
        # Binding fails when another launcher lives here, before anything of its is touched. A
        # folder's path may be longer than a socket's may, hence the short name of its descriptor.
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(f"/proc/self/fd/{folder_fd}/launcher.sock")
        self.listener.listen(8)
        self.listener.setblocking(False)
        self.poll.register(self.listener.fileno(), select.POLLIN)

    def greet(self, connection: socket.socket, hello: dict[str, Any]) -> None:
        """Let this worker's connection be the one that counts, and tell it who we are."""
        if self.connection:
            self.hang_up(self.connection)
        connection.setblocking(False)
        self.connection = connection
        self.poll.register(connection.fileno(), select.POLLIN)
        send(connection, hello)

    def hang_up(self, connection: socket.socket) -> None:
        self.poll.unregister(connection.fileno())
        connection.close()
        self.connection = None

    def tell(self, message: dict[str, Any]) -> None:
        if self.connection:
            send(self.connection, message)

    def newer(self) -> socket.socket | None:
        """The connection of a worker that wants to take over, if one does."""
        try:
            return self.listener.accept()[0]
        except OSError:
            return None


def receive(connection: socket.socket) -> bytes | None:
    """The next packet; None when none is there yet, empty at end of file."""
    try:
        return connection.recv(4096)
    except BlockingIOError:
        return None
    except OSError:
        return b""
