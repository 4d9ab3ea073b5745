"""The way of a request through the ingress: route → who → audit → bounded body → call (DOMAIN §6).

Nothing of a body is read before it is known who sends it and a row says that he was here. On one
event loop; what waits for the database is done by as many threads as it has connections there.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, Protocol, TypeVar

from aiohttp import web

from qinglong_sql.certificate import Principal
from qinglong_sql.control_log import Level
from qinglong_sql.ingress_body import send, whole
from qinglong_sql.ingress_calls import Calls
from qinglong_sql.ingress_metrics import DOCUMENT, NO_ROUTE, IngressMetrics
from qinglong_sql.ingress_refusal import (
    RETRY_S,
    Refusal,
    Told,
    away,
    busy,
    refusal_of,
)
from qinglong_sql.ingress_share import Exhausted, Share
from qinglong_sql.ingress_visitor import Visitor
from qinglong_sql.wire import JSON, OCTETS, PREFIX, ROUTES, Route, encoded

IN_FLIGHT: Final = 256
THREADS: Final = 4  # and connections to the database
THREADS_OF_A_WORKER: Final = 2
BUDGET_BYTES: Final = 32 * 1024 * 1024  # of bodies and of answers, for all
BUDGET_OF_A_WORKER: Final = BUDGET_BYTES // 4
SMALL_BYTES: Final = 16 * 1024  # what is no longer needs no part of it: IN_FLIGHT bounds it
WAIT_S: Final = 2.0  # for a share of what all have
CALL_S: Final = (
    4.0  # a worker waits 5 s; after that a database counts as away, whatever becomes of the call
)
MINUTE_MS: Final = 60_000
T = TypeVar("T")


class Revocations(Protocol):
    """See qinglong_sql.revocations.Revoked."""

    def refuses(self, serial: str) -> bool:
        """Whether a certificate was revoked."""


class Answerer:
    """Answers every request of every connection; made on the loop that it is used on.

    fault: gets what is a fault of ours. document: what /v1/openapi.json is. renews: whether there
    is a route `certificate`.
    """

    def __init__(
        self,
        calls: Calls,
        threads: Executor,
        meter: IngressMetrics,
        told: Told,
        fault: Callable[[Exception], object],
        *,
        document: bytes,
        renews: bool,
        revoked: Revocations | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._calls, self._threads, self._meter = calls, threads, meter
        self._told, self._fault = told, fault
        self._document, self._renews, self._revoked, self._clock = document, renews, revoked, clock
        self._loop = asyncio.get_running_loop()
        self._turns = Share(THREADS, THREADS_OF_A_WORKER)
        self._budget = Share(BUDGET_BYTES, BUDGET_OF_A_WORKER)
        self._count = 0
        self._audited: set[tuple[str, str, str]] = set()
        self._minute = -1
        self._ahead_ms = 0  # the database's clock, against ours
        self.stopping = False
        self.away = False  # the database did not answer the last time

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """aiohttp's handler."""
        visitor = request.protocol
        assert isinstance(visitor, Visitor)
        began, visitor.idle_since = self._loop.time(), None
        name, held = NO_ROUTE, 0
        try:
            try:
                name = self._named(request)
                body = await self._answer(request, visitor, name)
                held = await self._hold(visitor.worker_id, len(body))
                answer = web.StreamResponse(status=200)
            except Exception as error:
                refusal = refusal_of(error, self._fault)
                answer, body = self._refused(refusal, visitor, name)
            self._meter.answered(name, answer.status, self._loop.time() - began)
            if self.stopping:
                answer.force_close()
            await send(request, visitor, answer, body)
            return answer
        finally:
            if held:
                self._budget.give(visitor.worker_id, held)
            visitor.idle_since = self._loop.time()

    def idle(self) -> bool:
        """Whether nothing waits for the database."""
        return self._turns.free == THREADS

    async def probe(self, ask: Callable[[], object]) -> None:
        """See whether the database answers, and keep it for `away`."""
        try:
            await self._on_thread("", ask)
        except Exception:
            self.away = True
        else:
            self.away = False

    def _named(self, request: web.BaseRequest) -> str:
        """The route, by path and method. Raises Refusal."""
        path = request.rel_url.raw_path
        name = path.removeprefix(PREFIX)
        method = "POST"
        if name == f"{DOCUMENT}.json":
            name, method = DOCUMENT, "GET"
        known = name in ROUTES and (name != "certificate" or self._renews)
        if path == name or not (known or name == DOCUMENT):
            raise Refusal(404, "route", "there is no such route here", "route")
        if request.method != method:
            raise Refusal(405, "method", f"it takes {method}", "method", allow=method)
        return name

    async def _answer(self, request: web.BaseRequest, visitor: Visitor, name: str) -> bytes:
        principal = self._principal(visitor)
        if self.stopping:
            raise Refusal(503, "stopping", "this ingress stops", "stopping", after_s=RETRY_S,
                          closes=True)  # fmt: skip
        if self._count >= IN_FLIGHT:
            raise busy(f"{IN_FLIGHT} requests are being answered")
        self._count += 1
        self._meter.in_flight.set(self._count)
        try:
            await self._audit(principal, name)
            if name == DOCUMENT:
                return self._document
            return await self._called(request, ROUTES[name], principal)
        finally:
            self._count -= 1
            self._meter.in_flight.set(self._count)

    def _principal(self, visitor: Visitor) -> Principal:
        """Whose certificate it is, and that it is good now, however long the connection stands."""
        found = visitor.principal
        if found is None:
            words = "the certificate's subject is not one worker id"
            raise Refusal(403, "certificate", words, "certificate", closes=True)
        if self._clock() * 1000 >= found.not_after_ms:
            words = "the certificate has expired; issue another one"
            raise Refusal(403, "certificate", words, "expired", closes=True)
        if self._revoked is not None and self._revoked.refuses(found.serial):
            words = "the certificate was revoked"
            raise Refusal(403, "certificate", words, "revoked", closes=True)
        return found

    async def _audit(self, principal: Principal, name: str) -> None:
        """A row in the database that he was here, once a minute of its clock."""
        minute = int(self._clock() * 1000 + self._ahead_ms) // MINUTE_MS
        if minute != self._minute:
            self._minute = minute
            self._audited.clear()
        key = principal.worker_id, principal.serial, name
        if key in self._audited:
            return
        found = await self._on_thread(
            principal.worker_id, lambda: self._calls.audit(principal, name)
        )
        told = self._unrefused(found)
        if told // MINUTE_MS != minute:  # its clock is not ours: count by the minute it said
            self._ahead_ms = told - int(self._clock() * 1000)
        elif minute == self._minute:
            self._audited.add(key)

    async def _called(self, request: web.BaseRequest, route: Route, principal: Principal) -> bytes:
        size = self._promised(request, route)
        worker_id = principal.worker_id
        held = await self._hold(worker_id, size)
        try:
            body = await whole(request, size)
            headers = request.headers
            found = await self._on_thread(
                worker_id, lambda: self._calls.answer(route, headers, body, principal)
            )
        finally:
            if held:
                self._budget.give(worker_id, held)
        return self._unrefused(found)

    def _promised(self, request: web.BaseRequest, route: Route) -> int:
        """How long the body will be, in bytes. Raises Refusal."""
        headers = request.headers
        if "Content-Encoding" in headers:
            raise Refusal(415, "media", "it takes no Content-Encoding", "media", closes=True)
        kind = OCTETS if route.name == "log" else JSON
        if request.content_type != kind:
            raise Refusal(415, "media", f"it takes {kind}", "media", closes=True)
        size = request.content_length
        if size is None or "Transfer-Encoding" in headers:
            raise Refusal(411, "length", "say the Content-Length", "length", closes=True)
        if size > route.body_bytes:
            words = f"it takes at most {route.body_bytes} bytes"
            raise Refusal(413, "large", words, "large", closes=True)
        return size

    async def _hold(self, worker_id: str, size: int) -> int:
        """Take a part of the memory that all share, to be given back; how much it is."""
        if size <= SMALL_BYTES:
            return 0
        try:
            await self._budget.take(worker_id, size, WAIT_S)
        except Exhausted:
            raise busy("too much is being read and written") from None
        return size

    async def _on_thread(self, worker_id: str, work: Callable[[], T]) -> T:
        """What `work` gives; who waits too long is refused. It then goes on without anyone."""
        try:
            await self._turns.take(worker_id, 1, WAIT_S)
        except Exhausted:
            raise away() if self.away else busy("the database has no turn for it") from None
        done = self._loop.run_in_executor(self._threads, work)
        done.add_done_callback(lambda _: self._turns.give(worker_id, 1))
        try:
            async with asyncio.timeout(CALL_S):
                return await asyncio.shield(done)
        except TimeoutError:
            self.away = True
            raise away() from None

    def _unrefused(self, found: T | Refusal) -> T:
        """What a call gave, and what it says of the database. Raises the Refusal that it is."""
        if not isinstance(found, Refusal):
            self.away = False
            return found
        if found.reason in ("database", "step", "contended"):
            self.away = found.reason == "database"
        raise found

    def _refused(
        self, error: Refusal, visitor: Visitor, name: str
    ) -> tuple[web.StreamResponse, bytes]:
        self._meter.refused(error.reason)
        who = visitor.worker_id or "somebody"
        level: Level = "warning" if error.status >= 500 else "info"
        what = f"{error.code} for {name}"
        if error.status == 404 and name == NO_ROUTE:
            what = "no such route"
        elif error.status == 405:
            what = f"another method than {error.allow}"
        self._told.say(
            level,
            f"{error.status} {what}, asked by {who} at {visitor.address}",
            route=name, worker=visitor.worker_id, address=visitor.address, status=error.status,
            code=error.code, reason=error.reason,
        )  # fmt: skip
        answer = web.StreamResponse(status=error.status)
        if error.after_s is not None:
            answer.headers["Retry-After"] = str(error.after_s)
        if error.allow:
            answer.headers["Allow"] = error.allow
        if error.closes:
            answer.force_close()
        return answer, encoded({"code": error.code, "message": error.message})
