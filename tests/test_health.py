"""The pages of a control process: what they say, and that nobody keeps them from saying it."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from qinglong_sql import health
from qinglong_sql.health import Health

HOST = "127.0.0.1"
Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def listening(
    ready: Callable[[], str | None] = lambda: None,
    metrics: Callable[[], bytes] = lambda: b"one 1\n",
    on_error: Callable[[str], object] = lambda _: None,
) -> Iterator[Health]:
    listener = Health((HOST, 0), ready, metrics, on_error=on_error)
    listener.start()
    try:
        yield listener
    finally:
        listener.stop(5)


@pytest.fixture(scope="module")
def site() -> Iterator[Health]:
    """A listener of a process that is ready."""
    with listening() as listener:
        yield listener


def ask(site: Health, path: str, method: str = "GET", **headers: str) -> Answer:
    with closing(http.client.HTTPConnection(HOST, site.port, timeout=10)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()


def said(site: Health, raw: bytes) -> bytes:
    """Everything that is answered to these bytes until the other side hangs up."""
    with closing(socket.create_connection((HOST, site.port), timeout=10)) as connection:
        connection.sendall(raw)
        found = b""
        try:
            while part := connection.recv(65_536):
                found += part
        except ConnectionResetError:  # it hung up with bytes of ours unread
            pass
        return found


@pytest.mark.parametrize(
    ("path", "accept", "status", "kind", "body"),
    [
        ("/livez", "*/*", 200, "text/plain; charset=utf-8", b"live\n"),
        ("/livez", "application/json", 200, "application/json", b'{"live": true}\n'),
        ("/readyz", "*/*", 200, "text/plain; charset=utf-8", b"ready\n"),
        ("/readyz?verbose=1", "application/json", 200, "application/json", b'{"ready": true}\n'),
        ("/metrics", "*/*", 200, "text/plain; version=0.0.4; charset=utf-8", b"one 1\n"),
        ("/metrics", "application/json", 200, "text/plain; version=0.0.4; charset=utf-8",
         b"one 1\n"),
        ("/", "*/*", 404, "text/plain; charset=utf-8", b"there are /livez, /readyz and /metrics\n"),
        ("/livez/", "*/*", 404, "text/plain; charset=utf-8",
         b"there are /livez, /readyz and /metrics\n"),
        ("/%2e%2e/livez", "application/json", 404, "application/json",
         b'{"error": "there are /livez, /readyz and /metrics"}\n'),
    ],
)  # fmt: skip
def test_a_page_says_what_it_says(
    site: Health, path: str, accept: str, status: int, kind: str, body: bytes
) -> None:
    found, headers, text = ask(site, path, Accept=accept)
    assert (found, headers["content-type"], text) == (status, kind, body)
    assert headers["content-length"] == str(len(body)) and headers["cache-control"] == "no-store"
    assert headers["connection"] == "close" and headers["server"] == "qinglong-sql"
    found, alike, text = ask(site, path, "HEAD", Accept=accept)
    assert (found, text) == (status, b"")
    assert headers | {"date": ""} == alike | {"date": ""}


def test_a_head_has_no_body(site: Health) -> None:
    found = said(site, b"HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 200 OK\r\n") and found.endswith(b"\r\n\r\n")
    assert b"Content-Length: 5\r\n" in found


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_only_get_and_head_are_answered(site: Health, method: str) -> None:
    status, headers, body = ask(site, "/readyz", method)
    assert (status, headers["allow"], body) == (405, "GET, HEAD", b"only GET and HEAD\n")


def test_who_is_not_ready_says_why_and_lives() -> None:
    reasons: list[str | None] = [
        "starting: 2 of 7 steps, größer als nötig \ud800",
        None,
        "stopping",
    ]
    now = iter(reasons * 2)
    with listening(ready=lambda: next(now)) as site:
        assert ask(site, "/readyz")[::2] == (503, f"{reasons[0]}\n".encode("utf-8", "replace"))
        assert ask(site, "/readyz")[::2] == (200, b"ready\n")
        assert ask(site, "/readyz")[::2] == (503, b"stopping\n")
        status, _, body = ask(site, "/readyz", Accept="text/html, application/json;q=0.9")
        assert (status, json.loads(body)) == (503, {"ready": False, "reason": reasons[0]})
        assert ask(site, "/livez")[0] == 200


def test_what_raises_is_a_503_and_its_words_are_for_the_log() -> None:
    def broken() -> bytes:
        raise RuntimeError("password of the database")

    told: list[str] = []
    with listening(lambda: broken().decode(), broken, told.append) as site:
        for path in ("/readyz", "/metrics", "/metrics"):
            status, _, body = ask(site, path)
            assert (status, body) == (503, b"it could not be found out; the log says why\n")
        assert ask(site, "/livez")[0] == 200
    assert told == [f"{path}: password of the database" for path in
                    ("/readyz", "/metrics", "/metrics")]  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 9_000 + b"\r\n\r\n", b"413"),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 3_000 + b"\r\n", b"413"),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b"414"),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n", b"413"),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", b"200"),
        (b"GET /livez HTTP/9.9\r\nHost: x\r\n\r\n", b"505"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"GET /livez\r\n\r\n", b"400"),
    ],
    ids=["a long header", "many headers", "a long path", "a long body", "less than none",
         "another protocol", "TLS", "no protocol"],
)  # fmt: skip
def test_what_is_too_large_or_no_request_is_refused(
    site: Health, raw: bytes, status: bytes
) -> None:
    found = said(site, raw)
    assert found.startswith(b"HTTP/1.1 " + status), found[:200]
    assert ask(site, "/livez")[0] == 200


@pytest.mark.parametrize(
    "head", ["Content-Length: {}", "Transfer-Encoding: chunked"], ids=["counted", "chunked"]
)
def test_a_body_that_nobody_reads_is_no_request(site: Health, head: str) -> None:
    inner = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    outer = f"GET /livez HTTP/1.1\r\nHost: x\r\n{head.format(len(inner))}\r\n\r\n".encode()
    found = said(site, outer + inner)
    assert found.count(b"HTTP/1.1 ") == 1 and found.endswith(b"live\n")


def test_a_scrape_that_waits_keeps_nobody_from_an_answer() -> None:
    began, goes_on = threading.Event(), threading.Event()

    def slow() -> bytes:
        began.set()
        assert goes_on.wait(10)
        return b"slow 1\n"

    answers: list[Answer] = []
    with listening(metrics=slow) as site:
        first = threading.Thread(target=lambda: answers.append(ask(site, "/metrics")))
        first.start()
        assert began.wait(5)
        for _ in range(2 * health.THREADS):
            status, _, body = ask(site, "/metrics")
            assert (status, body) == (503, b"someone else is being answered\n")
            assert ask(site, "/livez")[0] == ask(site, "/readyz")[0] == 200
        goes_on.set()
        first.join(5)
        assert [one[::2] for one in answers] == [(200, b"slow 1\n")]
        assert ask(site, "/metrics")[0] == 200


def test_those_who_say_nothing_keep_nobody_from_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SILENCE_S", 0.4)
    with listening() as site, ExitStack() as many:
        for count in range(3 * health.THREADS):
            one = socket.create_connection((HOST, site.port), timeout=10)
            many.enter_context(closing(one))
            if count % 2:
                one.sendall(b"GET /livez HTTP/1.1\r\nHo")
        began = time.monotonic()
        assert ask(site, "/livez")[0] == 200
        assert time.monotonic() - began < 5


def test_a_stop_lets_an_answer_out_and_closes_the_door() -> None:
    began = threading.Event()

    def slow() -> bytes:
        began.set()
        time.sleep(0.3)
        return b"slow 1\n"

    answers: list[Answer] = []
    with listening(metrics=slow) as site:
        first = threading.Thread(target=lambda: answers.append(ask(site, "/metrics")))
        first.start()
        assert began.wait(5)
        assert site.stop(5)
        first.join(5)
        assert [one[::2] for one in answers] == [(200, b"slow 1\n")]
        with pytest.raises(ConnectionRefusedError):
            ask(site, "/livez")
        assert site.stop(0)  # again, and at once


def test_a_stop_has_an_end_whoever_still_waits() -> None:
    began, goes_on = threading.Event(), threading.Event()

    def stuck() -> bytes:
        began.set()
        goes_on.wait(30)
        return b""

    with listening(metrics=stuck) as site:
        asked = threading.Thread(target=lambda: said(site, b"GET /metrics HTTP/1.0\r\n\r\n"))
        asked.start()
        assert began.wait(5)
        start = time.monotonic()
        assert not site.stop(0.5)
        assert time.monotonic() - start < 2
        with pytest.raises(ConnectionRefusedError):
            ask(site, "/livez")
        mine = [
            one for one in threading.enumerate() if one.name.startswith(("CP Server", "health"))
        ]
        assert mine and all(one.daemon for one in mine), "one would keep the process from its end"
        goes_on.set()
        assert site.stop(5)
        asked.join(5)


def test_a_port_that_is_taken_is_told_with_its_address(site: Health) -> None:
    other = Health((HOST, site.port), lambda: None, lambda: b"")
    with pytest.raises(OSError, match=rf"cannot listen on {HOST}:{site.port}: Address already in"):
        other.start()
    assert other.stop(1)
    assert Health((HOST, 8271), lambda: None, lambda: b"").port == 8271


def test_the_other_protocol_is_listened_on_as_well() -> None:
    listener = Health(("::1", 0), lambda: None, lambda: b"")
    try:
        listener.start()
    except OSError as error:
        assert "cannot listen on ::1:0" in str(error)  # a machine without IPv6
        return
    with closing(http.client.HTTPConnection("::1", listener.port, timeout=10)) as connection:
        connection.request("GET", "/livez")
        assert connection.getresponse().status == 200
    assert listener.stop(5)
