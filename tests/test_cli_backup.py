"""`backup` and `restore`: a copy of one moment while others write, and the way back, killed too."""

import itertools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qinglong_sql.cli.alone import openers
from qinglong_sql.cli.options import state_folder
from qinglong_sql.listing import listed
from qinglong_sql.store import open_store, snapshot
from qinglong_sql.store.sqlite import Profile, SqliteStore
from qinglong_sql.workplace import take_lock
from tests import acting
from tests.engines import NEWEST
from tests.shell import Shell


@pytest.fixture
def file(sqlite_dsn: str) -> Path:
    return Path(sqlite_dsn.removeprefix("sqlite:///"))


@pytest.fixture
def shell(sqlite_dsn: str, tmp_path: Path) -> Iterator[Shell]:
    yield Shell(tmp_path, sqlite_dsn)
    beside = {path.name for path in tmp_path.iterdir()}
    assert not {name for name in beside if name.endswith((".part", ".restoring"))}


def started(file: Path, count: int, first: int = 0) -> list[str]:
    with closing(open_store(f"sqlite:///{file}")) as store:
        acting.publish(store, {"a": []})
        return [acting.start(store, key=str(first + number)) for number in range(count)]


def runs_in(file: Path) -> set[str]:
    with closing(open_store(f"sqlite:///{file}")) as store:
        assert acting.unbroken(store)
        return {row["run_id"] for row in store.read("run_state")}


# -- backup


def test_a_database_and_its_backup_are_their_owners_alone(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold inputs and environments; the journal beside follows, whatever the umask lets."""
    before = os.umask(0o022)
    try:
        new = shell.folder / "new" / "new.db"
        shell.write("p.yaml", "package: p\ntasks: {t: {run: 'true'}}\n")
        dsn = ("--dsn", f"sqlite:///{new}")
        assert shell("migrate", *dsn).returncode == 0
        with closing(open_store(dsn[1])):
            assert shell("publish", "p.yaml", *dsn).returncode == 0
            assert modes(new) == {0o600}, list(new.parent.iterdir())
        made: list[int] = []
        monkeypatch.setattr(snapshot, "synced", lambda path: made.append(mode_of(path)))
        copy = shell.folder / "copy.db"
        assert shell("backup", copy, *dsn).returncode == 0
        assert (made, mode_of(copy)) == ([0o600], 0o600)
        new.chmod(0o644)
        with closing(open_store(dsn[1])):
            assert shell("publish", "p.yaml", *dsn).returncode == 0
            assert modes(new) == {0o644}, "who let others read keeps that"
    finally:
        os.umask(before)


def modes(file: Path) -> set[int]:
    return {mode_of(one) for one in file.parent.glob(f"{file.name}*") if one.is_file()}


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_backup_is_the_database_at_one_moment(shell: Shell, file: Path) -> None:
    runs = started(file, 3)
    file.chmod(0o640)
    done = shell("backup", "copy.db", "--json")
    row = json.loads(done.stdout)
    copy = shell.folder / "copy.db"
    assert (row["file"], row["revision"], row["bytes"]) == ("copy.db", NEWEST, copy.stat().st_size)
    assert copy.stat().st_mode & 0o777 == 0o640
    started(file, 1, first=3)
    assert runs_in(copy) == set(runs)
    again = shell("backup", "copy.db")
    assert again.returncode == 5 and "--force" in again.stderr
    assert shell("backup", "copy.db", "--force").returncode == 0
    assert len(runs_in(copy)) == 4
    assert shell("backup", file, "--force").returncode == 5
    assert shell("backup", "nowhere/copy.db").returncode == 6


@pytest.mark.parametrize("profile", ["standalone", "edge"])
def test_a_copy_is_of_one_moment_while_somebody_writes(
    file: Path, tmp_path: Path, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log keeps its snapshot; without one the copy begins anew, and then holds the writer."""
    monkeypatch.setattr(snapshot, "STEP_PAGES", 8)
    copy = tmp_path / "copy.db"
    with closing(SqliteStore(file, profile=profile)) as store:
        acting.publish(store, {"a": []})
        acting.start(store, key="before")
        seen: list[int] = []

        def write(done: int, whole: int) -> None:
            seen.append(done)
            if len(seen) < 200:
                acting.start(store, key=f"during {len(seen)}")

        snapshot.copy_online(file, copy, write)
        written = len(store.read("run_state"))
    assert snapshot.checked(copy, NEWEST) == NEWEST
    anew = sum(after <= before for before, after in itertools.pairwise(seen))
    copied = len(runs_in(copy))
    if profile == "standalone":
        assert (anew, copied) == (0, 1)
    else:
        assert anew == snapshot.RESTARTS and 1 < copied <= written
    assert 3 < len(seen) < 200


def test_a_folder_that_takes_no_backup_is_named(
    shell: Shell, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the database, which is all right."""
    away = shell.folder / "away"
    away.mkdir()
    real = os.access
    monkeypatch.setattr(
        "os.access",
        lambda path, mode, **how: path != away and real(path, mode, **how),
    )
    done = shell("backup", "away/b.db")
    assert done.returncode == 5 and list(away.iterdir()) == []
    assert done.stderr.startswith("refused: away/b.db: this user cannot make files in ")


def test_only_sqlite_is_backed_up_here(tmp_path: Path) -> None:
    for words in (("backup", "x.db"), ("restore", "x.db", "--yes")):
        done = Shell(tmp_path, "postgresql://nobody@127.0.0.1:1/x")(*words)
        assert done.returncode == 5 and "pg_dump" in done.stderr


def test_a_full_disk_is_told_before_anything_is_written(
    shell: Shell, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "room", lambda folder: 1_000)
    done = shell("backup", "copy.db")
    assert done.returncode == 5 and "1000 B free" in done.stderr


def test_a_backup_never_takes_the_place_of_a_part_of_a_database(shell: Shell, file: Path) -> None:
    runs = started(file, 1)
    (shell.folder / "link").symlink_to(file)
    (shell.folder / "hard").hardlink_to(file)
    (shell.folder / "folder").symlink_to(file.parent)
    names = [f"{file}{end}" for end in ("", "-journal", "-wal", "-shm")]
    for name in (*names, "link", "hard", f"folder/{file.name}-wal"):
        done = shell("backup", name, "--force")
        assert done.returncode == 5 and "another name" in done.stderr, name
    assert [path.name for path in file.parent.glob(f"{file.name}-*")] == []
    for end in ("-wal", "-journal"):  # would be applied to whatever is called so
        beside = shell.write(f"old.db{end}", "x")
        done = shell("backup", "old.db", "--force")
        assert done.returncode == 5 and f"old.db{end} is there" in done.stderr
        beside.write_text("")
        assert shell("backup", "old.db", "--force").returncode == 0
    assert runs_in(file) == set(runs)


def test_a_file_that_is_named_like_an_unfinished_one_is_left_alone(
    shell: Shell, file: Path
) -> None:
    runs = started(file, 1)
    shell("backup", "x.part")
    shell("backup", "y.restoring")
    there = f"sqlite:///{shell.folder}"
    assert shell("backup", "x", "--dsn", f"{there}/x.part").returncode == 0
    assert shell("restore", "y.restoring", "--dsn", f"{there}/y").returncode == 0
    for name in ("x", "x.part", "y", "y.restoring"):
        assert runs_in(shell.folder / name) == set(runs), name
    for name in ("x.part", "y.restoring"):
        (shell.folder / name).unlink()


# -- restore


def test_a_restore_keeps_what_was_there_and_tells_what_was_open(shell: Shell, file: Path) -> None:
    runs = started(file, 2)
    shell("backup", "copy.db")
    started(file, 1, first=2)
    asked = shell("restore", "copy.db")
    assert asked.returncode == 2 and "--yes" in asked.stderr
    assert len(runs_in(file)) == 3
    done = shell("restore", "copy.db", "--yes", "--json")
    row = json.loads(done.stdout)
    assert row["open_runs"] == 2 and row["revision"] == NEWEST
    assert runs_in(file) == set(runs)
    assert len(runs_in(Path(row["kept"]))) == 3
    elsewhere = shell("restore", "copy.db", "--dsn", f"sqlite:///{shell.folder}/new/place.db")
    assert elsewhere.returncode == 0 and "2 runs open" in elsewhere.stdout
    assert runs_in(shell.folder / "new" / "place.db") == set(runs)
    assert sorted(path.name for path in shell.folder.glob("copy.db*")) == ["copy.db"]


def test_a_log_of_the_old_database_is_not_applied_to_the_new_one(shell: Shell, file: Path) -> None:
    """As a crash leaves it: rows that are in the log alone, and nobody who has the file open."""
    runs = started(file, 1)
    shell("backup", "copy.db")
    crashed = shell.folder / "crashed.db"
    with closing(open_store(f"sqlite:///{file}")) as store:
        late = [acting.start(store, key=f"late {number}") for number in range(20)]
        for end in ("", "-wal"):
            shutil.copyfile(f"{file}{end}", f"{crashed}{end}")
    assert Path(f"{crashed}-wal").stat().st_size > 10_000
    done = shell("restore", "copy.db", "--yes", "--json", "--dsn", f"sqlite:///{crashed}")
    assert done.returncode == 0, done.stderr
    assert runs_in(crashed) == set(runs)
    assert runs_in(Path(json.loads(done.stdout)["kept"])) == {*runs, *late}


def test_a_database_that_cannot_be_read_is_replaced(shell: Shell, file: Path) -> None:
    runs = started(file, 1)
    shell("backup", "copy.db")
    file.write_bytes(os.urandom(20_000))
    Path(f"{file}-wal").write_bytes(os.urandom(20_000))
    Path(f"{file}-journal").write_bytes(os.urandom(20_000))
    done = shell("restore", "copy.db", "--yes", "--json")
    assert done.returncode == 0, done
    row = json.loads(done.stdout)
    assert runs_in(file) == set(runs)
    for end in ("", "-wal", "-journal"):
        assert Path(row["kept"] + end).stat().st_size == 20_000


@pytest.mark.parametrize("end", ["-journal", "-wal", "-shm"])
def test_what_is_empty_beside_the_old_database_goes(shell: Shell, file: Path, end: str) -> None:
    started(file, 1)
    shell("backup", "copy.db")
    Path(f"{file}{end}").touch()
    assert shell("restore", "copy.db", "--yes").returncode == 0
    (kept,) = shell.folder.glob("*.before-restore-*")
    assert kept.name.endswith("Z")
    assert not Path(f"{file}{end}").exists()


@pytest.mark.parametrize("linked", [True, False])
def test_a_hot_journal_goes_with_its_database(
    file: Path, tmp_path: Path, linked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a kill in the middle of a commit leaves it, of a file that cannot be tidied up now."""
    started(file, 1)
    crashed = tmp_path / "crashed.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("pragma journal_mode = delete")
        other.execute("pragma cache_size = 1")
        other.execute("begin immediate")
        other.execute("create table half (x)")
        other.execute("insert into half values (randomblob(99999))")
        for part in ("", "-journal"):
            shutil.copyfile(f"{file}{part}", f"{crashed}{part}")
        other.execute("rollback")
    assert Path(f"{crashed}-journal").stat().st_size > 512
    monkeypatch.setattr(snapshot, "folded", lambda path: False)
    if not linked:
        monkeypatch.setattr(snapshot, "_linked", lambda path, other: False)
    new = tmp_path / "new"
    snapshot.copy_online(file, new)
    kept = snapshot.put_in_place(new, crashed, "now")
    assert kept is not None and Path(f"{kept}-journal").stat().st_size > 512
    with closing(sqlite3.connect(kept)) as old:
        assert old.execute("pragma integrity_check").fetchone() == ("ok",)
        assert old.execute("select * from sqlite_schema where name = 'half'").fetchall() == []
    assert runs_in(crashed) == runs_in(file) == runs_in(kept)


@pytest.mark.parametrize("wrong", ["no file", "noise", "stranger", "damaged", "newer", "orphan"])
def test_what_is_not_a_backup_of_ours_is_refused(shell: Shell, file: Path, wrong: str) -> None:
    runs = started(file, 2)
    shell("backup", "copy.db")
    copy = shell.folder / "copy.db"
    said = {"no file": "no such file", "noise": "not a database", "stranger": "none of ours",
            "damaged": "damaged", "newer": f"newer than {NEWEST}",
            "orphan": "lacks one of"}  # fmt: skip
    if wrong == "no file":
        copy.unlink()
    elif wrong == "noise":
        copy.write_bytes(os.urandom(10_000))
    elif wrong == "damaged":
        with closing(sqlite3.connect(copy)) as connection:
            found = "select rootpage from sqlite_schema where name = 'run_event'"
            (page,) = connection.execute(found).fetchone()
        content = bytearray(copy.read_bytes())
        content[page * 1024 - 900 : page * 1024] = b"\7" * 900
        copy.write_bytes(content)
    else:
        if wrong == "stranger":
            copy.unlink()
        with closing(sqlite3.connect(copy)) as connection:
            for text in {
                "stranger": ["create table t (x)"],
                "newer": ["update alembic_version set version_num = '9999'",
                          "pragma user_version = 9999"],
                "orphan": ["delete from run_input", "insert into run_input values ('ru', '{}')"],
            }[wrong]:  # fmt: skip
                if wrong == "orphan":
                    text = text.replace("delete from run_input", "pragma foreign_keys = off")
                connection.execute(text)
            connection.commit()
    done = shell("restore", "copy.db", "--yes")
    assert done.returncode == 2 and said[wrong] in done.stderr, done.stderr
    assert runs_in(file) == set(runs)
    assert list(shell.folder.glob("*before-restore*")) == []


def test_nothing_is_restored_while_somebody_works_there(shell: Shell, file: Path) -> None:
    started(file, 1)
    shell("backup", "copy.db")
    for name in ("0", "edge"):
        lock = take_lock(state_folder(shell.dsn) / name)
        assert lock is not None
        done = shell("restore", "copy.db", "--yes")
        assert done.returncode == 5 and "stop it before restore" in done.stderr
        os.close(lock)
    program = f"import sqlite3, time; c = sqlite3.connect({str(file)!r}); c.execute('pragma"
    program += " user_version'); print(flush=True); time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None and other.stdout.readline()
        done = shell("restore", "copy.db", "--yes")
        assert done.returncode == 5 and f"open in process {other.pid}" in done.stderr
    finally:
        other.kill()
        other.communicate()
    assert shell("restore", "copy.db", "--yes").returncode == 0


def deadly(folder: Path, env: dict[str, str], turns: int) -> int:
    """Restore in a process that is killed before it does the n-th thing to files; how it ended."""
    pid = os.fork()
    if pid == 0:
        left = itertools.count(turns, -1)

        def before(true: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **named: Any) -> Any:
                if next(left) == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                return true(*args, **named)

            return called

        places = [(snapshot, name) for name in ("synced", "folded", "checked")]
        for place, name in [*places, (Path, "replace"), (Path, "rename"), (os, "link")]:
            setattr(place, name, before(getattr(place, name)))
        Shell(folder, env["QINGLONG_DSN"])("restore", "copy.db", "--yes")
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def test_a_restore_that_is_killed_anywhere_leaves_a_whole_database(
    shell: Shell, file: Path
) -> None:
    old = {*started(file, 1)}
    shell("backup", "copy.db")
    new, whole = old, {*old, *started(file, 1, first=1)}
    seen = []
    for turn in range(1, 20):
        status = deadly(shell.folder, shell.environment(), turn)
        found = runs_in(file)
        assert found in (new, whole)
        seen.append(found == new)
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        if found == new:  # put the other one back, so that every turn begins alike
            with closing(open_store(f"sqlite:///{file}")) as store:
                acting.start(store, key="1")
    assert seen[-1] and seen.count(False) >= 4 and seen.count(True) >= 2, seen
    assert shell("backup", "again.db").returncode == 0
    shutil.rmtree(state_folder(shell.dsn))


def test_processes_that_end_meanwhile_keep_nobody_from_looking(file: Path) -> None:
    """Who has a file open is asked of /proc, out of which folders vanish all the time."""
    with (
        file.open("rb"),
        subprocess.Popen(["sh", "-c", "while :; do true | true | true; done"]) as busy,
    ):
        try:
            for _ in range(150):
                assert openers(file) == []
        finally:
            busy.kill()
    assert openers(file.with_name("none")) == [] == listed(file.with_name("none"))
