"""Hostile clients at the workers' door: bounded memory, right refusals, others not disturbed.

A client of TLS 1.3 has ended its handshake before the ingress has seen its certificate: what is
wrong with it comes as an alert when it first reads.
"""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from qinglong_sql import ca
from qinglong_sql.ingress_visitor import CONNECTIONS, HANDSHAKES
from qinglong_sql.wire import KIB
from tests import acting, workers
from tests.conftest import ServerOf, _server
from tests.controls import login_of
from tests.doors_remote import Client, Site, site_on
from tests.engines import drop_postgres, fresh_postgres
from tests.workers import HOST, Authority, Served

SOON_S = 1.0
CROWD = 1_000
GROWTH_KIB = 64 * KIB
REPORT = b"POST /v1/report HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def site(
    request: pytest.FixtureRequest, server_of: ServerOf, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    server = _server(None, request.config, server_of)
    with site_on(server, tmp_path_factory.mktemp("ingress")) as site:
        yield site


@contextmanager
def neighbour(connect: Any) -> Iterator[list[float]]:
    """A worker that goes on meanwhile; how long each of its answers took. Fails for another."""
    took: list[float] = []
    wrong: list[Any] = []
    over = threading.Event()
    client: Client = connect()
    acting.register(client, "neighbour", "s")  # type: ignore[arg-type]

    def work() -> None:
        while True:
            began = time.monotonic()
            try:
                if (status := client.ask("heartbeat", session_id="s")[0]) != 200:
                    wrong.append(status)
            except OSError as error:
                wrong.append(error)
                return
            took.append(time.monotonic() - began)
            if over.wait(0.02):
                return

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield took
    finally:
        over.set()
        thread.join()
        client.close()
    assert not wrong and took, wrong
    assert max(took) < SOON_S, max(took)


@pytest.fixture
def calm(site: Site) -> Iterator[None]:
    """Another worker is answered within a second all the time."""
    with neighbour(lambda: site.client("neighbour")):
        yield


def plain(port: int) -> socket.socket:
    found = socket.create_connection((HOST, port), timeout=10)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def secure(site: Site, worker: str = "w1") -> ssl.SSLSocket:
    return site.context(worker).wrap_socket(plain(site.ingress.port), server_hostname=HOST)


def until(true: Any, within_s: float = 10.0) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


# --- certificates


def outsider(site: Site, kind: str, folder: Path) -> ssl.SSLContext:
    """The context of a client that is not to be let in."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(site.authority.folder / "ca.crt")
    if kind == "no certificate":
        return context
    authority, more = site.authority.folder, {}
    if kind == "expired":
        more = {"now_ms": int(time.time() * 1000) - 7_200_000, "validity_ms": 3_600_000}
    elif kind == "other authority":
        authority = folder / "ca"
        ca.init(authority)
    elif kind == "a server's":
        more = {"server": True, "hosts": ["other"]}
    made = ca.issue(
        authority,
        "outsider",
        out=folder / "out",
        again=kind != "other authority",
        **more,  # type: ignore[arg-type]
    )
    assert made.key is not None
    context.load_cert_chain(made.certificate, made.key)
    if kind == "TLS 1.2":
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


@pytest.mark.parametrize(
    ("kind", "sees", "told"),
    [
        ("no certificate", "certificate required", "no certificate"),
        ("expired", "certificate expired", "certificate: certificate has expired"),
        ("other authority", "unknown ca", "certificate: unable to get local issuer certificate"),
        ("a server's", "unsupported certificate", "certificate: unsuitable certificate purpose"),
        ("TLS 1.2", "protocol version", "TLS below 1.3"),
    ],
)
@pytest.mark.usefixtures("calm")
def test_who_is_not_let_in_sees_an_alert_and_the_log_says_why(
    site: Site, tmp_path: Path, kind: str, sees: str, told: str
) -> None:
    before = site.count("refused_total", reason="handshake")
    context = outsider(site, kind, tmp_path)
    with plain(site.ingress.port) as raw:
        try:
            with context.wrap_socket(raw, server_hostname=HOST) as line:
                assert kind != "TLS 1.2", "its handshake does not end"
                line.sendall(b"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
                seen = line.recv(1).decode()
        except ssl.SSLError as error:
            seen = str(error)
    assert sees in seen.replace("_", " ").lower(), seen
    until(lambda: site.count("refused_total", reason="handshake") == before + 1)
    said = [one["message"] for one in site.lines("refused") if one["reason"] == "handshake"]
    assert said[-1] == f"a connection from {HOST}: {told}"


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, b"\x16\x03\x01\xff"])
def test_what_is_no_tls_is_hung_up_on(
    site: Site, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qinglong_sql.ingress_visitor.HANDSHAKE_S", 0.5)
    with plain(site.ingress.port) as line:
        line.sendall(said)
        assert line.recv(1000)[:5] in (b"", b"\x15\x03\x01\0\x02", b"\x15\x03\x03\0\x02")


# --- bodies


@pytest.mark.usefixtures("calm")
def test_a_body_that_stalls_is_ended(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qinglong_sql.ingress_body.STALL_S", 0.4)
    monkeypatch.setattr("qinglong_sql.ingress_body.BODY_S", 1.0)
    with secure(site) as silent, secure(site) as slow:
        for line in (silent, slow):
            line.sendall(REPORT + b"Content-Length: 400000\r\n\r\n[")
        assert silent.recv(1000).startswith(b"HTTP/1.1 408 ")
        answer, began = b"", time.monotonic()
        slow.settimeout(0.1)
        while not answer:  # it sends something all the time
            assert time.monotonic() - began < 5
            try:
                answer = slow.recv(1000)
            except TimeoutError:
                slow.sendall(b",")
        assert answer.startswith(b"HTTP/1.1 408 ")


@pytest.mark.usefixtures("calm")
def test_who_sends_more_than_may_be_can_read_that_it_is_too_much(site: Site) -> None:
    with secure(site) as line:
        line.sendall(REPORT + b"Content-Length: 8000000\r\n\r\n" + b"x" * 500_000)
        answer = line.recv(1000)
        assert answer.startswith(b"HTTP/1.1 413 ") and b"Connection: close" in answer
        with pytest.raises(OSError):
            for _ in range(1_000):
                line.sendall(b"x" * 100_000)


HEADS = {
    "two lengths": b"POST /v1/end HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 9",
    "length and chunks": REPORT + b"Content-Length: 2\r\nTransfer-Encoding: chunked",
    "negative": REPORT + b"Content-Length: -1",
    "no number": REPORT + b"Content-Length: 1e3",
    "a long line": b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: x",
    "a long header": b"GET / HTTP/1.1\r\nX: " + b"a" * 9_000,
    "many headers": b"GET / HTTP/1.1" + b"".join(b"\r\nX%d: y" % i for i in range(100)),
    "no HTTP": b"SSH-2.0-x",
    "a space": b"GET / HTTP/1.1\r\nContent-Length : 2",
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_that_readers_may_take_in_two_ways_is_refused(site: Site, name: str) -> None:
    with secure(site) as line:
        line.sendall(HEADS[name] + b"\r\n\r\n{}GET /v1/x HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while part := line.recv(4_000):
            answer += part
    status = answer[9:12]
    assert status in (b"400", b"404", b"411", b"431"), answer
    assert answer.count(b"HTTP/1.1 ") == 1, "what follows is no request of its own"
    assert b"aaaa" not in answer


BODIES = {
    "cut off": b'{"commands":[',
    "deep": b"[" * 500_000,
    "deep objects": b'{"a":' * 80_000,
    "twice": b'{"commands":[],"commands":[]}',
    "nan": b'{"commands":[NaN]}',
    "infinite": b'{"commands":[1e400]}',
    "long number": b'{"commands":[' + b"9" * 400_000 + b"]}",
    "surrogate": b'{"commands":[{"attempt_id":"\\ud800","fence":1,"token":"x"}]}',
    "NUL": b'{"commands":[{"attempt_id":"\\u0000","fence":1,"token":"x"}]}',
    "not UTF-8": b'{"commands":["\xff"]}',
    "BOM": b'\xef\xbb\xbf{"commands":[]}',
    "UTF-16": '{"commands":[]}'.encode("utf-16"),
    "wide": b'{"commands":[' + b"1," * 200_000 + b"1]}",
    "two": b'{"commands":[]}{"commands":[]}',
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.usefixtures("calm")
def test_json_that_readers_may_take_in_two_ways_is_refused(site: Site, name: str) -> None:
    with site.client() as client:
        status, found = client.send("/v1/report", BODIES[name])
        assert (status, found["code"]) == (400, "QL400")
        assert "\\ud800" not in found["message"] and "999" not in found["message"]
        assert client.send("/v1/report", b'{"commands":[]}') == (200, {"rows": []})


def test_a_worker_that_takes_all_it_can_get_leaves_the_others_theirs(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own bodies beyond its share are refused; nobody else notices."""
    answerer: Any = site.ingress._answerer
    budget = answerer._budget
    monkeypatch.setattr(budget, "total", 1024 * KIB)
    monkeypatch.setattr(budget, "free", 1024 * KIB)
    monkeypatch.setattr(budget, "each", 256 * KIB)
    monkeypatch.setattr("qinglong_sql.ingress_answer.WAIT_S", 0.2)
    monkeypatch.setattr("qinglong_sql.ingress_body.STALL_S", 1.0)
    with ExitStack() as stack, neighbour(lambda: site.client("neighbour")):
        lines = [stack.enter_context(secure(site, "greedy")) for _ in range(8)]
        for line in lines:
            line.sendall(REPORT + b"Content-Length: 100000\r\n\r\n[")
        time.sleep(0.3)
        with site.client("w2") as other:
            wide = b'{"commands":[' + b" " * 100_000 + b"]}"
            assert other.send("/v1/report", wide) == (200, {"rows": []})
        answers = sorted(line.recv(1000)[9:12] for line in lines)
    assert answers == [b"408"] * 2 + [b"503"] * 6
    until(lambda: budget.free == 1024 * KIB)


def test_answers_that_nobody_takes_are_not_made_on_and_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qinglong_sql.ingress_body.STALL_S", 0.5)
    end = time.monotonic() + 8
    with secure(site) as line, pytest.raises((ConnectionError, ssl.SSLError)):
        while time.monotonic() < end:  # it is hung up on
            line.sendall(b"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
    until(lambda: site.count("in_flight") == 0)


# --- replays


def test_a_recorded_conversation_played_again_moves_nothing(site: Site) -> None:
    from qinglong_sql.store.postgres import PostgresStore
    from tests.engines import Engine

    with closing(PostgresStore(site.dsn)) as store, site.client("w1") as door:
        acting.publish(store, {"a": []})
        run_id = acting.start(store, key="replay")
        acting.page(store, "task_admission_page")
        said: list[tuple[str, bytes]] = []
        real = door.send

        def recorded(path: str, body: bytes = b"", *words: Any, **more: Any) -> Any:
            said.append((path, body))
            return real(path, body, *words, **more)

        door.send = recorded  # type: ignore[method-assign, assignment]
        acting.register(door, "w1", "s1")  # type: ignore[arg-type]
        held = acting.lease(door, "replay", run_id=run_id, worker="w1", session="s1")["a"]  # type: ignore[arg-type]
        acting.run(door, held)  # type: ignore[arg-type]
        acting.report(door, held, output='{"x":1}')  # type: ignore[arg-type]
        engine = Engine("postgres", site.dsn, None)
        before = acting.everything(engine)
        with site.client("w1") as again, site.client("thief") as thief:
            for _ in range(5):
                for path, body in said:
                    assert again.send(path, body)[0] == 200
                    if path != "/v1/register":
                        found = thief.send(path, body)
                        assert found[0] == 410 or all(
                            row["code"] == "QL410" for row in found[1]["rows"]
                        )
        after = acting.everything(engine)
        for kept in ("worker_audit", "refused_report"):  # what the thief has said
            assert before.pop(kept) != after.pop(kept)  # type: ignore[attr-defined]
        assert after == before
        assert acting.ended(store, run_id)[0] == "running" and acting.unbroken(store)


# --- how many


def test_a_worker_has_eight_connections_and_the_silent_one_goes(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        lines = [stack.enter_context(site.client("many")) for _ in range(9)]
        for client in lines[:8]:
            assert client.ask("heartbeat", session_id="s")[0] == 404
        assert lines[0].ask("heartbeat", session_id="s")[0] == 404  # the second is silent longest
        assert lines[8].ask("heartbeat", session_id="s")[0] == 404
        with pytest.raises(OSError):
            lines[1].ask("heartbeat", session_id="s")
        for client in (lines[0], *lines[2:]):
            assert client.ask("heartbeat", session_id="s")[0] == 404
        monkeypatch.setattr("qinglong_sql.ingress_visitor.CONNECTIONS", int(site.count(
            "connections"
        )))  # fmt: skip
        with site.client("w2") as other:
            assert other.ask("heartbeat", session_id="s")[0] == 404
        until(lambda: site.count("connections") < 9)


def test_what_is_answered_at_once_has_an_end(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qinglong_sql.ingress_answer.IN_FLIGHT", 2)
    with secure(site) as one, secure(site, "w2") as two, site.client("w3") as client:
        for line in (one, two):
            line.sendall(REPORT + b"Content-Length: 2\r\n\r\n[")
        until(lambda: site.count("in_flight") == 2)
        status, found = client.ask("heartbeat", session_id="s")
        assert (status, found["code"], client.headers["Retry-After"]) == (503, "busy", "1")
        for line in (one, two):
            line.sendall(b"]")
            assert line.recv(1000).startswith(b"HTTP/1.1 400 ")
        assert client.ask("heartbeat", session_id="s")[0] == 404


def memory(door: Served) -> int:
    """Resident kibibytes of a process, at their highest."""
    status = Path(f"/proc/{door.child.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def descriptors(door: Served) -> int:
    return len(list(Path(f"/proc/{door.child.pid}/fd").iterdir()))


def test_a_thousand_silent_connections_are_no_trouble_to_anyone(
    request: pytest.FixtureRequest, server_of: ServerOf, tmp_path: Path
) -> None:
    """A process of its own: its descriptors and its memory are seen from outside."""
    server = _server(None, request.config, server_of)
    url, authority = fresh_postgres(server), Authority(tmp_path)
    papers = authority.worker("neighbour")
    with login_of(url, "crowd_login", "ql_worker") as login:
        door = workers.ingress_process(login, authority, tmp_path, 0)
        try:
            door.ready()
            told = next(one for one in door.lines("boot") if one["part"] == "ingress")
            port = int(told["message"].rpartition(" ")[2])
            from qinglong_sql.tls import client_context

            context = client_context(papers.certificate, papers.key, papers.ca)
            with neighbour(lambda: Client(port, context)), ExitStack() as stack:
                before, own = memory(door), descriptors(door)
                for _ in range(CROWD):
                    stack.enter_context(plain(port))
                until(lambda: descriptors(door) <= own + HANDSHAKES)
                grew = memory(door) - before
                assert grew < GROWTH_KIB, f"{grew} KiB for {CROWD}"
                print(f"{CROWD} silent connections: {before} KiB and {grew} more")
                until(lambda: descriptors(door) <= own, 15)
            assert door.stop() == 0
        finally:
            door.close()
    drop_postgres(server, url)
    assert CONNECTIONS + HANDSHAKES < 1024 - 64, "the usual limit of descriptors holds them"
