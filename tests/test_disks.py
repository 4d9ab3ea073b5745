"""A disk that is full, and a sync that fails: told in words, nothing lost, and work goes on."""

import errno
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from qinglong_sql.cli.tail import Tail
from qinglong_sql.store.sqlite import Profile, open_sqlite
from tests import filling
from tests.prove import CannotRun
from tests.shell import Shell
from tests.site import opened, wait


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A folder on a file system of 8 MiB, with a database in which `disk` is published."""
    try:
        with filling.small(tmp_path) as place:
            shell = Shell(place, f"sqlite:///{place}/ql.db")
            shell.write("jobs.yaml", filling.FLOWS)
            assert shell("migrate").returncode == 0
            assert shell("publish", "jobs.yaml").returncode == 0
            yield shell
    except CannotRun as error:
        pytest.skip(str(error))


def runs(shell: Shell) -> list[str]:
    done = shell("runs", "--json")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_every_command_says_that_the_disk_is_full_and_works_when_there_is_room(
    shell: Shell,
) -> None:
    assert shell("start", "disk", "calm", "--key", "one").returncode == 0
    before = runs(shell)
    filler = filling.fill(shell.folder)
    for words in (
        ("start", "disk", "calm", "--key", "two"),
        ("publish", "jobs.yaml"),
        ("run", "jobs.yaml", "calm"),
        ("backup", shell.folder / "copy.db"),
        ("purge", "--older-than", "1s"),
    ):
        done = shell.process(*words)
        assert done.returncode == 6, (words, done)
        assert "full" in done.stderr or "No space left" in done.stderr, (words, done.stderr)
        assert str(shell.folder) in done.stderr, (words, done.stderr)
    filler.unlink()
    assert runs(shell) == before
    assert shell("start", "disk", "calm", "--key", "two").returncode == 0
    done = shell.process("run", "jobs.yaml", "calm")
    assert done.returncode == 0, done.stderr


def test_a_run_that_fills_the_disk_ends_right_when_there_is_room(shell: Shell) -> None:
    def make_room() -> None:
        wait(lambda: not os.statvfs(shell.folder).f_bfree, "it is full", 60)
        time.sleep(2)
        (shell.folder / "filler").unlink()

    other = threading.Thread(target=make_room)
    other.start()
    done = shell.process("run", "jobs.yaml", "loud")
    other.join()
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("trying again")]
    assert any("full" in line or "No space left" in line for line in told), done.stdout
    assert json.loads(shell("status", "--check", "--json").stdout)["ok"]


@pytest.mark.parametrize(
    ("profile", "calls", "inject"),
    [
        ("standalone", filling.SYNCS, "error=EIO:when=1+"),
        ("edge", filling.SYNCS, "error=EIO:when=3+"),
        ("edge", "pwrite64", "error=EIO:when=2+"),
        ("edge", "pread64", "error=EIO:when=3+"),
    ],
)
def test_an_error_of_the_disk_is_told_and_loses_nothing(
    shell: Shell, profile: Profile, calls: str, inject: str
) -> None:
    open_sqlite(shell.folder / "ql.db", profile=profile).close()  # it keeps the journal of this
    first = start_id(shell, "one")
    shell.write("jobs.yaml", filling.FLOWS.replace("echo b", "echo c"))
    before = facts(shell)
    for words in (
        ("publish", "jobs.yaml"),
        ("start", "disk", "calm", "--key", "two"),
        ("cancel", first),
    ):
        try:
            done = filling.failing_call(shell, calls, inject, *words)
        except CannotRun as error:
            pytest.skip(str(error))
        assert done.returncode == 6, (words, done)
        assert "Traceback" not in done.stderr + done.stdout, done.stderr
        assert "ql.db" in done.stderr and "dmesg" in done.stderr, (words, done.stderr)
        assert facts(shell) == before, (words, "nothing was answered, and something is stored")
        for _ in range(2):  # repeated it works, and once more it answers the same
            done = shell(*words)
            assert done.returncode == 0, (words, done)
        after = facts(shell)
        assert after != before, words
        before = after
    assert json.loads(shell("status", "--check", "--json").stdout)["ok"]


def start_id(shell: Shell, key: str) -> str:
    done = shell("start", "disk", "calm", "--key", key, "--json")
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["run_id"])


def facts(shell: Shell) -> list[object]:
    """What commands may have changed, as another connection sees it."""
    with closing(open_sqlite(shell.folder / "ql.db")) as store:
        views = ("package_state", "run_state", "event_log", "agenda_state", "violation")
        return [store.read(view) for view in views]


def test_what_ended_is_not_lost_when_its_receipt_cannot_be_written_for_a_while(
    tmp_path: Path, sqlite_dsn: str
) -> None:
    with opened(sqlite_dsn, tmp_path) as site:
        site.publish("one: {run: 'echo x >> witness; sleep 0.3'}")
        run_id, worker = site.start(), site.worker()
        site.drive(worker, lambda: site.lines("witness") == ["x"])
        forkserver = worker._intake.forkserver
        assert forkserver is not None
        (launcher,) = children(forkserver.pid)
        with skipping(), filling.failing(launcher, "fsync,linkat,pwrite64"):
            end = time.monotonic() + 1.5
            site.drive(worker, lambda: time.monotonic() > end)
            assert site.step(run_id, "one")["status"] == "running", "it waits for its receipt"
        assert site.finish(run_id, worker)["status"] == "succeeded"
        assert len(site.attempts(run_id)) == 1 and site.lines("witness") == ["x"]


def test_what_could_not_begin_for_want_of_room_is_not_leased(
    tmp_path: Path, sqlite_dsn: str
) -> None:
    """The database has room, the state folder a little: claim returns would be used up."""
    with skipping(), filling.small(tmp_path) as place, opened(sqlite_dsn, place) as site:
        site.publish("one: {run: 'true'}")
        run_id, worker = site.start(), site.worker()
        worker.own()
        filler = filling.fill(place)
        os.truncate(filler, filler.stat().st_size - 3 * 4096)
        end = time.monotonic() + 1.5
        site.drive(worker, lambda: time.monotonic() > end)
        assert {getattr(error, "errno", None) for error in site.errors} == {errno.ENOSPC}
        assert str(place) in str(site.errors[0])
        assert site.step(run_id, "one")["claim_return_count"] == 0
        filler.unlink()
        assert site.finish(run_id, worker)["status"] == "succeeded"
        assert len(site.attempts(run_id)) == 1


def test_a_log_says_where_a_full_disk_cut_a_hole_in_it(tmp_path: Path, sqlite_dsn: str) -> None:
    """`ends` is never given its room back: then only the note beside its log says it."""
    flood = "cat /dev/zero > filler 2>/dev/null; seq 1 100000"
    steps = f"""
    gap: {{run: "echo BEGIN; {flood}; sleep 0.5; rm filler; printf AFTER"}}
    ends: {{run: "echo BEGIN; {flood}", needs: [gap]}}
    """
    with skipping(), filling.small(tmp_path, 2) as place, opened(sqlite_dsn, place) as site:
        site.publish(steps)
        run_id = site.start()
        assert site.finish(run_id)["status"] == "succeeded", site.told()
        tails = {one["step_key"]: Tail(place, one) for one in site.attempts(run_id)}
        told, said = {}, {}
        for key, tail in tails.items():
            assert tail.found()
            told[key], said[key] = b"".join(tail.blocks()).decode(), tail.missing()
            tail.close()
    flooded = "BEGIN\n" + "\n".join(map(str, range(1, 100_001))) + "\n"
    whole = len(flooded)
    note = r"\n?\[(\d+) bytes are not kept: the disk was full\]\n"
    kept, count, rest = re.split(note, told["gap"])
    # a launcher that got no turn for half a second keeps the flood's last lines as well
    late = rest.removesuffix("AFTER")
    assert kept.startswith("BEGIN\n1\n2\n") and rest.endswith("AFTER") and flooded.endswith(late)
    assert said["gap"] == lacks(int(count))
    held = len(kept) + int(count) + len(late)
    assert held in (whole, whole + 1), "the end of a line may be the note's"
    assert said["ends"] == lacks(whole - len(told["ends"]))


def lacks(count: int) -> str:
    return f"is not whole: {count} bytes are not kept: the disk was full or failed"


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def skipping() -> Iterator[None]:
    try:
        yield
    except CannotRun as error:
        pytest.skip(str(error))
