"""The door as its supervisor has it: alone and in a control process; its settings; its document."""

import importlib.util
import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from requests.adapters import HTTPAdapter
from schemathesis import GenerationMode

from qinglong_sql import ingress_settings
from qinglong_sql.cli.control import control
from qinglong_sql.cli.ingress import ingress
from qinglong_sql.ingress_settings import KEYS, IngressSettings, load
from qinglong_sql.setting_file import SettingFault
from qinglong_sql.tls import client_context, server_faults
from qinglong_sql.wire import text
from qinglong_sql.wire_document import document
from tests.controls import GROUPS, Process, login_of
from tests.doors_remote import Client, site_of
from tests.pgbouncer import UNNOTICED
from tests.server import Server
from tests.shell import Shell
from tests.workers import HOST, Authority, Served, ingress_process, told

DSN = "postgresql://ql_w@db/ql"
NEEDED = {"certificate": "c.crt", "key": "c.key", "client_ca": "ca.crt"}
FILES = "".join(f"{key} = {value!r}\n" for key, value in ({"dsn": DSN} | NEEDED).items())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@contextmanager
def closing(process: Any) -> Iterator[Any]:
    try:
        yield process
    finally:
        process.close()


def door_of(process: Process, authority: Authority) -> Client:
    line = next(one for one in process.lines("boot") if one["part"] == "ingress")
    papers = authority.worker("w1")
    context = client_context(papers.certificate, papers.key, papers.ca)
    return Client(int(line["message"].rpartition(" ")[2]), context)


# --- alone


def test_an_ingress_boots_serves_and_stops_in_order(
    postgres_dsn: str, authority: Authority, tmp_path: Path
) -> None:
    with login_of(postgres_dsn, "alone_login", "ql_worker") as login:
        with closing(ingress_process(login, authority, tmp_path, 0)) as process:
            process.ready()
            order = ["listener", "papers", "pool", "readiness", "ingress"]
            assert process.parts("boot") == order
            assert process.get("/livez") == (200, "live\n")
            assert process.get("/readyz") == (200, "ready\n")
            with door_of(process, authority) as client:
                assert client.ask("heartbeat", session_id="s")[0] == 404
            status, text = process.get("/metrics")
            assert status == 200 and "qinglong_sql_ingress_ready 1.0" in text
            wanted = 'qinglong_sql_ingress_requests_total{route="heartbeat",status="404"} 1.0'
            assert wanted in text
            assert process.stop() == 0
            assert process.parts("stop") == ["ingress", "pool", "listener"]
            assert process.lines()[-1]["message"] == "stopped"
            assert "Traceback" not in process.text()


def test_an_ingress_waits_for_its_database_and_says_so(
    postgres_dsn: str, postgres_server: Server, authority: Authority, tmp_path: Path
) -> None:
    """A control process ends then; a door has nothing that it could do wrong meanwhile."""
    if postgres_server.entry:
        pytest.skip(UNNOTICED)
    name = postgres_dsn.rpartition("/")[2]
    with ExitStack() as stack:
        login = stack.enter_context(login_of(postgres_dsn, "alone_login", "ql_worker"))
        process = stack.enter_context(closing(ingress_process(login, authority, tmp_path, 0)))
        process.ready()
        dba = stack.enter_context(
            psycopg.connect(postgres_dsn.replace(name, "postgres"), autocommit=True)
        )
        dba.execute(f"alter database {name} allow_connections off")  # type: ignore[arg-type]
        try:
            dba.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name]
            )
            with door_of(process, authority) as client:
                process.until(
                    lambda: client.ask("heartbeat", session_id="s")[0] == 503, "it is away"
                )
                assert client.ask("heartbeat", session_id="s")[1]["code"] == "QL503"
            words = "the database does not answer now\n"
            process.until(lambda: process.get("/readyz") == (503, words), "it says so")
            assert process.get("/livez")[0] == 200
        finally:
            dba.execute(f"alter database {name} allow_connections on")  # type: ignore[arg-type]
        process.until(lambda: process.get("/readyz")[0] == 200, "it is back")
        process.until(lambda: process.lines("well"), "it says that, too")
        assert process.stop(signal.SIGINT) == 0
        assert "Traceback" not in process.text()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"CERTIFICATE": "none.crt"},
            "not ready: papers: QL503 none.crt: No such file or directory",
        ),
        ({"CRL": "none.pem"}, "not ready: papers: QL503 none.pem: No such file or directory"),
        (
            {
                "DSN": "postgresql://x:s3cret@127.0.0.1:1/x",
                "CERTIFICATE": "none.crt",
                "KEY": "none.key",
                "CLIENT_CA": "none.ca",
                "CRL": "none.pem",
            },
            "not ready: papers: QL503 none.crt: No such file or directory; none.key: No such file"
            " or directory; none.ca: No such file or directory; none.pem: No such file or"
            " directory",
        ),
        ({"DSN": "postgresql://x:s3cret@127.0.0.1:1/x"}, "not ready: pool: PostgreSQL: "),
        ({"LISTEN": "192.0.2.1:1"}, "not ready: ingress: cannot listen on 192.0.2.1:1: "),
    ],
)
def test_what_does_not_come_up_ends_with_6_and_the_reason(
    postgres_dsn: str, authority: Authority, tmp_path: Path, changes: dict[str, str], words: str
) -> None:
    with login_of(postgres_dsn, "alone_login", "ql_worker") as login:
        env = told(login, authority, tmp_path)
        env |= {f"QINGLONG_INGRESS_{key}": value for key, value in changes.items()}
        with closing(
            Served("ingress", tmp_path, "ingress", "--log-format", "json", **env)
        ) as process:
            assert process.ended() == 6
            assert process.lines("boot")[-1]["message"].startswith(words)
            assert "Traceback" not in process.text() and "s3cret" not in process.text()


def test_all_bad_papers_are_named_and_each_once(authority: Authority, tmp_path: Path) -> None:
    good, other = authority.ingress(), authority.worker("w1")
    none, junk = tmp_path / "none", tmp_path / "junk"
    junk.write_text("junk")

    def said(certificate: Path, key: Path, ca: Path) -> list[str]:
        found = [str(one) for one in server_faults(certificate, key, ca)]
        return [words.replace(f"{tmp_path}/", "") for words in found]

    gone = "none: No such file or directory"
    assert said(good.certificate, good.key, good.ca) == []
    assert said(none, good.key, good.ca) == [gone]
    assert said(none, none, none) == [gone]
    assert said(junk, good.key, none) == ["junk: it holds no certificate in PEM", gone]
    assert said(good.certificate, junk, junk) == [
        "junk: it holds no private key in PEM that can be used",
        "junk: it holds no certificate of an authority in PEM",
    ]
    (words,) = said(good.certificate, other.key, good.ca)
    assert "it is not the key of" in words
    (words,) = said(other.certificate, other.key, good.ca)
    assert "it is not a certificate for servers" in words


# --- in a control process


def test_a_control_process_with_an_ingress_has_both_and_stops_both(
    postgres_dsn: str, postgres_server: Server, authority: Authority, tmp_path: Path
) -> None:
    if postgres_server.entry:
        pytest.skip(UNNOTICED)
    with ExitStack() as stack:
        decides = stack.enter_context(login_of(postgres_dsn, "control_login", GROUPS))
        works = stack.enter_context(login_of(postgres_dsn, "alone_login", "ql_worker"))
        env = told(works, authority, tmp_path)
        process = stack.enter_context(closing(Process(decides, tmp_path, "--ingress", **env)))
        process.ready()
        order = ["listener", "pool", "readiness", "recovery", "ingress", "scheduler",
                 "cancellation"]  # fmt: skip
        assert process.parts("boot") == order
        with door_of(process, authority) as client:
            assert client.ask("heartbeat", session_id="s")[0] == 404
            text = process.get("/metrics")[1]
            assert 'ingress_requests_total{route="heartbeat",status="404"} 1.0' in text
            assert "qinglong_sql_cycles_total" in text
            with psycopg.connect(postgres_dsn, autocommit=True) as dba:
                who = "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s"
                dba.execute(who, ["alone_login"])
                until_s = time.monotonic() + 20
                while client.ask("heartbeat", session_id="s")[0] != 404:
                    assert time.monotonic() < until_s
                assert process.get("/readyz")[0] == 200, "its trouble is not the control's"
                dba.execute(who, ["control_login"])
                assert process.ended() == 6
            with pytest.raises(OSError):
                client.ask("heartbeat", session_id="s")
        assert process.parts("stop")[-5:] == [
            "cancellation", "scheduler", "ingress", "pool", "listener",
        ]  # fmt: skip


def test_a_door_that_does_not_open_ends_the_control_process(
    postgres_dsn: str, authority: Authority, tmp_path: Path
) -> None:
    with login_of(postgres_dsn, "control_login", GROUPS) as decides:
        env = told("postgresql://x:s3cret@127.0.0.1:1/x", authority, tmp_path)
        with closing(Process(decides, tmp_path, "--ingress", **env)) as process:
            assert process.ended() == 6
            said = process.lines("boot")[-1]["message"]
            assert said.startswith("not ready: ingress: PostgreSQL: ")
            assert "s3cret" not in process.text() and "Traceback" not in process.text()


# --- settings


def settings_of(file: Path | None = None, environ: Any = None, **flags: object) -> IngressSettings:
    return load(file, {"dsn": DSN, **NEEDED, **flags}, environ or {})[0]


def test_what_nobody_says_has_a_default() -> None:
    assert settings_of() == IngressSettings(
        dsn=DSN, password_file=None, listen=("127.0.0.1", 8272), certificate=Path("c.crt"),
        key=Path("c.key"), client_ca=Path("ca.crt"), crl=None, ca_dir=None, log_dir=None,
        health_listen=("127.0.0.1", 8273), boot_timeout=30_000, drain_timeout=10_000,
        stop_timeout=3_000, log_format="text", log_level="info",
    )  # fmt: skip
    folder = settings_of().log_folder
    assert folder({}) == Path.cwd() / ".qinglong/ingress/log"
    assert folder({"QINGLONG_STATE_DIR": "/s"}) == Path("/s/ingress/log")
    assert settings_of(log_dir="/logs").log_folder({}) == Path("/logs")


def test_every_setting_may_be_said_in_each_of_three_places(tmp_path: Path) -> None:
    wanted = {"dsn": DSN, "password_file": "/pw", "listen": "[::1]:0", "certificate": "/a",
              "key": "/b", "client_ca": "/c", "crl": "/d", "ca_dir": "/e", "log_dir": "/f",
              "health_listen": "0.0.0.0:1", "boot_timeout": "1s", "drain_timeout": "2s",
              "stop_timeout": "3s", "log_format": "json", "log_level": "debug"}  # fmt: skip
    assert wanted.keys() == KEYS.keys() == {one.name for one in fields(IngressSettings)}
    file = tmp_path / "both.toml"
    rows = "".join(f"{key} = {json.dumps(value)}\n" for key, value in wanted.items())
    file.write_text(f"idle_ms = 500  # the control's\n[ingress]\n{rows}")
    by_file = load(file, {}, {})[0]
    environ = {f"QINGLONG_INGRESS_{key.upper()}": value for key, value in wanted.items()}
    assert by_file == load(None, {}, environ)[0] == load(None, wanted, {})[0]
    options = {name for one in ingress.params for name in one.opts}
    assert options >= {f"--{key.replace('_', '-')}" for key in KEYS}


def test_a_control_process_takes_the_table_and_not_its_own_login(tmp_path: Path) -> None:
    file = tmp_path / "both.toml"
    lines = "".join(f'{key} = "{value}"\n' for key, value in NEEDED.items())
    file.write_text(f'dsn = "postgresql://c@db/ql"\n[ingress]\n{lines}')
    book = ingress_settings.BESIDE_CONTROL
    with pytest.raises(SettingFault, match=r"^dsn is missing: .*; say QINGLONG_INGRESS_DSN, or"
                       r" `dsn =` below \[ingress\] in the file of --config$"):  # fmt: skip
        load(file, {}, {"QINGLONG_DSN": DSN}, book=book)
    with file.open("a") as more:
        more.write('dsn = "postgresql://w:s3cret@db/ql"\n')
    words = ["control", "--config", str(file), "--dsn", DSN, "--ingress", "--print-settings"]
    shell = Shell(tmp_path, "sqlite:///q.db")
    done = shell(*words)
    assert done.returncode == 0, done.stderr
    assert "s3cret" not in done.stdout
    again = tmp_path / "again.toml"
    again.write_text(done.stdout.replace(":***@", ":s3cret@"))
    assert load(again, {}, {}, book=book)[0] == load(file, {}, {}, book=book)[0]
    secret = "postgresql://w:s3cret@db/ql"
    alone = shell("ingress", "--config", str(file), "--dsn", secret, "--print-settings")
    assert alone.stdout.startswith("[ingress]\n") and alone.returncode == 0
    assert "s3cret" not in alone.stdout


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[ingress]\nlisten = 8272", "ingress.listen: it is text"),
        ("[ingress]\nlisten = 'x'\ndsn = 'postgresql://d'", "such as 127.0.0.1:8272, [::1]:8272"),
        (f"[ingress]\nhealth_listen = 'x'\n{FILES}", "such as 127.0.0.1:8273, [::1]:8273"),
        ("[ingress]\nlissten = 'x'", "no setting 'lissten'; did you mean listen?"),
        ("ingress = 1", "ingress is a table: write [ingress]"),
        ("[ingress]\ndsn = 'sqlite:///x'", "ingress.dsn: workers of a cluster have PostgreSQL"),
        ("", "certificate is missing: the certificate that workers are shown"),
    ],
)
def test_a_wrong_setting_is_told_with_its_place(tmp_path: Path, text: str, wanted: str) -> None:
    file = tmp_path / "x.toml"
    file.write_text(text)
    with pytest.raises(SettingFault) as raised:
        load(file, {}, {} if "dsn" in text else {"QINGLONG_DSN": DSN})
    assert wanted in str(raised.value)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    real = importlib.util.find_spec

    def found(name: str, *words: Any) -> Any:
        return None if name == "aiohttp" else real(name, *words)

    monkeypatch.setattr(importlib.util, "find_spec", found)
    environ = {"QINGLONG_INGRESS_DSN": DSN, "QINGLONG_CONTROL_DSN": DSN} | {
        f"QINGLONG_INGRESS_{key.upper()}": value for key, value in NEEDED.items()
    }
    for command, words in ((ingress, []), (control, ["--ingress"])):
        done = CliRunner().invoke(command, words, env=environ)
        assert done.exit_code == 6
        assert "aiohttp is not installed: pip install 'qinglong-sql[ingress]'" in done.output


# --- the document, against what it is about


class Mutual(HTTPAdapter):
    """Shows a worker's certificate, and trusts the authority alone."""

    def __init__(self, context: Any) -> None:
        self._context = context
        super().__init__()

    def init_poolmanager(self, *words: Any, **more: Any) -> Any:
        return super().init_poolmanager(*words, ssl_context=self._context, **more)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_the_running_ingress_is_as_its_document_says(
    postgres_dsn: str, authority: Authority, tmp_path: Path, mode: GenerationMode
) -> None:
    """schemathesis: no status, answer or type that is not in it, and never 500."""
    with site_of(postgres_dsn, authority, tmp_path) as site, requests.Session() as session:
        session.mount("https://", Mutual(site.context("w1")))
        session.trust_env = False
        schema = schemathesis.openapi.from_dict(quick(document()), config=LOOKED_AT)
        schema.config.update(base_url=f"https://{HOST}:{site.ingress.port}")
        seen: dict[str, set[int]] = {}
        for result in schema.get_all_operations():
            operation = result.ok()
            if mode is GenerationMode.POSITIVE or operation.method == "post":
                _explore(operation.as_strategy(generation_mode=mode), session, seen)
        wanted = {200, 400, 404, 410} if mode is GenerationMode.POSITIVE else {400, 404, 411, 415}
        assert len(seen) >= 13
        assert all(statuses <= wanted for statuses in seen.values()), seen
        assert {400, 404} & set().union(*seen.values())
        assert site.count("refused_total", reason="fault") == 0


def quick(found: Any) -> Any:
    """The document without the pattern that forbids NUL: making texts by it takes a minute.

    Such a text is refused with 400, which is in the document.
    """
    if isinstance(found, list):
        return [quick(one) for one in found]
    if not isinstance(found, dict):
        return found
    return {key: quick(one) for key, one in found.items() if one != text(0, 0)["pattern"]}


LOOKED_AT = schemathesis.Config.from_dict(
    {"checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", 400, 404, 410]}}}
)


def _explore(cases: Any, session: requests.Session, seen: dict[str, set[int]]) -> None:
    @settings(max_examples=3, deadline=None, database=None, derandomize=True,
              phases=[Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(case=cases)
    def one(case: Any) -> None:
        answer = case.call(session=session)
        case.validate_response(answer)
        seen.setdefault(case.operation.path, set()).add(answer.status_code)

    one()
