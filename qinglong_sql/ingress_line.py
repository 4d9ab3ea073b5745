"""A socket of the ingress below TLS: kept alive, and told why it is not let in."""

import asyncio
import contextlib
import socket
import ssl
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Self

ALERT_S: Final = 1.0
# what OpenSSL calls it, in words that tell a client's operator what to do
WHY: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no certificate",
    "UNSUPPORTED_PROTOCOL": "TLS below 1.3",
    "NO_SHARED_CIPHER": "no cipher that both have",
    "HTTP_REQUEST": "HTTP without TLS",
    "WRONG_VERSION_NUMBER": "no TLS",
    "UNEXPECTED_MESSAGE": "no TLS",
}
_alerts: ContextVar["Alerts | None"] = ContextVar("alerts", default=None)


class Handshake(ssl.SSLObject):
    """One that keeps the alert with which it fails."""

    alerts: "Alerts | None" = None
    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        """As SSLObject.do_handshake."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.alerts is not None:
                self.alerts.alert = self.outgoing.read()
            raise


class Telling(ssl.SSLContext):
    """A context whose handshakes let `Alerts` have what TLS says at their end."""

    sslobject_class = Handshake

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *words: Any, **more: Any
    ) -> ssl.SSLObject:
        """As SSLContext.wrap_bio."""
        made = super().wrap_bio(incoming, outgoing, *words, **more)
        assert isinstance(made, Handshake)
        made.alerts, made.outgoing = _alerts.get(), outgoing
        return made


class Alerts:
    """The alert of a handshake that failed, which asyncio closes the connection without.

    A client that is told nothing takes the ingress for one that is away, and comes again.
    """

    def __init__(self) -> None:
        self.alert = b""

    def __enter__(self) -> Self:
        _alerts.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        _alerts.set(None)

    async def tell(self, line: socket.socket) -> None:
        """Say it, and listen for a moment: what nobody reads would take the alert along."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(ALERT_S):
                await loop.sock_sendall(line, self.alert)
                line.shutdown(socket.SHUT_WR)
                while await loop.sock_recv(line, 4_096):
                    pass


def why(error: ssl.SSLError) -> str:
    """Why a handshake failed; nothing in it comes from the client but which of these it was."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate: {error.verify_message}"
    return WHY.get(error.reason or "", (error.reason or "TLS").lower().replace("_", " "))


def address_of(place: Any) -> str:
    """Where a connection comes from, without its port."""
    return str(place[0]) if isinstance(place, tuple) and place else ""


def guard(accepted: socket.socket) -> None:
    """A client that is gone without a word is noticed in a minute, not in the kernel's hours."""
    accepted.setblocking(False)
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3),
        (socket.TCP_USER_TIMEOUT, 30_000), (socket.TCP_NODELAY, 1),
    ):  # fmt: skip
        accepted.setsockopt(socket.IPPROTO_TCP, option, value)
