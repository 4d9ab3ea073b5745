"""The way of a worker through the ingress: JSON over mutual TLS 1.3 (DESIGN §8, §9).

One connection that is kept, and one call at a time on it, each with an end. What was not answered
raises Away, and the connection goes: nothing that comes late is taken for the next answer. Whoever
asked asks again, with the same offers, tokens and commands, which is an exact replay.
"""

import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from qinglong_sql.errors import Malformed, NotReady, Violated, error_of
from qinglong_sql.port import Away, Shut, only_worker_steps, within_s
from qinglong_sql.remote_line import Line, Places, connect
from qinglong_sql.shipping_log import Author
from qinglong_sql.store import Contended, Row
from qinglong_sql.tls import TlsFault, client_context
from qinglong_sql.wire import JSON, OCTETS, OF_STEP, ROUTES, Route, body_of, encoded

ANSWER_BYTES = 64 * 1024 * 1024
REFUSAL_BYTES = 64 * 1024
LOOK_S = 5.0  # how soon other files of certificate and key are noticed
# What a connection says that was closed while nobody used it.
STALE = (
    BrokenPipeError,
    ConnectionResetError,
    http.client.RemoteDisconnected,
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
)


@dataclass(frozen=True, slots=True)
class Papers:
    """The files that a worker shows and trusts."""

    certificate: Path
    key: Path
    ca: Path

    def seen(self) -> list[tuple[int, int]]:
        """What is other when one of them was replaced."""
        found = []
        for path in (self.certificate, self.key, self.ca):
            try:
                stat = path.stat()
                found.append((stat.st_mtime_ns, stat.st_ino))
            except OSError:
                found.append((0, 0))
        return found


class Remote:
    """See qinglong_sql.port.Port. Not for several threads.

    `url` is https://host:port. Raises ValueError for another one, and TlsFault for papers that
    cannot be used; later ones that cannot be are not taken.
    """

    def __init__(self, url: str, papers: Papers, *, lease_ms: int) -> None:
        self._host, port = place_of(url)
        self.place = f"{self._host}:{port}"
        self._papers = papers
        self._connect_s, self._answer_s = within_s(lease_ms)
        self._places = Places(self._host, port)
        self._seen = papers.seen()
        self._context = client_context(papers.certificate, papers.key, papers.ca)
        self._look_at_s = 0.0
        self._line: Line | None = None
        self._http: http.client.HTTPConnection | None = None

    def call(self, step: str, /, **params: object) -> list[Row]:
        """Call one step of ql_worker; what is too much for one message goes in several.

        When they take long, some have no answer, and are to be asked for again.

        Raises KeyError for any other step, Away when no answer came, Shut when this worker is not
        let in, and what the step refuses.
        """
        only_worker_steps(step)
        route = OF_STEP[step]
        rows: list[Row] = []
        enough_s = time.monotonic() + self._answer_s / 2
        for body in _messages(route, body_of(route, params)):
            if rows and time.monotonic() > enough_s:
                break  # who has no answer asks again
            raw = self._ask(route, encoded(body), {"Content-Type": JSON})
            rows += _rows(raw, self.place)
        return rows

    def log(self, author: Author, offset: int, chunk: bytes, dropped: int | None) -> int:
        """Hand over a piece of a log; how many bytes of it are held there now. See Shipping."""
        headers = {
            "Content-Type": OCTETS,
            "QL-Attempt": author.attempt_id,
            "QL-Fence": str(author.fence),
            "QL-Token": author.token,
            "QL-Offset": str(offset),
        }
        if not all(value.isascii() and value.isprintable() for value in headers.values()):
            raise Malformed("a log's authority cannot be said in a header")
        if dropped is not None:
            headers["QL-Dropped"] = str(dropped)
        size = _object(self._ask(ROUTES["log"], chunk, headers), self.place).get("size")
        if type(size) is not int:
            raise NotReady(f"{self.place} answers otherwise than an ingress does")
        return size

    def certificate(self, csr: str) -> str | None:
        """A new certificate for this worker, as PEM; None where the ingress makes none."""
        route = ROUTES["certificate"]
        try:
            raw = self._ask(route, encoded({"csr": csr}), {"Content-Type": JSON})
        except NoRoute:
            return None
        return str(_object(raw, self.place).get("certificate") or "") or None

    def close(self) -> None:
        """Hang up. May be repeated; the next call connects anew."""
        if self._http:
            self._http.close()
        if self._line:
            self._line.close()
        self._http = self._line = None

    # --- one message

    def _ask(self, route: Route, body: bytes, headers: Mapping[str, str]) -> bytes:
        """The body of the answer 200."""
        self._look()
        kept = self._line is not None
        try:
            try:
                status, raw = self._exchange(route.path, body, headers)
            except STALE:
                self.close()
                if not kept:
                    raise
                status, raw = self._exchange(route.path, body, headers)
        except ssl.SSLError as error:
            self.close()
            raise self._unlike(error) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Away(f"{self.place}: {_words(error)}") from error
        if status != 200:
            raise _refusal(status, raw, self.place, route)
        return raw

    def _exchange(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        if self._line is None or self._http is None:
            self._line = connect(self._places, self._context, self._host, self._connect_s)
            self._http = http.client.HTTPConnection(self.place)
            self._http.auto_open = 0
            self._http.sock = self._line
        self._line.until(time.monotonic() + self._answer_s)
        self._http.request("POST", path, body, dict(headers))
        with self._http.getresponse() as answer:
            most = ANSWER_BYTES if answer.status == 200 else REFUSAL_BYTES
            raw = answer.read(most + 1)
            left, gone = answer.length, answer.will_close
        if len(raw) > most or left:
            raise http.client.HTTPException("an answer that does not end where it should")
        if gone:
            self.close()
        return answer.status, raw

    def _look(self) -> None:
        """Take other papers when their files were replaced."""
        now_s = time.monotonic()
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_S
        seen = self._papers.seen()
        if seen != self._seen:
            papers = self._papers
            try:
                self._context = client_context(papers.certificate, papers.key, papers.ca)
            except TlsFault:  # half of them: the other half comes
                return
            self._seen = seen
            self.close()

    def _unlike(self, error: ssl.SSLError) -> Exception:
        """What went wrong between two that do not trust each other."""
        reason = error.reason or ""
        if isinstance(error, ssl.SSLCertVerificationError):
            return Shut(f"{self.place}: its certificate is not good: {error.verify_message}")
        if "ALERT" in reason:
            said = reason.lower().replace("_", " ").rpartition("alert ")[2]
            return Shut(f"{self.place} refuses {self._papers.certificate}: {said}")
        return Away(f"{self.place}: {reason.lower().replace('_', ' ') or 'TLS failed'}")


class NoRoute(NotReady):
    """The ingress does not know what was asked for."""


def place_of(url: str) -> tuple[str, int]:
    """Host and port of the ingress. Raises ValueError for another kind of address."""
    try:
        said = urlsplit(url)
        port = said.port or 443
    except ValueError:
        said = urlsplit("")
    rest = (said.username, said.password, said.query, said.fragment, said.path.strip("/"))
    if said.scheme != "https" or not said.hostname or any(rest):
        raise ValueError("an ingress is https://host:port, and nothing behind it")
    return said.hostname, port


def _messages(route: Route, body: dict[str, object]) -> Iterator[dict[str, object]]:
    """The body, in as many pieces as its list needs for the route's caps."""
    entries = body.get(route.batch)
    if not isinstance(entries, list) or not entries:
        yield body
        return
    room = route.body_bytes - len(encoded({**body, route.batch: []}))
    piece: list[object] = []
    size = 0
    for entry in entries:
        octets = len(encoded(entry)) + 1
        if piece and (len(piece) >= route.most or size + octets > room):
            yield {**body, route.batch: piece}
            piece, size = [], 0
        piece.append(entry)
        size += octets
    yield {**body, route.batch: piece}


def _object(raw: bytes, place: str) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise NotReady(f"{place} answers otherwise than an ingress does")
    return found


def _rows(raw: bytes, place: str) -> list[Row]:
    rows = _object(raw, place).get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise NotReady(f"{place} answers otherwise than an ingress does")
    return rows


def _refusal(status: int, raw: bytes, place: str, route: Route) -> Exception:
    """What an answer that is not 200 says."""
    try:
        said = _object(raw, place)
    except NotReady:
        said = {}
    code, message = str(said.get("code") or ""), str(said.get("message") or f"HTTP {status}")
    if status in (401, 403):
        return Shut(f"{place}: {message}")
    if code == "contended":
        return Contended(message)
    if status in (408, 429, 502, 503, 504):  # whatever the ingress has not now
        return Away(f"{place}: {message}")
    if code.startswith("QL"):
        return error_of(code, message)
    if status in (404, 405):
        return NoRoute(f"{place} has no {route.path}")
    if 400 <= status < 500:
        return Malformed(f"{place}: {message}")
    return Violated(f"{place}: {message}")


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, socket.gaierror):
        return f"its name cannot be resolved: {error.strerror}"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)
    return str(error) or type(error).__name__
