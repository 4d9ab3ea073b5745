"""What a supervisor, a balancer and Prometheus ask a control process: three pages (DESIGN §7).

| Page | Answer |
|---|---|
| `/livez` | 200 for as long as the listener stands: a process that is not ready is not dead |
| `/readyz` | 200, or 503 with the reason |
| `/metrics` | Prometheus' text, for one at a time: who waits here keeps no other page waiting |

There is no secret in them and no way in: nothing is read of a request but its method, its path and
`Accept`. The listener is for the inside of a network all the same, and for loopback by default.
"""

import json
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from http import HTTPStatus
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

THREADS: Final = 8
QUEUED: Final = 32  # connections that wait for a thread; further ones are told 503
HEADER_BYTES: Final = 8_192
BODY_BYTES: Final = 1_024  # nobody has a reason to send one
SILENCE_S: Final = 5  # for which a client may say nothing
TURN_S: Final = 0.2  # the longest that a stop waits before it closes the door
TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"

Answer = tuple[HTTPStatus, str, bytes]  # the status, the type and the body


class Health:
    """The listener, which stands from `start` to `stop`, whatever becomes of the rest.

    `ready` answers None or the reason why not; it is asked by any thread and does not wait for
    anything. `metrics` may wait; whoever asks for them meanwhile is told 503. What either raises is
    a 503 as well and goes to `on_error`.
    """

    def __init__(
        self,
        listen: tuple[str, int],
        ready: Callable[[], str | None],
        metrics: Callable[[], bytes],
        *,
        on_error: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._listen = listen
        self._ready = ready
        self._metrics = metrics
        self._on_error = on_error
        self._scraped = Lock()
        self._server: Any = None
        self._thread: Thread | None = None
        self._closing: Thread | None = None

    @property
    def port(self) -> int:
        """The port that is listened on, which the system chose if it was 0."""
        return int(self._server.bind_addr[1] if self._server else self._listen[1])

    def start(self) -> None:
        """Listen from now on. Raises OSError, with the address, when that cannot be."""
        from cheroot.wsgi import Server

        host, port = self._listen
        server = Server(
            (host, port),
            self.answer,
            numthreads=THREADS,
            max=THREADS,
            server_name="qinglong-sql",
            request_queue_size=QUEUED,
            timeout=SILENCE_S,
            accepted_queue_size=QUEUED,
            accepted_queue_timeout=0,
        )
        server.expiration_interval = TURN_S
        server.max_request_header_size = HEADER_BYTES
        server.max_request_body_size = BODY_BYTES
        server.keep_alive_conn_limit = 0  # what follows a body that nobody read is no request
        setattr(server, "error_log", self._told)  # noqa: B010  it is a method there
        listens: Future[None] = Future()
        self._thread = Thread(target=_serve, args=(server, listens), name="health", daemon=True)
        self._thread.start()
        try:
            listens.result()
        except OSError as error:
            why = re.search(r"\[Errno \d+\] ([^)]+)", str(error))
            raise OSError(f"cannot listen on {host}:{port}: {why[1] if why else error}") from error
        self._server = server

    def stop(self, within_s: float) -> bool:
        """Close the listener; True when all that it was answering ended in time. May be repeated.

        An answer that is being made is still given, as long as there is time.
        """
        if self._server is None or self._thread is None:
            return True
        end = time.monotonic() + within_s
        self._server.shutdown_timeout = within_s
        if self._closing is None:  # apart, since cheroot waits where it has no bound
            self._closing = Thread(target=self._server.stop, name="health stops", daemon=True)
            self._closing.start()
        threads = (self._closing, self._thread)
        for one in threads:
            one.join(max(0.0, end - time.monotonic()))
        return not any(one.is_alive() for one in threads)

    def answer(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        """The WSGI application."""
        status, kind, body = self._page(environ)
        headers = [
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
        ]
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", "GET, HEAD"))
        start_response(f"{status.value} {status.phrase}", headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def _page(self, environ: "WSGIEnvironment") -> Answer:
        as_json = JSON in environ.get("HTTP_ACCEPT", "")
        page = {"/livez": self._livez, "/readyz": self._readyz, "/metrics": self._text}.get(
            environ.get("PATH_INFO", "")
        )
        if page is None:
            words = "there are /livez, /readyz and /metrics"
            return _said(HTTPStatus.NOT_FOUND, {"error": words}, words, as_json)
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            words = "only GET and HEAD"
            return _said(HTTPStatus.METHOD_NOT_ALLOWED, {"error": words}, words, as_json)
        try:
            return page(as_json)
        except Exception as error:
            self._on_error(f"{environ['PATH_INFO']}: {error or type(error).__name__}")
            words = "it could not be found out; the log says why"
            return _said(HTTPStatus.SERVICE_UNAVAILABLE, {"error": words}, words, as_json)

    def _livez(self, as_json: bool) -> Answer:
        return _said(HTTPStatus.OK, {"live": True}, "live", as_json)

    def _readyz(self, as_json: bool) -> Answer:
        reason = self._ready()
        if reason is None:
            return _said(HTTPStatus.OK, {"ready": True}, "ready", as_json)
        found = {"ready": False, "reason": reason}
        return _said(HTTPStatus.SERVICE_UNAVAILABLE, found, reason, as_json)

    def _text(self, as_json: bool) -> Answer:
        if not self._scraped.acquire(blocking=False):
            words = "someone else is being answered"
            return _said(HTTPStatus.SERVICE_UNAVAILABLE, {"error": words}, words, as_json)
        try:
            return HTTPStatus.OK, PROMETHEUS, self._metrics()
        finally:
            self._scraped.release()

    def _told(self, msg: str = "", level: int = 20, traceback: bool = False) -> None:
        self._on_error(f"health: {msg}")


def _serve(server: Any, listens: "Future[None]") -> None:
    """Here and not in `start`, since threads made by a daemon's are daemons as well."""
    try:
        server.prepare()
    except BaseException as error:
        listens.set_exception(error)
        return
    listens.set_result(None)
    server.serve()


def _said(status: HTTPStatus, found: dict[str, object], words: str, as_json: bool) -> Answer:
    if as_json:
        return status, JSON, json.dumps(found).encode() + b"\n"
    return status, TEXT, words.encode("utf-8", "replace") + b"\n"
