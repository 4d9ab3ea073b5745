"""A worker's way through the ingress: what is lost is asked again, and nothing waits for ever."""

import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from qinglong_sql import tending
from qinglong_sql.errors import Malformed, NotReady, Unknown, Violated
from qinglong_sql.ingress import Ingress
from qinglong_sql.limits import OUTPUT_BYTES
from qinglong_sql.port import WORKER_STEPS, Away, Port, Shut
from qinglong_sql.remote import Papers, Remote, _messages, _refusal, place_of
from qinglong_sql.store import Contended, Row
from qinglong_sql.tls import server_context
from qinglong_sql.wire import ROUTES, encoded
from tests.middle import middle
from tests.site import Site, opened
from tests.tended import Tended
from tests.workers import HOST, Authority, ingress_here

LEASE_MS = 6_000  # an answer is waited for one second
Doors = Callable[..., Remote]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def ingress(postgres_dsn: str, authority: Authority, tmp_path: Path) -> Iterator[Ingress]:
    with ingress_here(postgres_dsn, authority, tmp_path) as found:
        yield found


@pytest.fixture
def door(ingress: Ingress, authority: Authority) -> Iterator[Doors]:
    with ExitStack() as stack:

        def made(port: int | None = None, name: str = "w1") -> Remote:
            url = f"https://{HOST}:{port or ingress.port}"
            remote = Remote(url, authority.worker(name), lease_ms=LEASE_MS)
            stack.callback(remote.close)
            return remote

        yield made


SAID = {
    "register_worker", "heartbeat_worker", "lease_attempts", "attempt_inputs", "start_attempts",
    "running_attempts", "report_attempts",
}  # fmt: skip


class Losing:
    """A port that loses the first answer of each of these steps, after the commit."""

    def __init__(self, port: Port, *steps: str) -> None:
        self._port = port
        self.left = set(steps)

    def call(self, step: str, /, **params: object) -> list[Row]:
        rows = self._port.call(step, **params)
        if step in self.left and rows:
            self.left.discard(step)
            raise Away("the ingress: no answer in time")
        return rows

    def close(self) -> None:
        self._port.close()


def test_whatever_answer_is_lost_is_asked_for_again_and_nothing_runs_twice(
    postgres_dsn: str, door: Doors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tending, "AWAY_IDLE_MS", 50)
    port = Losing(door(), *WORKER_STEPS)
    with opened(postgres_dsn, tmp_path) as site:
        one = Tended(site, port)
        try:
            run_id = two_steps(site)
            assert one.finish(run_id) == "succeeded"
            assert site.lines("witness") == ["one", "two"]
            assert [row["number"] for row in site.attempts(run_id)] == [1, 2]
            assert port.left == WORKER_STEPS - SAID
            assert one.stop() == "stopped"
            assert one.lines("trouble") == []
            assert site.store.read("worker_state")[0]["status"] == "offline"
        finally:
            one.close()


def two_steps(site: Site) -> str:
    site.publish(
        "one: {run: 'echo one >> witness; sleep 0.3'}\n"
        "two: {run: 'echo two >> witness', needs: [one]}"
    )
    return site.start()


# --- lines


def test_a_line_that_forgets_answers_is_given_up_in_time_and_made_anew(
    ingress: Ingress, door: Doors
) -> None:
    with middle(ingress.port) as between:
        remote = door(between.port)
        register(remote)
        between.held = True
        began = time.monotonic()
        with pytest.raises(Away, match="no answer in time"):
            heartbeat(remote)
        assert time.monotonic() - began < 1.8
        between.held = False
        assert heartbeat(remote)["session_id"] == "s1"


def test_a_line_that_was_closed_while_nobody_used_it_is_no_loss(
    ingress: Ingress, door: Doors
) -> None:
    with middle(ingress.port) as between:
        remote = door(between.port)
        register(remote)
        for _ in range(2):
            between.cut()
            time.sleep(0.05)
            assert heartbeat(remote)["status"] == "online"
        between.close()
        with pytest.raises(Away, match="refused"):
            heartbeat(remote)


def test_nobody_there_and_no_such_name_are_told_in_words(authority: Authority) -> None:
    papers = authority.worker("w1")
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
    for url, words in (
        (f"https://{HOST}:{port}", "Connection refused"),
        (f"https://nowhere.invalid:{port}", "cannot be resolved|nobody resolves|no answer"),
    ):
        remote = Remote(url, papers, lease_ms=LEASE_MS)
        with pytest.raises(Away, match=words):
            register(remote)


def test_an_ingress_that_drips_does_not_keep_a_worker(authority: Authority) -> None:
    """A socket's own bound would begin anew with each byte."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    with serving(authority, head, *[b" "] * 100, pause_s=0.05) as url:
        remote = Remote(url, authority.worker("w1"), lease_ms=LEASE_MS)
        began = time.monotonic()
        with pytest.raises(Away, match="no answer in time"):
            register(remote)
        assert 0.8 < time.monotonic() - began < 2
        remote.close()


@pytest.mark.parametrize(
    "answer", [b"no JSON", b"[]", b'{"rows": 7}', b'{"rows": [7]}', b"[" * 100_000]
)
def test_what_is_no_answer_of_an_ingress_is_told(authority: Authority, answer: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer)
    with serving(authority, head + answer) as url:
        remote = Remote(url, authority.worker("w1"), lease_ms=LEASE_MS)
        with pytest.raises(NotReady, match="answers otherwise than an ingress does"):
            register(remote)
        remote.close()


@pytest.mark.parametrize("more", ["", "Connection: close\r\n"], ids=["kept", "last"])
def test_the_last_answer_of_a_line_is_read_as_well(authority: Authority, more: str) -> None:
    """An ingress hangs up behind many a refusal, and what it said is what matters."""
    for status, body in (
        ("403 Forbidden", b'{"code": "revoked", "message": "certificate revoked"}'),
        ("200 OK", b'{"rows": [{"status": "online"}]}'),
    ):
        head = f"HTTP/1.1 {status}\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode()
        with serving(authority, head, body, pause_s=0.05) as url:
            remote = Remote(url, authority.worker("w1"), lease_ms=LEASE_MS)
            for _ in range(2):
                if status.startswith("200"):
                    assert heartbeat(remote)["status"] == "online"
                else:
                    with pytest.raises(Shut, match="certificate revoked"):
                        heartbeat(remote)
            remote.close()


def test_half_an_answer_is_none(authority: Authority) -> None:
    with serving(authority, b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"rows": []}') as url:
        remote = Remote(url, authority.worker("w1"), lease_ms=LEASE_MS)
        with pytest.raises(Away):
            register(remote)
        remote.close()


def heard(line: ssl.SSLSocket) -> None:
    """Read one whole message: who hangs up with some of it unread takes back what it said."""
    raw = b""
    while not (found := re.search(rb"Content-Length: (\d+)\r\n(?s:.*?)\r\n\r\n", raw)) or (
        len(raw) < found.end() + int(found[1])
    ):
        chunk = line.recv(65_536)
        if not chunk:
            return
        raw += chunk


@contextmanager
def serving(authority: Authority, *pieces: bytes, pause_s: float = 0.0) -> Iterator[str]:
    """A TLS server that hears one message and says these bytes, whatever it was."""
    papers = authority.ingress()
    context = server_context(papers.certificate, papers.key, papers.ca)

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                with suppress(OSError), context.wrap_socket(client, server_side=True) as line:
                    heard(line)
                    for piece in pieces:
                        line.sendall(piece)
                        time.sleep(pause_s)

    with socket.create_server((HOST, 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"https://{HOST}:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


# --- who is let in


def test_an_ingress_of_another_authority_is_not_spoken_to(
    ingress: Ingress, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other")
    mine, theirs = authority.worker("w1"), other.worker("w1")
    url = f"https://{HOST}:{ingress.port}"
    remote = Remote(url, Papers(mine.certificate, mine.key, theirs.ca), lease_ms=LEASE_MS)
    with pytest.raises(Shut, match="its certificate is not good"):
        register(remote)
    remote.close()
    remote = Remote(url, Papers(theirs.certificate, theirs.key, mine.ca), lease_ms=LEASE_MS)
    with pytest.raises((Shut, Away)):  # the alert may be overtaken by the end of the line
        register(remote)
    remote.close()


def test_an_ingress_that_is_called_otherwise_is_not_spoken_to(
    ingress: Ingress, authority: Authority
) -> None:
    remote = Remote(f"https://localhost:{ingress.port}", authority.worker("w1"), lease_ms=LEASE_MS)
    with pytest.raises(Shut, match="its certificate is not good"):
        register(remote)
    remote.close()


def test_only_steps_of_workers_go_through(door: Doors) -> None:
    for step in ("due_page", "drain_worker", "start_run", "purge_runs"):
        with pytest.raises(KeyError):
            door().call(step)


@pytest.mark.parametrize(
    "url",
    ["http://h:1", "https://", "h:1", "https://h:99999", "https://u:p@h:1", "https://h:1/path",
     "https://h:1?x=1"],
)  # fmt: skip
def test_an_address_is_a_host_and_a_port(url: str) -> None:
    with pytest.raises(ValueError, match="https://host:port"):
        place_of(url)


def test_a_host_may_be_an_address_and_the_port_left_out() -> None:
    assert place_of("https://[::1]:8272/") == ("::1", 8272)
    assert place_of("https://ingress.example") == ("ingress.example", 443)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "QL400", Malformed),
        (404, "QL404", Unknown),
        (403, "certificate", Shut),
        (401, "", Shut),
        (503, "contended", Contended),
        (503, "QL503", Away),
        (503, "busy", Away),
        (408, "slow", Away),
        (413, "large", Malformed),
        (404, "route", NotReady),
        (500, "QL500", Violated),
        (502, "", Away),
    ],
)
def test_a_refusal_is_an_error_of_its_kind(status: int, code: str, kind: type) -> None:
    raw = json.dumps({"code": code, "message": "why"}).encode()
    assert isinstance(_refusal(status, raw, "the ingress", ROUTES["report"]), kind)
    assert isinstance(_refusal(502, b"<html>", "the ingress", ROUTES["report"]), Away)


# --- what is too much for one message


def test_a_batch_goes_in_as_many_messages_as_the_caps_ask_for() -> None:
    route = ROUTES["report"]
    output = json.dumps({"text": "\u20ac" * (OUTPUT_BYTES // 3 - 20)}, ensure_ascii=False)
    commands: list[object] = [
        {"attempt_id": f"a{number}", "fence": 1, "token": "t", "how": "exit", "exit_code": 0,
         "output": output, "error": None}
        for number in range(128)
    ]  # fmt: skip
    pieces = list(_messages(route, {"commands": commands}))
    assert 2 < len(pieces) < 12
    assert all(len(encoded(piece)) <= route.body_bytes for piece in pieces)
    assert [one for piece in pieces for one in piece["commands"]] == commands  # type: ignore[attr-defined]
    offers = list(_messages(ROUTES["lease"], {"queue": "q", "offers": [{"n": 1}] * 40}))
    assert [len(piece["offers"]) for piece in offers] == [32, 8]  # type: ignore[arg-type]
    assert all(piece["queue"] == "q" for piece in offers)
    assert list(_messages(route, {"commands": []})) == [{"commands": []}]


def test_standings_of_many_are_asked_and_answered_in_one_call(door: Doors) -> None:
    commands = [{"attempt_id": f"ru{'0' * 24}-{n}", "fence": 1, "token": "t"} for n in range(200)]
    rows = door().call("attempt_standing", p_commands=json.dumps(commands))
    assert [row["attempt_id"] for row in rows] == [one["attempt_id"] for one in commands]
    assert {row["code"] for row in rows} == {"QL404"}


def register(port: Port, worker_id: str = "w1") -> None:
    port.call(
        "register_worker", p_worker_id=worker_id, p_session_id="s1", p_queues='["default"]',
        p_slots=1, p_self_fencing=1, p_grace_ms=2_000,
    )  # fmt: skip


def heartbeat(port: Port) -> Row:
    return port.call("heartbeat_worker", p_worker_id="?", p_session_id="s1")[0]
