"""`purge`: what it says before, what goes, and the file afterwards; on both engines."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qinglong_sql.cli.options import state_folder
from qinglong_sql.store import Store, open_store, snapshot
from qinglong_sql.workplace import take_lock
from tests import acting
from tests.engines import Engine
from tests.shell import Shell, until
from tests.stores import ServerClock, ship_clock


@pytest.fixture
def shell(engine: Engine, tmp_path: Path) -> Shell:
    return Shell(tmp_path, engine.dsn, {"QINGLONG_STATE_DIR": str(tmp_path / "state")})


@pytest.fixture
def store(engine: Engine) -> Iterator[Store]:
    """By the real clock: the command has no other."""
    with closing(open_store(engine.dsn)) as opened:
        yield opened


@pytest.fixture
def file(sqlite_dsn: str) -> Path:
    return Path(sqlite_dsn.removeprefix("sqlite:///"))


def ended(store: Store, count: int) -> list[str]:
    """Runs that were cancelled before anything of them ran."""
    acting.publish(store, {"a": []})
    runs = [acting.start(store, key=str(number)) for number in range(count)]
    for run_id in runs:
        acting.cancel(store, run_id)
        acting.converge(store, run_id)
    return runs


def left(store: Store) -> set[str]:
    return {row["run_id"] for row in store.read("run_state")}


def test_it_asks_before_it_deletes_and_says_what_is_gone(
    shell: Shell, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QINGLONG_STATE_DIR", shell.env["QINGLONG_STATE_DIR"])
    runs, living = ended(store, 3), acting.start(store, key="living")
    log = state_folder(shell.dsn) / "0" / "log" / runs[0]
    log.mkdir(parents=True)
    (log / "a.1.log").write_text("x" * 100)
    assert shell("purge", "--older-than", "1h", "--preview").stdout.startswith("no run ended")
    shown = shell("purge", "--older-than", "1ms", "--preview").stdout
    assert shown.startswith("3 runs that ended before ")
    assert re.search(r"\nPACKAGE +STATUS +RUNS .*\n\S+ +cancelled +3 ", shown)
    due = json.loads(shell("purge", "--older-than", "1ms", "--preview", "--json").stdout)
    assert (due["runs"], "ids" in due, due["groups"][0]["runs"]) == (3, False, 3)
    assert due["groups"][0]["last_ended_at_ms"] == due["last_ended_at_ms"]
    asked = shell("purge", "--older-than", "1ms")
    assert asked.returncode == 2 and asked.stderr.count("\n") == 1
    assert asked.stderr.startswith("nothing done: this deletes 3 runs that ended before ")
    assert asked.stderr.endswith(" for good; repeat with --yes\n")
    assert left(store) == {*runs, living} and log.exists()
    done = shell("purge", "--older-than", "1ms", "--limit", 2, "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 runs purged, with 1 log folder of 100 B")
    assert left(store) == {runs[2], living} and not log.exists()
    row = json.loads(shell("purge", "--older-than", "1ms", "--yes", "--json").stdout)
    assert (row["runs"], row["logs"]) == (1, 0)
    assert left(store) == {living}
    assert acting.unbroken(store)


@pytest.mark.parametrize("words", [(), ("--older-than", "30"), ("--older-than", "0d"),
                                   ("--older-than", "1d", "--limit", "0")])  # fmt: skip
def test_a_purge_without_a_sound_age_is_no_purge(sqlite_dsn: str, tmp_path: Path,
                                                 words: tuple[str, ...]) -> None:  # fmt: skip
    done = Shell(tmp_path, sqlite_dsn)("purge", "--yes", *words)
    assert done.returncode == 2 and "Error" in done.stderr


def test_vacuum_is_for_sqlite(postgres_dsn: str, tmp_path: Path) -> None:
    done = Shell(tmp_path, postgres_dsn)("purge", "--older-than", "1d", "--vacuum")
    assert done.returncode == 2 and "autovacuum" in done.stderr


def bulky(file: Path, count: int) -> None:
    """Clone a run that has ended, past all rules but those of the tables."""
    with closing(open_store(f"sqlite:///{file}")) as store:
        (run_id,) = ended(store, 1)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("begin")
        for table in ("run", "run_input", "step_run", "cancel_intent", "run_event"):
            names = [row[1] for row in connection.execute(f"pragma table_info({table})")]
            values = ", ".join(
                f"'{run_id[:-6]}' || printf('%06d', n.value)" if name == "run_id" else name
                for name in names
            )
            connection.execute(
                "with recursive n (value) as ("
                f"select 1 union all select value + 1 from n where value < {count}"
                f") insert into {table} select {values} from {table} cross join n"
                f" where run_id = '{run_id}'"
            )
        connection.execute("commit")


def test_freed_pages_are_used_again_and_vacuum_gives_them_back(
    file: Path, sqlite_dsn: str, tmp_path: Path
) -> None:
    shell = Shell(tmp_path, sqlite_dsn)
    bulky(file, 300)
    full = json.loads(shell("purge", "--older-than", "1ms", "--yes", "--json").stdout)
    assert full["runs"] == 301
    assert full["free_bytes"] > full["file_bytes"] / 2
    bulky(file, 250)
    again = json.loads(shell("purge", "--older-than", "1h", "--yes", "--json").stdout)
    assert again["file_bytes"] == full["file_bytes"]
    assert again["free_bytes"] < full["free_bytes"] / 2
    small = shell("purge", "--older-than", "1ms", "--yes", "--vacuum", "--json")
    row = json.loads(small.stdout)
    assert row["file_bytes"] < full["file_bytes"] / 2 and row["free_bytes"] == 0
    assert row["before_vacuum"]["file_bytes"] == full["file_bytes"]
    assert file.stat().st_size == row["file_bytes"]
    assert shell("doctor").returncode == 0


def test_vacuum_is_refused_while_others_work_there_or_without_room(
    file: Path, sqlite_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(tmp_path, sqlite_dsn)
    with closing(open_store(sqlite_dsn)) as store:
        runs = set(ended(store, 2))
    time.sleep(0.01)
    words = ("purge", "--older-than", "1ms", "--yes", "--vacuum")
    lock = take_lock(state_folder(sqlite_dsn) / "0")
    assert lock is not None
    done = shell(*words)
    assert done.returncode == 5 and "works on this database; stop it" in done.stderr
    assert shell(*words, "--json").returncode == 5
    os.close(lock)
    program = f"import sqlite3, time; c = sqlite3.connect({str(file)!r}); c.execute('pragma"
    program += " user_version'); print(flush=True); time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None and other.stdout.readline()
        done = shell(*words)
        assert done.returncode == 5 and f"open in process {other.pid}" in done.stderr
    finally:
        other.kill()
        other.communicate()
    monkeypatch.setattr(snapshot, "room", lambda folder: 1_000)
    done = shell(*words)
    assert done.returncode == 5 and "1000 B free" in done.stderr
    monkeypatch.undo()
    with closing(open_store(sqlite_dsn)) as store:
        assert left(store) == runs, "refused, and it deleted"
    assert shell(*words).returncode == 0
    with closing(open_store(sqlite_dsn)) as store:
        assert left(store) == set()


def test_a_purge_that_is_killed_leaves_whole_runs(
    file: Path, sqlite_dsn: str, tmp_path: Path
) -> None:
    shell = Shell(tmp_path, sqlite_dsn)
    bulky(file, 2_000)
    with closing(sqlite3.connect(file)) as connection:

        def count() -> int:
            return int(connection.execute("select count(*) from run").fetchone()[0])

        process = shell.begin("purge", "--older-than", "1ms", "--yes", output=tmp_path / "told")
        until(lambda: count() < 2_001, process, "a page is gone")
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert 0 < count() < 2_001
    with closing(open_store(sqlite_dsn)) as store:
        assert acting.unbroken(store)
        done = shell("purge", "--older-than", "1ms", "--yes")
        assert done.returncode == 0 and left(store) == set()


def audited(store: Store, *workers: str) -> None:
    for worker in workers:
        store.call("audit_worker", p_worker_id=worker, p_route="lease", p_certificate="1f")


def kept(folder: Path, run_id: str) -> Path:
    (folder / run_id).mkdir(parents=True)
    (folder / run_id / "a.1.log").write_text("x" * 10)
    return folder / run_id


def test_what_workers_asked_of_an_ingress_and_shipped_to_it_goes_as_well(
    postgres_dsn: str, tmp_path: Path
) -> None:
    """Folders that databases share lose what is known to be of this one; `--log-dir` is its own."""
    state = tmp_path / "state"
    shell = Shell(tmp_path, postgres_dsn, {"QINGLONG_STATE_DIR": str(state)})
    clock = ServerClock(postgres_dsn, int(time.time() * 1000) - 3_600_000)
    with closing(open_store(postgres_dsn)) as store:
        runs = ended(store, 2)
        audited(store, "w1", "w2")
        clock.advance(3_600_000)
        audited(store, "w1")
        clock.close()
        ship_clock(postgres_dsn)
        strange = "ru" + "0" * 24
        places = [state / "ingress" / "log", state / "remote-w1" / "log", tmp_path / "own"]
        logs = {(place, run): kept(place, run) for place in places for run in (*runs, strange)}
        for log in logs.values():
            os.utime(log, (1, 1))
        words = ("purge", "--older-than", "30m", "--yes")
        shown = shell(*words, "--preview").stdout
        assert shown.startswith("2 runs that ended before ") and "), and 2 audit rows:" in shown
        done = shell(*words, "--limit", "1")
        assert done.stdout == "1 run purged, with 2 log folders of 20 B, and 2 audit rows\n"
        assert [row["worker_id"] for row in store.read("worker_audit_log")] == ["w1"]
        (left_over,) = left(store)
        gone = next(run for run in runs if run != left_over)
        assert {key for key, log in logs.items() if not log.exists()} == {
            (place, gone) for place in places[:2]
        }
        done = shell(*words, "--log-dir", "own")
        assert done.stdout == "1 run purged, with 5 log folders of 50 B\n", "two of them orphans"
        assert {key for key, log in logs.items() if log.exists()} == {
            (place, strange) for place in places[:2]
        }
        assert shell("purge", "--older-than", "1ms").stdout.startswith("0 runs purged")
