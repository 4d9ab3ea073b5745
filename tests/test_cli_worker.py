"""`worker` as its machine has it: what it is told, its log, its end; `drain` and `undrain`."""

import json
import os
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_sql.ingress import Ingress
from qinglong_sql.worker_settings import KEYS
from tests.controls import login_of
from tests.engines import Engine
from tests.shell import Shell
from tests.site import Site, alive, opened
from tests.tended import decide
from tests.workers import HOST, Authority, Served, ingress_here, worker_process

LOGIN = "worker_login"
WAY = ("--ingress", "https://h:1", "--certificate", "c.pem", "--key", "k.pem", "--ca", "ca.pem")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path, f"sqlite:///{tmp_path}/none.db", {"QINGLONG_DSN": ""})


# --- what it is told


def test_settings_are_printed_with_where_they_come_from(shell: Shell) -> None:
    shell.write("w.toml", 'queue = ["mail", "night"]\nslots = 7\nlease = "1m"\n')
    done = shell(
        "worker", "--config", "w.toml", *WAY, "--slots", "9", "--print-settings",
        env={"QINGLONG_WORKER_SLOTS": "8", "QINGLONG_WORKER_LOG_FORMAT": "json",
             "QINGLONG_DSN": "postgresql://u:hidden@h/db"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = tomllib.loads(done.stdout)
    assert (said["queue"], said["slots"], said["lease"]) == (["mail", "night"], 9, "1m")
    assert said["ingress"] == "https://h:1" and "dsn" not in said
    assert "slots = 9  # --slots;" in done.stdout and "QINGLONG_WORKER_LOG_FORMAT" in done.stdout
    assert "hidden" not in done.stdout
    assert all(f"{key} =" in done.stdout for key in KEYS)


def test_a_dsn_for_operators_is_nothing_to_a_worker_of_an_ingress(shell: Shell) -> None:
    done = shell("worker", *WAY, "--print-settings", env={"QINGLONG_DSN": "sqlite:///x.db"})
    assert done.returncode == 0, done.stderr
    done = shell("worker", *WAY, "--print-settings", env={"QINGLONG_WORKER_DSN": "x"})
    assert done.returncode == 2 and "say one of them" in done.stderr


def test_a_login_may_come_from_where_other_commands_have_it(shell: Shell) -> None:
    dsn = "postgresql://u:hidden@h/db"
    done = shell("worker", "--name", "w1", "--print-settings", env={"QINGLONG_DSN": dsn})
    assert done.returncode == 0, done.stderr
    assert tomllib.loads(done.stdout)["dsn"] == "postgresql://u:***@h/db"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "where is the work?"),
        (WAY[:6], "ca is missing"),
        ((*WAY, "--dsn", "postgresql://h/db"), "say one of them"),
        ((*WAY, "--dsn", "x"), "say one of them"),
        (("--dsn", "postgresql://h/db"), "say --ingress URL (with a certificate), or --dsn DSN"),
        (("--dsn", "sqlite:///x.db", "--name", "w1"), "`qinglong-sql edge`"),
        (("--dsn", "postgresql://h/db", "--name", "a b"), "a worker's name is"),
        ((*WAY, "--lease", "4s"), "at least 5s"),
        ((*WAY, "--lease", "6m"), "--lease"),
        ((*WAY, "--slots", "0"), "from 1 to 1024"),
        ((*WAY, "--ingress", "http://h:1"), "https://host:port"),
        ((*WAY, "--queue", "q" * 201), "200 characters"),
        ((*WAY, "--queue", ""), "--queue: it must not be empty"),
        ((*WAY, "--log-level", "loud"), "one of debug"),
        (WAY, "c.pem: No such file"),
        ((*WAY, "--base-dir", "nowhere"), "nowhere: no such folder"),
    ],
)
def test_what_it_cannot_do_is_refused_in_words(
    shell: Shell, words: tuple[str, ...], told: str
) -> None:
    done = shell("worker", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


def test_a_certificate_says_the_name(shell: Shell, authority: Authority) -> None:
    papers = authority.worker("w1")
    way = ("--ingress", "https://h:1", "--certificate", papers.certificate, "--ca", papers.ca)
    done = shell("worker", *way, "--key", papers.key, "--name", "w2")
    assert done.returncode == 2 and "is of worker w1, not of w2" in done.stderr
    done = shell("worker", *way, "--key", authority.worker("w2").key)
    assert done.returncode == 2 and "it is not the key of" in done.stderr


# --- drained by an operator


def test_an_operator_drains_and_undrains(engine: Engine, tmp_path: Path) -> None:
    shell = Shell(tmp_path, engine.dsn)
    with opened(engine.dsn, tmp_path) as site:
        done = shell("worker", "drain", "w1")
        assert done.returncode == 5 and "w1" in done.stderr
        site.store.call(
            "register_worker", p_worker_id="w1", p_session_id="s1", p_queues='["q"]', p_slots=1,
            p_self_fencing=1, p_grace_ms=2_000,
        )  # fmt: skip
        done = shell("worker", "drain", "w1")
        assert done.stdout == "worker w1 is drained: it leases nothing more\n"
        again = json.loads(shell("worker", "drain", "w1", "--json").stdout)
        assert again == {"worker_id": "w1", "status": "draining", "outcome": "existing"}
        done = shell("worker", "undrain", "w1")
        assert done.stdout == "worker w1 is not drained: it leases what waits\n"
        assert "(so it was already)" in shell("worker", "undrain", "w1").stdout


# --- processes


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def site(postgres_dsn: str, tmp_path: Path) -> Iterator[Site]:
    with opened(postgres_dsn, tmp_path) as site:
        yield site


@pytest.fixture
def ingress(site: Site, authority: Authority, tmp_path: Path) -> Iterator[Ingress]:
    with ingress_here(site.dsn, authority, tmp_path / "ingress") as found:
        yield found


def test_a_worker_with_a_certificate_and_an_address(
    site: Site, ingress: Ingress, authority: Authority, tmp_path: Path
) -> None:
    papers, url = authority.worker("w1"), f"https://{HOST}:{ingress.port}"
    not_ours = {"PGPASSWORD": "s3", "PGUSER": "u", "CREDENTIALS_DIRECTORY": "/c", "LISTEN_FDS": "0",
                "NOTIFY_SOCKET": "/n", "INVOCATION_ID": "i"}  # fmt: skip
    first = worker_process("w1", papers, tmp_path / "w1", url, **not_ours, OF_ALL="kept")
    try:
        site.publish(
            "a: {run: 'echo hello; env > seen', env: {PGHOST: h}}\nb: {run: exit 3, needs: [a]}"
        )
        run_id = site.start()
        decide(site, lambda: site.run(run_id)["status"] != "running", "it ends", first.text)
        assert site.run(run_id)["status"] == "failed"
        first.until(lambda: len(first.lines("ended")) == 2, "both are told")
        assert [one["how"] for one in first.lines("ended")] == ["exit 0", "exit 3"]
        kept = tmp_path / "ingress" / "log" / run_id / "a.1.log"
        first.until(lambda: kept.exists() and kept.read_text() == "hello\n", "its log is there")
        seen = site.path("seen").read_text()
        assert "QINGLONG_" not in seen and "OF_ALL=kept" in seen and "PGHOST=h" in seen
        assert not [name for name in not_ours if f"{name}=" in seen]

        second = worker_process("w1", papers, tmp_path / "w1", url)
        assert second.ended() == 5
        (said,) = [one["message"] for one in second.lines() if one["level"] == "error"]
        assert said.startswith("refused: another process is the worker of ")
        assert said == second.lines()[-1]["message"]

        assert first.stop() == 0
        assert [one["event"] for one in first.lines() if one["level"] != "info"] == []
        assert first.lines()[-1]["message"] == "stopped"
        assert site.store.read("worker_state")[0]["status"] == "offline"
        assert not (tmp_path / "w1" / "state" / "log" / run_id).exists()
        assert oct((tmp_path / "w1" / "state").stat().st_mode)[-3:] == "700"
    finally:
        first.close()


def test_a_worker_with_a_login_is_taken_over_after_a_crash_and_killed_by_two_interrupts(
    site: Site, tmp_path: Path
) -> None:
    site.publish('a: {run: "echo $QL_ATTEMPT >> witness; echo $$ > pid; exec sleep 60"}')
    with login_of(site.dsn, LOGIN, "ql_worker") as login:
        first = login_worker(login, tmp_path)
        run_id = site.start()
        decide(site, lambda: site.lines("pid"), "it runs", first.text)
        decide(site, lambda: site.attempts(run_id)[0]["status"] == "running", "known", first.text)
        os.kill(first.child.pid, signal.SIGKILL)
        first.ended()
        second = login_worker(login, tmp_path)
        try:
            second.until(lambda: second.lines("found") and second.lines("ready"), "it is back")
            expiry = site.attempts(run_id)[0]["lease_expires_at_ms"]
            decide(
                site,
                lambda: site.attempts(run_id)[0]["lease_expires_at_ms"] > expiry,
                "it renews", second.text,
            )  # fmt: skip
            pid = site.pid("pid")
            assert alive(pid)
            second.child.send_signal(signal.SIGTERM)
            second.until(lambda: second.lines("draining"), "it drains")
            assert second.stop() == 130
            assert not alive(pid) and site.lines("witness") == ["1"]
            assert site.attempts(run_id)[0]["result_code"] == "execution_stopped"
        finally:
            first.close()
            second.close()


def login_worker(dsn: str, folder: Path) -> Served:
    """`qinglong-sql worker --dsn`, with the shortest lease."""
    return Served(
        "worker", folder, "worker", "--name", "w1", "--lease", "5s", "--state",
        str(folder / "state"), QINGLONG_WORKER_DSN=dsn, QINGLONG_WORKER_LOG_FORMAT="json",
    )  # fmt: skip
