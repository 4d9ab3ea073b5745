"""Worker, launcher and fork server are killed, and who comes next finds out what became of it."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_sql import execution
from qinglong_sql.execution import (
    LaunchFailed,
    adopt,
    boottime_ms,
    evidence,
    prepare,
    read_journal,
    read_receipt,
    write_journal,
)
from tests.launching import (
    LEASE_MS,
    PATIENCE_S,
    Bench,
    alive,
    ended,
    opened,
    processes_under,
    started,
    until,
)

WORKER = """
import sys, time
from pathlib import Path
from qinglong_sql import execution
root, goes = Path(sys.argv[1]), sys.argv[2] == "go"
server = execution.start_forkserver(root / "state")
folder = root / "execution"
script = "echo $$ >ready; while [ ! -e finish ]; do sleep 0.02; done; echo done"
spec = execution.Spec("a-1", ["/bin/sh", "-c", script], str(root), {"PATH": "/usr/bin:/bin"})
execution.prepare(folder, spec)
one = server.spawn(folder)
execution.write_journal(folder, {**one.identity, "attempt": "a-1", "folder": str(folder)})
if goes:
    one.go(execution.boottime_ms() + 30_000)
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with opened(tmp_path) as bench:
        yield bench


def killed_worker(root: Path, mode: str) -> Path:
    """Run a worker that starts one execution, KILL it, and return the execution's folder."""
    home = str(Path(execution.__file__).parent.parent)
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(root), mode],
        stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": home},
    )  # fmt: skip
    with worker:
        assert worker.stdout and worker.stdout.readline() == b"up\n"
        worker.kill()
    return root / "execution"


def test_a_killed_worker_comes_back_and_takes_its_execution_over(tmp_path: Path) -> None:
    folder = killed_worker(tmp_path, "go")
    journal = read_journal(folder)
    assert journal
    until((tmp_path / "ready").exists, "the command runs")
    assert evidence(folder) == "alive"
    one = adopt(folder)
    assert one and one.child == int((tmp_path / "ready").read_text())
    assert one.renew(boottime_ms() + 60_000)
    (tmp_path / "finish").touch()
    assert ended(one).exit == "exit:0"
    assert (folder / "log").read_text() == "done\n"
    assert evidence(folder) == "receipt"
    assert adopt(folder) is None
    until(lambda: not alive(journal["forkserver_pid"]), "the fork server has left")
    assert processes_under(tmp_path) == []


def test_a_killed_worker_that_never_comes_back_still_leaves_a_receipt(tmp_path: Path) -> None:
    folder = killed_worker(tmp_path, "go")
    (tmp_path / "finish").touch()
    until(lambda: read_receipt(folder), "the receipt is there")
    until(lambda: not processes_under(tmp_path), "all is gone")


def test_a_worker_killed_before_go_started_nothing(tmp_path: Path) -> None:
    folder = killed_worker(tmp_path, "wait")
    until(lambda: read_receipt(folder), "the receipt is there")
    receipt = read_receipt(folder)
    assert receipt and (receipt.kind, receipt.why) == ("not_started", "eof")
    until(lambda: not processes_under(tmp_path), "all is gone")
    assert not (tmp_path / "ready").exists()


def test_the_newest_worker_wins(bench: Bench) -> None:
    first = bench.spawn(bench.spec("true"))
    second = adopt(first.folder)
    assert second and second.child is None
    assert select.select([first], [], [], PATIENCE_S)[0]
    assert first.poll() == "ended"
    assert first.receipt() is None
    second.go(boottime_ms() + LEASE_MS)
    assert ended(second).exit == "exit:0"


def test_a_launcher_that_another_journal_names_is_not_taken_over(bench: Bench) -> None:
    one = bench.start("sleep", "50")
    write_journal(one.folder, {**one.identity, "launcher_ticks": 1})
    assert adopt(one.folder) is None
    write_journal(one.folder, one.identity)
    again = adopt(one.folder)
    assert again and again.stop("cancelled")
    ended(again)


def test_with_its_launcher_killed_the_tree_dies_and_is_attested(bench: Bench) -> None:
    other = bench.spawn(bench.spec("sleep", "0.5"), "execution-2")
    other.go(boottime_ms() + LEASE_MS)
    one = bench.shell(
        "(setsid sh -c 'echo $$ >daemon; trap \"\" TERM; sleep 50' &) ; echo $$ >main; sleep 50"
    )
    pids = [bench.pid("daemon"), bench.pid("main")]
    os.kill(one.identity["launcher_pid"], signal.SIGKILL)
    receipt = ended(one)
    assert (receipt.kind, receipt.why, receipt.exit) == ("launcher_lost", "launcher_died", None)
    assert receipt.launcher_pid == one.identity["launcher_pid"]
    assert receipt.launcher_ticks == one.identity["launcher_ticks"]
    assert receipt.go_boot_ms
    assert not any(map(alive, pids))
    assert ended(other).exit == "exit:0", "the neighbour was hit"


def test_a_launcher_killed_before_go_started_nothing(bench: Bench) -> None:
    one = bench.spawn(bench.spec("true"))
    os.kill(one.identity["launcher_pid"], signal.SIGKILL)
    receipt = ended(one)
    assert (receipt.kind, receipt.why) == ("not_started", "launcher_died")
    assert not one.go(boottime_ms() + LEASE_MS)


def test_a_launcher_that_hangs_past_its_lease_is_killed_in_time(bench: Bench) -> None:
    one = bench.spawn(bench.spec("/bin/sh", "-c", "echo $$ >main; setsid sleep 50 & sleep 50"))
    lease_end_ms = boottime_ms() + 1_500
    one.go(lease_end_ms)
    main = bench.pid("main")
    os.kill(one.identity["launcher_pid"], signal.SIGSTOP)
    receipt = ended(one)
    assert (receipt.kind, receipt.why) == ("launcher_lost", "launcher_died")
    assert lease_end_ms - 500 <= receipt.end_boot_ms < lease_end_ms
    assert not alive(main)


def test_without_its_fork_server_a_launcher_goes_on(bench: Bench) -> None:
    one = bench.shell("while [ ! -e finish ]; do sleep 0.02; done")
    os.kill(bench.server.pid, signal.SIGKILL)
    assert select.select([bench.server], [], [], PATIENCE_S)[0]
    until(lambda: not bench.server.alive(), "the fork server is dead")
    prepare(bench.path("execution-2"), bench.spec("true"))
    with pytest.raises(LaunchFailed):
        bench.server.spawn(bench.path("execution-2"))
    bench.path("finish").touch()
    assert ended(one).exit == "exit:0"
    until(lambda: not processes_under(bench.root), "the launcher has left")


def test_when_all_are_killed_nothing_is_known(bench: Bench) -> None:
    one = bench.shell("echo $$ >main; exec sleep 50")
    write_journal(one.folder, one.identity)
    main = bench.pid("main")
    assert evidence(one.folder) == "alive"
    for pid in (bench.server.pid, one.identity["launcher_pid"]):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(main), "the command died with its launcher")
    until(lambda: not bench.server.alive(), "the fork server is dead")
    until(lambda: evidence(one.folder) == "none", "nothing is known")
    assert adopt(one.folder) is None
    (one.folder / "launcher.sock").unlink()
    (one.folder / "receipt.tmp").unlink()


def test_another_boot_is_evidence_and_another_namespace_is_none(bench: Bench) -> None:
    one = bench.start("sleep", "50")
    write_journal(one.folder, {**one.identity, "boot_id": "another"})
    assert evidence(one.folder) == "other_boot"
    write_journal(one.folder, {**one.identity, "pid_ns": 1})
    assert evidence(one.folder) == "none"
    write_journal(one.folder, {**one.identity, "launcher_ticks": 1, "forkserver_ticks": 1})
    assert evidence(one.folder) == "none"
    one.stop("cancelled")
    ended(one)
    assert evidence(one.folder) == "receipt"


def test_signals_of_a_terminal_end_neither_fork_server_nor_launcher(bench: Bench) -> None:
    one = bench.shell("while [ ! -e finish ]; do sleep 0.02; done")
    started(one)
    for pid in (bench.server.pid, one.identity["launcher_pid"]):
        assert os.getsid(pid) != os.getsid(0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            os.kill(pid, number)
    time.sleep(0.1)
    assert bench.server.alive()
    bench.path("finish").touch()
    assert ended(one).exit == "exit:0"
