"""Connections of workers: who comes in, how many, and for how long (DOMAIN §6, DESIGN §12).

A socket that has shown no certificate costs no thread, has 5 s for it, and goes when 128 newer
ones came. One whose certificate was seen counts to its worker.
"""

import asyncio
import logging
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from qinglong_sql.certificate import NotAWorker, Principal, subject_of
from qinglong_sql.ingress_line import Alerts, address_of, guard, why
from qinglong_sql.ingress_metrics import IngressMetrics
from qinglong_sql.wire import JSON, encoded

HANDSHAKE_S: Final = 5
HANDSHAKES: Final = 128
OF_A_WORKER: Final = 8
CONNECTIONS: Final = 512
IDLE_S: Final = 75
BACKLOG: Final = 512
RECEIVE_BYTES: Final = 64 * 1024  # of the kernel for a socket, and so what one read may bring
WAITING_BYTES: Final = 64 * 1024  # of answers that a client does not take
PAUSE_S: Final = 0.1  # after an accept that failed: no descriptors, say
HEAD_BYTES: Final = 8_190
HEADERS: Final = 64
LINGER_S: Final = 2.0  # for what a refused client still sends, so that it can read the answer
NOWHERE: Final = logging.Logger("qinglong_sql.ingress.nowhere", level=logging.CRITICAL + 1)
# asyncio reads TLS into a buffer of 256 KiB for each connection, filled with zeros from the start;
# a record of TLS has 16 KiB.
SSLProtocol.max_size = 32 * 1024

Refused = Callable[[str, str, str], object]  # reason, words, address


class Visitor(RequestHandler):
    """One connection whose handshake is over; aiohttp speaks HTTP with it."""

    __slots__ = ("address", "door", "idle_since", "principal")

    def __init__(self, door: "Door", server: web.Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=IDLE_S,
            access_log=None,  # type: ignore[arg-type]
            logger=NOWHERE,
            max_line_size=HEAD_BYTES,
            max_field_size=HEAD_BYTES,
            max_headers=HEADERS,
            lingering_time=LINGER_S,
            auto_decompress=False,  # a kilobyte of zip may be a gigabyte
        )
        self.door = door
        self.principal: Principal | None = None
        self.address = ""
        self.idle_since: float | None = loop.time()  # None while a request is answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is over: see whose certificate it is."""
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=WAITING_BYTES)
        self.address = address_of(transport.get_extra_info("peername"))
        found = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        try:
            self.principal = subject_of(found)
        except NotAWorker:
            self.principal = None  # each request is refused in words
        self.door.entered(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """It is gone."""
        self.door.left(self)
        super().connection_lost(exc)

    def unreadable(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What aiohttp cannot read, told as all else is; nothing of it is repeated.

        Our own handler lets no error through.
        """
        if request.writer.output_size > 0:
            raise ConnectionError("a part of an answer was sent already")
        self.door.refused("http", "no HTTP/1.1 that is taken here", self.address)
        self.door.meter.answered("none", 400, 0.0)
        words = {"code": "http", "message": "this is no HTTP/1.1 that is taken here"}
        answer = web.Response(status=400, body=encoded(words), content_type=JSON)
        answer.force_close()
        return answer

    @property
    def worker_id(self) -> str:
        return self.principal.worker_id if self.principal else ""

    def end(self) -> None:
        """Let it go at once, with all that was not sent yet."""
        transport: Any = self.transport
        self.force_close()
        if transport is not None:
            with suppress(AttributeError):  # asyncio's, of a connection that was lost just now
                transport.abort()


setattr(Visitor, "handle_error", Visitor.unreadable)  # noqa: B010  aiohttp's name for it


class Door:
    """Accepts connections from `listen` to `close`, all on one event loop.

    context: what a new connection is shown. answer: aiohttp's handler of a request.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        answer: Callable[[web.BaseRequest], Any],
        meter: IngressMetrics,
        refused: Refused,
    ) -> None:
        self._context, self.meter, self.refused = context, meter, refused
        self._loop = asyncio.get_running_loop()
        self._server = web.Server(answer)
        self._visitors: dict[Visitor, None] = {}
        self._greeted: dict[asyncio.Task[None], None] = {}
        self._accepting: list[asyncio.Task[None]] = []

    async def listen(self, host: str, port: int) -> int:
        """Listen; the port. Raises OSError."""
        found = await self._loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, place = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind(place)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
        self._accepting.append(self._loop.create_task(self._accept(listener)))
        return int(listener.getsockname()[1])

    async def close(self, within_s: float) -> bool:
        """Let nobody in any more, and end what is answered; whether that came in time."""
        for task in (*self._accepting, *self._greeted):
            task.cancel()
        end = self._loop.time() + within_s
        for visitor in list(self._visitors):
            if visitor.idle_since is not None:
                visitor.end()
            else:
                visitor.close()  # after its answer
        while self._visitors and self._loop.time() < end:
            await asyncio.sleep(0.01)
        ended = not any(one.idle_since is None for one in self._visitors)
        for visitor in list(self._visitors):
            visitor.end()
        return ended

    def entered(self, visitor: Visitor) -> None:
        """A certificate was seen: make room, or show it out."""
        of_it = [one for one in self._visitors if one.worker_id == visitor.worker_id]
        for crowd, most in ((of_it, OF_A_WORKER), (list(self._visitors), CONNECTIONS)):
            if len(crowd) < most or visitor.transport is None:
                continue
            # its own silent ones may be what a network that broke has left
            idle = min(_idle(crowd), key=lambda one: one.idle_since or 0.0, default=None)
            words = f"more than {most} connections"
            self.refused("connections", words, visitor.address)
            (idle or visitor).end()
        if visitor.transport is not None:
            self._visitors[visitor] = None
        self.meter.connections.set(len(self._visitors))

    def left(self, visitor: Visitor) -> None:
        """It is gone."""
        self._visitors.pop(visitor, None)
        self.meter.connections.set(len(self._visitors))

    async def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                try:
                    accepted, place = await self._loop.sock_accept(listener)
                except OSError as error:
                    if error.errno is not None:
                        words = f"cannot accept: {error.strerror}"
                        self.refused("crowded", words, "")
                    await asyncio.sleep(PAUSE_S)
                    continue
                if len(self._greeted) >= HANDSHAKES:
                    self.refused("crowded", "newer connections came", "")
                    oldest = next(iter(self._greeted))
                    del self._greeted[oldest]
                    oldest.cancel()
                task = self._loop.create_task(self._greet(accepted, address_of(place)))
                self._greeted[task] = None
                self.meter.handshakes.set(len(self._greeted))
                task.add_done_callback(self._met)
                await asyncio.sleep(0)  # accepting does not let others go by itself

    def _met(self, task: "asyncio.Task[None]") -> None:
        self._greeted.pop(task, None)
        self.meter.handshakes.set(len(self._greeted))

    async def _greet(self, accepted: socket.socket, address: str) -> None:
        """The handshake; a client is told by TLS what is wrong with its certificate."""
        with accepted.dup() as line, Alerts() as alerts:
            try:
                guard(accepted)
                await self._loop.connect_accepted_socket(
                    lambda: Visitor(self, self._server, self._loop),
                    accepted,
                    ssl=self._context(),
                    ssl_handshake_timeout=HANDSHAKE_S,
                    ssl_shutdown_timeout=1.0,
                )
            except asyncio.CancelledError:
                accepted.close()
                raise
            except ssl.SSLError as error:
                self.refused("handshake", why(error), address)
                await alerts.tell(line)
            except ConnectionAbortedError:
                self.refused("slow_handshake", f"no certificate within {HANDSHAKE_S} s", address)
            except OSError as error:
                self.refused("handshake", error.strerror or "the connection ended", address)


def _idle(crowd: list[Visitor]) -> Iterator[Visitor]:
    return (one for one in crowd if one.idle_since is not None)
