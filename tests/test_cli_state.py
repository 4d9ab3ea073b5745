"""Whose folders a worker works in, and a database that does not answer when it is interrupted."""

import re
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from qinglong_sql.cli.options import state_folder
from qinglong_sql.command import TAIL_BYTES
from qinglong_sql.evidence import LOG_CAP_BYTES
from tests.shell import Shell, ended, until
from tests.site import alive, kill_all_of

SLOW = "touch begun; while [ ! -e go ]; do sleep 0.05; done; echo done"
PACKAGE = """\
package: {key}
workflows: {{w: {{steps: {{s: {{run: "{run}"}}}}}}}}
"""


def test_two_files_in_one_folder_do_not_take_each_others_work(tmp_path: Path) -> None:
    a, b = (Shell(tmp_path, f"sqlite:///{name}.db") for name in "ab")
    a.write("a.yaml", PACKAGE.format(key="a", run=SLOW))
    b.write("b.yaml", PACKAGE.format(key="b", run="echo of b"))
    try:
        process = a.begin("run", "a.yaml", output=tmp_path / "output")
        until((tmp_path / "begun").exists, process, "its step runs")
        process.kill()
        process.wait()
        done = b("run", "b.yaml")
        assert (done.returncode, "still here" in done.stdout) == (0, False), done.stdout
        (tmp_path / "go").touch()
        done = a("run", "a.yaml")
        assert done.returncode == 0 and "going on with run ru" in done.stdout, done.stdout
        for shell, said in ((a, "done\n"), (b, "of b\n")):
            run_id = shell("runs").stdout.splitlines()[1].split()[0]
            assert shell("logs", run_id).stdout == said
        assert {path.name for path in tmp_path.glob("*.worker")} == {"a.db.worker", "b.db.worker"}
        a.nothing_is_left()
    finally:
        kill_all_of(tmp_path)


def test_a_state_folder_belongs_to_one_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("PGHOST", "PGPORT", "PGDATABASE", "PGSERVICE", "QINGLONG_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "link.db").symlink_to("x/real.db")
    assert state_folder("sqlite:///.qinglong/qinglong.db") == tmp_path / ".qinglong/worker"
    assert state_folder("sqlite:///x/real.db") == tmp_path / "x/real.db.worker"
    assert state_folder("sqlite:///link.db") == tmp_path / "x/real.db.worker"
    one = state_folder("postgresql://ann:secret@h:5433/one")
    assert one.parent == tmp_path / ".qinglong" and len(one.name) == len("worker-") + 12
    assert state_folder("postgresql://bob@h:5433/one?application_name=x") == one
    assert state_folder("postgres://h/one?port=5433&connect_timeout=3") == one
    others = ("h:5433/two", "h:5434/one", "i:5433/one", "h/one", "h:5433")
    assert len({one, *(state_folder(f"postgresql://{other}") for other in others)}) == 6
    monkeypatch.setenv("PGPORT", "5433")
    assert state_folder("postgresql://h/one") == one
    monkeypatch.setenv("QINGLONG_STATE_DIR", str(tmp_path / "state"))
    assert state_folder("postgresql://h/one") == tmp_path / "state" / one.name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("drop view explain", "view explain is missing"),
        ("drop view run_state; create view run_state as select 1", "view run_state is changed"),
        ("alter table run add column mine integer", "table run is changed"),
        ("create trigger t after insert on run begin select 1; end", "trigger t is not ours"),
        ("create table mine (a); create view theirs as select 1; analyze", ""),
    ],
)
def test_doctor_sees_a_schema_that_somebody_changed(tmp_path: Path, change: str, said: str) -> None:
    shell = Shell(tmp_path, "sqlite:///a.db")
    assert shell("migrate").returncode == 0
    assert re.search(r"^schema: the texts of all \d\d+ tables", shell("doctor").stdout, re.M)
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.executescript(change)
    done = shell("doctor")
    assert done.returncode == (6 if said else 0) and said in done.stderr, done.stderr
    assert done.stderr.count("\n") == (1 if said else 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_interrupt_is_kept_until_the_database_answers(
    sqlite_dsn: str, tmp_path: Path, number: signal.Signals
) -> None:
    shell = Shell(tmp_path, sqlite_dsn)
    shell.write("a.yaml", PACKAGE.format(key="a", run="echo $$ > pid; touch begun; sleep 60"))
    output = tmp_path / "output"
    try:
        process = shell.begin("run", "a.yaml", output=output)
        until((tmp_path / "begun").exists, process, "its step runs")
        file = sqlite_dsn.removeprefix("sqlite:///")
        with closing(sqlite3.connect(file, isolation_level=None, timeout=20)) as holder:
            holder.execute("begin immediate")
            process.send_signal(number)
            until(lambda: "held by somebody else" in output.read_text(), process, "it is held")
            time.sleep(0.2)
            assert alive(int((tmp_path / "pid").read_text())) and process.poll() is None
            holder.execute("rollback")
        assert ended(process, 30) == 3, output.read_text()
        assert not alive(int((tmp_path / "pid").read_text()))
        assert "cancelling" in output.read_text()
    finally:
        kill_all_of(tmp_path)


def test_a_full_log_keeps_its_end_and_says_what_lacks(sqlite_dsn: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path, sqlite_dsn)
    shell.write("a.yaml", PACKAGE.format(key="a", run="head -c $SIZE /dev/zero; echo; echo END"))
    gap = 5_000_005 - LOG_CAP_BYTES - TAIL_BYTES
    for size, full in ((5_000_000, True), (LOG_CAP_BYTES + 9, False), (1000, False)):
        assert shell("run", "a.yaml", "--new", env={"SIZE": str(size)}).returncode == 0
        run_id = shell("runs").stdout.splitlines()[1].split()[0]
        done = shell("logs", run_id)
        assert done.returncode == 0 and done.stdout.endswith("\nEND\n")
        assert (f"[{gap} bytes are not kept: the log was full]" in done.stdout) is full
        assert done.stderr == full * (
            f"this log is not whole: {gap} bytes in it are not kept: it was full\n"
        )
    shell.nothing_is_left()
