"""Launcher and fork server (DESIGN §9): real processes, nothing mocked.

`bench` starts a fork server, and at the end wants it gone, without a complaint, and without a
process, a descriptor or a receipt's leftovers behind it.
"""

import json
import os
import resource
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from qinglong_sql import execution, forkserver, launcher, limits
from qinglong_sql.command import TAIL_BYTES
from qinglong_sql.execution import (
    Execution,
    ForkServer,
    LaunchFailed,
    NotSupported,
    Receipt,
    RecordBroken,
    Spec,
    adopt,
    boottime_ms,
    evidence,
    prepare,
    read_journal,
    read_receipt,
    start_forkserver,
    write_journal,
)

LEASE_MS = 30_000
ENV = {"PATH": "/usr/bin:/bin"}
PATIENCE_S = 10.0
CKSUM_OF_SECRET = subprocess.run(
    ["cksum"], input="correct horse battery", capture_output=True, text=True, check=True
).stdout


def until(true: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.005)


def alive(pid: int) -> bool:
    return forkserver.start_ticks(pid) is not None


def processes_under(root: Path) -> list[str]:
    """Live processes that name `root` in their command line or work in it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            cwd = str((entry / "cwd").readlink())
        except OSError:
            continue
        if str(root) in line or cwd.startswith(str(root)):
            found.append(f"{entry.name} {line}")
    return found


def descriptors() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


class Bench:
    """One fork server and the executions of one test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.server: ForkServer = start_forkserver(root / "state")
        self.live: list[Execution] = []

    def spec(self, *argv: str, **change: object) -> Spec:
        cwd = str(self.root)
        spec = Spec(attempt="a-1", argv=argv, cwd=cwd, env=ENV, grace_ms=5_000)
        return replace(spec, **change)  # type: ignore[arg-type]

    def spawn(self, spec: Spec, name: str = "execution") -> Execution:
        folder = self.root / name
        prepare(folder, spec)
        one = self.server.spawn(folder)
        self.live.append(one)
        return one

    def start(self, *argv: str, lease_ms: int = LEASE_MS, **change: object) -> Execution:
        one = self.spawn(self.spec(*argv, **change))
        assert one.go(boottime_ms() + lease_ms)
        return one

    def shell(self, script: str, lease_ms: int = LEASE_MS, **change: object) -> Execution:
        return self.start("/bin/sh", "-c", script, lease_ms=lease_ms, **change)

    def path(self, name: str) -> Path:
        return self.root / name

    def pid(self, name: str) -> int:
        """The pid that a command wrote to a file of that name."""
        path = self.path(name)
        until(lambda: path.exists() and path.read_text().endswith("\n"), f"{name} is written")
        return int(path.read_text())


def ended(one: Execution) -> Receipt:
    """Drive one execution to its receipt."""
    end = time.monotonic() + PATIENCE_S
    while one.fileno() >= 0:
        assert select.select([one], [], [], max(0, end - time.monotonic()))[0], "it does not end"
        one.poll()
    until(one.receipt, "the receipt is there")
    receipt = one.receipt()
    assert receipt
    return receipt


def started(one: Execution) -> int:
    while one.child is None:
        assert select.select([one], [], [], PATIENCE_S)[0]
        assert one.poll() == "started"
    return one.child


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    before = descriptors()
    bench = Bench(tmp_path)
    yield bench
    for one in bench.live:
        one.stop("the test is over", grace_ms=0)
        one.close()
    assert bench.server.close(PATIENCE_S), "the fork server stays although its launchers are gone"
    assert (tmp_path / "state/forkserver.log").read_text() == ""
    assert processes_under(tmp_path) == []
    assert descriptors() == before
    for folder in tmp_path.glob("execution*"):
        left = {path.name for path in folder.iterdir()} - {"journal.json"}
        assert left <= {"spec.json", "child", "log", "receipt.json"}, f"{folder.name} keeps {left}"


# --- how a command ends


def test_an_exit_code_is_told_with_its_times_and_an_empty_tree(bench: Bench) -> None:
    before_ms = boottime_ms()
    one = bench.shell("exit 3")
    receipt = ended(one)
    assert (receipt.kind, receipt.why, receipt.exit) == ("ended", "exit", "exit:3")
    assert (receipt.attempt, receipt.tree, receipt.error) == ("a-1", "empty", None)
    assert receipt.launcher_pid == one.identity["launcher_pid"]
    assert receipt.launcher_ticks == one.identity["launcher_ticks"]
    assert receipt.go_boot_ms and receipt.go_at_ms
    assert before_ms <= receipt.go_boot_ms <= receipt.end_boot_ms <= boottime_ms()
    assert abs(receipt.end_at_ms - time.time() * 1000) < 60_000
    assert stat.S_IMODE((one.folder / "receipt.json").stat().st_mode) == 0o600


def test_a_signal_is_told(bench: Bench) -> None:
    assert ended(bench.shell("kill -SEGV $$")).exit == "signal:11"


def test_output_of_both_streams_is_kept_up_to_the_cap_and_the_rest_is_counted(bench: Bench) -> None:
    one = bench.shell("echo out; echo err >&2; head -c 300000 /dev/zero", log_cap_bytes=1000)
    receipt = ended(one)
    log = (one.folder / "log").read_bytes()
    assert log.startswith(b"out\nerr\n" + bytes(992) + b"\n[")
    gap = 300_008 - 1000 - TAIL_BYTES
    note = f"\n[{gap} bytes are not kept: the log was full]\n".encode()
    assert log[1000:] == note + bytes(TAIL_BYTES)
    assert (receipt.bytes_logged, receipt.bytes_dropped) == (len(log), gap)


def test_of_a_full_log_the_error_at_its_end_is_kept(bench: Bench) -> None:
    script = "seq 1 50000; echo the error >&2; exit 3"
    one = bench.shell(script, log_cap_bytes=2000)
    receipt = ended(one)
    lines = (one.folder / "log").read_bytes().decode().splitlines()
    assert lines[0] == "1" and lines[-2:] == ["50000", "the error"]
    at = next(at for at, line in enumerate(lines) if "not kept: the log was full" in line)
    assert all(a == str(int(b) - 1) for a, b in pairwise(lines[at + 1 : -1])), "whole lines"
    assert f"[{receipt.bytes_dropped} bytes" in lines[at]


def test_what_is_little_over_the_cap_is_whole(bench: Bench) -> None:
    one = bench.shell("seq 1 1000", log_cap_bytes=2000)
    receipt = ended(one)
    assert (one.folder / "log").read_text().split() == [str(n) for n in range(1, 1001)]
    assert receipt.bytes_dropped == 0


def test_the_last_output_before_the_end_is_not_lost(bench: Bench) -> None:
    wide = 1031  # F_SETPIPE_SZ: more than one read of the launcher's fits
    script = (
        "import fcntl, os, time\n"
        "while not os.path.exists('write'): time.sleep(0.01)\n"
        f"fcntl.fcntl(1, {wide}, 1 << 20); os.write(1, bytes(500_000))\n"
    )
    executable = str(Path(sys.executable).resolve())
    one = bench.start(executable, "-I", "-S", "-c", script)
    child = started(one)
    os.kill(one.identity["launcher_pid"], signal.SIGSTOP)
    bench.path("write").touch()
    until(lambda: not alive(child), "the command has ended")
    os.kill(one.identity["launcher_pid"], signal.SIGCONT)
    assert ended(one).bytes_logged == 500_000


def test_a_command_that_is_not_there_is_named(bench: Bench) -> None:
    receipt = ended(bench.start("no-such-thing", env={**ENV, "TOKEN": "hush-hush"}))
    assert (receipt.kind, receipt.why, receipt.exit) == ("ended", "start_failed", None)
    assert receipt.error == "cannot run no-such-thing: No such file or directory"


def test_a_command_that_may_not_be_executed_and_a_folder_that_is_missing_are_named(
    bench: Bench,
) -> None:
    bench.path("plain").write_text("text\n")
    one = bench.spawn(bench.spec("./plain"), "execution-1")
    one.go(boottime_ms() + LEASE_MS)
    assert ended(one).error == "cannot run ./plain: Permission denied"
    one = bench.spawn(bench.spec("true", cwd=str(bench.path("gone"))), "execution-2")
    one.go(boottime_ms() + LEASE_MS)
    assert ended(one).error == f"cannot enter {bench.path('gone')}: No such file or directory"


# --- stop, deadline, lease


def test_stop_asks_by_term_and_tells_the_reason(bench: Bench) -> None:
    one = bench.shell("trap 'exit 7' TERM; echo $$ >ready; while :; do sleep 0.01; done")
    bench.pid("ready")
    assert one.stop("cancelled")
    receipt = ended(one)
    assert (receipt.why, receipt.exit, receipt.reason) == ("stop", "exit:7", "cancelled")


def test_a_command_that_ignores_term_is_killed_after_the_grace(bench: Bench) -> None:
    one = bench.shell("trap '' TERM; echo $$ >ready; while :; do sleep 1; done", grace_ms=300)
    bench.pid("ready")
    before_ms = boottime_ms()
    one.stop("cancelled")
    receipt = ended(one)
    assert (receipt.why, receipt.exit) == ("stop", "signal:9")
    assert 300 <= receipt.end_boot_ms - before_ms < 2_000


def test_a_second_stop_can_only_shorten_the_grace(bench: Bench) -> None:
    one = bench.shell("trap '' TERM; echo $$ >ready; while :; do sleep 1; done", grace_ms=20_000)
    bench.pid("ready")
    one.stop("cancelled")
    one.stop("harder", grace_ms=0)
    one.stop("softer", grace_ms=60_000)
    receipt = ended(one)
    assert (receipt.exit, receipt.reason) == ("signal:9", "cancelled")


def test_the_grace_belongs_to_the_whole_group(bench: Bench) -> None:
    tidy = "trap 'sleep 0.2; echo tidy >tidied; exit 0' TERM; echo $$ >ready; sleep 50 & wait"
    bench.path("tidy.sh").write_text(tidy)
    one = bench.shell("sh tidy.sh; true")  # the outer shell dies of TERM at once
    bench.pid("ready")
    one.stop("cancelled")
    assert ended(one).exit == "signal:15"
    assert bench.path("tidied").exists()


def test_stop_reaches_a_stopped_command(bench: Bench) -> None:
    one = bench.shell("echo $$ >ready; kill -STOP $$; sleep 50")
    bench.pid("ready")
    one.stop("cancelled")
    assert ended(one).exit == "signal:15"


def test_a_deadline_stops_like_stop(bench: Bench) -> None:
    one = bench.spawn(bench.spec("sleep", "50"))
    now_ms = boottime_ms()
    one.go(now_ms + LEASE_MS, now_ms + 300)
    receipt = ended(one)
    assert (receipt.kind, receipt.why, receipt.exit) == ("ended", "deadline", "signal:15")
    assert receipt.end_boot_ms >= now_ms + 300


def test_the_end_of_the_lease_kills_in_time_and_without_grace(bench: Bench) -> None:
    script = "trap 'echo asked >asked' TERM; setsid sleep 50 & while :; do sleep 0.05; done"
    one = bench.spawn(bench.spec("/bin/sh", "-c", script, grace_ms=60_000))
    lease_end_ms = boottime_ms() + 1_400
    one.go(lease_end_ms)
    receipt = ended(one)
    assert (receipt.kind, receipt.why, receipt.exit) == ("ended", "lease", "signal:9")
    assert lease_end_ms - 1_000 <= receipt.end_boot_ms < lease_end_ms - 500
    assert not bench.path("asked").exists()


def test_a_margin_under_a_second_is_a_second(bench: Bench) -> None:
    assert forkserver.MIN_MARGIN_MS == limits.LEASE_MARGIN_MIN_MS
    one = bench.start("sleep", "50", lease_ms=900, margin_ms=1)
    assert ended(one).why == "lease_over"


def test_renewing_moves_the_end_of_the_lease_and_never_back(bench: Bench) -> None:
    one = bench.spawn(bench.spec("sleep", "0.8"))
    lease_end_ms = boottime_ms() + 1_300
    one.go(lease_end_ms)
    assert one.renew(lease_end_ms + 10_000)
    assert one.renew(lease_end_ms)
    receipt = ended(one)
    assert (receipt.why, receipt.exit) == ("exit", "exit:0")
    assert receipt.end_boot_ms > lease_end_ms - 1_000


# --- before the start barrier


def test_end_of_file_instead_of_go_starts_nothing(bench: Bench) -> None:
    one = bench.spawn(bench.spec("touch", "witness"))
    one.close()
    until(one.receipt, "the receipt is there")
    receipt = one.receipt()
    assert receipt and (receipt.kind, receipt.why) == ("not_started", "eof")
    assert (receipt.exit, receipt.go_boot_ms) == (None, None)
    assert not bench.path("witness").exists()


def test_go_past_the_lease_starts_nothing(bench: Bench) -> None:
    one = bench.spawn(bench.spec("touch", "witness"))
    one.go(boottime_ms() - 1)
    receipt = ended(one)
    assert (receipt.kind, receipt.why) == ("not_started", "lease_over")
    assert not bench.path("witness").exists()


def test_stop_before_go_starts_nothing(bench: Bench) -> None:
    one = bench.spawn(bench.spec("touch", "witness"))
    one.stop("cancelled")
    one.go(boottime_ms() + LEASE_MS)
    receipt = ended(one)
    assert (receipt.kind, receipt.why, receipt.reason) == ("not_started", "stop", "cancelled")
    assert not bench.path("witness").exists()


def test_go_counts_although_the_worker_died_right_after_it(bench: Bench) -> None:
    one = bench.spawn(bench.spec("touch", "witness"))
    os.kill(one.identity["launcher_pid"], signal.SIGSTOP)
    one.go(boottime_ms() + LEASE_MS)
    one.close()
    os.kill(one.identity["launcher_pid"], signal.SIGCONT)
    until(one.receipt, "the receipt is there")
    receipt = one.receipt()
    assert receipt and (receipt.kind, receipt.exit) == ("ended", "exit:0")
    assert bench.path("witness").exists()


def test_without_space_for_a_receipt_there_is_no_launcher(bench: Bench) -> None:
    resource.prlimit(bench.server.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    with pytest.raises(LaunchFailed, match="File too large"):
        bench.spawn(bench.spec("true"))
    (bench.path("execution") / "launcher.sock").unlink()
    (bench.path("execution") / "receipt.tmp").unlink()


def test_a_folder_without_a_spec_is_told(bench: Bench) -> None:
    with pytest.raises(LaunchFailed, match="No such file"):
        bench.server.spawn(bench.path("nowhere"))
    assert bench.server.alive()


def test_a_folder_has_one_launcher_and_one_receipt(bench: Bench) -> None:
    one = bench.spawn(bench.spec("true"))
    with pytest.raises(LaunchFailed, match="in use"):
        bench.server.spawn(one.folder)
    one.go(boottime_ms() + LEASE_MS)
    first = ended(one)
    with pytest.raises(LaunchFailed, match="receipt already"):
        bench.server.spawn(one.folder)
    # A launcher that died between linking and unlinking leaves two names of one receipt.
    os.link(one.folder / "receipt.json", one.folder / "receipt.tmp")
    folder_fd = os.open(one.folder, os.O_RDONLY)
    launcher.write_receipt(folder_fd, {"attempt": "another"})
    os.close(folder_fd)
    assert one.receipt() == first


# --- the tree


def test_a_daemon_that_left_the_session_is_gone_before_the_receipt(bench: Bench) -> None:
    one = bench.shell(
        "(setsid sh -c 'echo $$ >daemon; trap \"\" TERM HUP; sleep 50' &) ; sleep 0.2"
    )
    pid = bench.pid("daemon")
    assert os.getsid(pid) != os.getsid(started(one))
    receipt = ended(one)
    assert not alive(pid)
    assert (receipt.exit, receipt.tree) == ("exit:0", "empty")


def test_a_deep_tree_is_gone_before_the_receipt(bench: Bench) -> None:
    bench.path("deep.sh").write_text(
        '[ "$1" = 0 ] && exec sleep 50\n(setsid sh deep.sh $(($1 - 1)) &) ; sleep 50\n'
    )
    one = bench.shell("sh deep.sh 12 & sleep 0.4")
    started(one)
    until(lambda: len(processes_under(bench.root)) > 14, "the tree has grown")
    ended(one)
    bench.server.close()
    until(lambda: not processes_under(bench.root), "all is gone", 1.0)


def test_the_command_gets_a_clean_start(bench: Bench) -> None:
    script = (
        "import json, os; status = open('/proc/self/status').read(); at = '/proc/self/fd/'; "
        "print(json.dumps({'fds': sorted(f for f in os.listdir(at) if os.path.exists(at + f)),"
        "'stdin': os.readlink(at + '0'), 'leads': os.getsid(0) == os.getpid(),"
        "'env': dict(os.environ), 'status': dict(l.split(':\\t') for l in status.splitlines()"
        " if l.startswith(('Sig', 'NoNew')))}))"
    )
    executable = str(Path(sys.executable).resolve())
    one = bench.start(executable, "-I", "-S", "-c", script, env={"ONLY": "this"})
    assert ended(one).exit == "exit:0"
    told = json.loads((one.folder / "log").read_text())
    assert told["fds"] == ["0", "1", "2"]
    assert (told["stdin"], told["leads"]) == ("/dev/null", True)
    assert told["env"].pop("LC_CTYPE", "C.UTF-8") == "C.UTF-8"  # python's own
    assert told["env"] == {"ONLY": "this"}
    assert told["status"]["NoNewPrivs"] == "1"
    assert int(told["status"]["SigBlk"], 16) == 0
    ignored_by_python = {signal.SIGPIPE, signal.SIGXFSZ}
    assert int(told["status"]["SigIgn"], 16) == sum(1 << (n - 1) for n in ignored_by_python)


# --- secrets


def test_a_secret_reaches_the_command_and_no_file_of_ours(bench: Bench) -> None:
    bench.path("secret").write_text("correct horse battery\n")
    env = {**ENV, "TOKEN": {"file": str(bench.path("secret"))}}
    one = bench.shell('printf %s "$TOKEN" | cksum >told; echo 0 >same; sleep 0.1', env=env)
    write_journal(one.folder, {**one.identity, "attempt": "a-1"})
    bench.pid("same")
    environment = Path(f"/proc/{bench.server.pid}/environ").read_bytes().split(b"\0")
    inherited = {entry.split(b"=")[0] for entry in environment if entry}
    assert inherited <= {b"LD_LIBRARY_PATH"}, "the worker's environment may hold secrets too"
    assert ended(one).exit == "exit:0"
    assert bench.path("told").read_text() == CKSUM_OF_SECRET
    for path in (*one.folder.iterdir(), *bench.path("state").iterdir()):
        assert b"horse" not in path.read_bytes(), path


def test_a_secret_that_cannot_be_read_is_named_by_its_path_alone(bench: Bench) -> None:
    bench.path("secret").write_bytes(b"hush\0hush")
    for name, path in (("execution-1", bench.path("gone")), ("execution-2", bench.path("secret"))):
        env = {**ENV, "OTHER": "hush-value", "TOKEN": {"file": str(path)}}
        one = bench.spawn(bench.spec("touch", "witness", env=env), name)
        one.go(boottime_ms() + LEASE_MS)
        receipt = ended(one)
        assert (receipt.kind, receipt.why) == ("ended", "start_failed")
        assert receipt.error and "TOKEN" in receipt.error and str(path) in receipt.error
        assert "hush" not in receipt.error
    assert not bench.path("witness").exists()


# --- who dies


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


# --- journal, size, platform


def test_a_journal_is_replaced_as_a_whole_and_is_private(tmp_path: Path) -> None:
    assert read_journal(tmp_path) is None
    write_journal(tmp_path, {"attempt": "a-1", "token": "t", "name": "抽取"})
    write_journal(tmp_path, {"attempt": "a-2"})
    assert read_journal(tmp_path) == {"attempt": "a-2"}
    assert stat.S_IMODE((tmp_path / "journal.json").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["journal.json"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"attempt": 1}'])
def test_a_broken_receipt_is_not_taken_for_one(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "receipt.json").write_bytes(body)
    with pytest.raises(RecordBroken, match=r"receipt\.json"):
        read_receipt(tmp_path)


@pytest.mark.parametrize(
    "body", [b"\x00\x00\xfe\xff\x00", b"[" * 60_000, b"\xff", b"{"],
    ids=["utf-32", "nested", "bytes", "half"],
)  # fmt: skip
def test_a_journal_of_garbage_is_told_of_in_plain_words(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "journal.json").write_bytes(body)
    with pytest.raises(RecordBroken) as broken:
        read_journal(tmp_path)
    assert str(broken.value) == f"{tmp_path}/journal.json: not JSON"


def test_a_receipt_stays_small_whatever_it_is_told(bench: Bench) -> None:
    name = "\u62bd" * 3_000 + "\x01\ud800"
    one = bench.start(name)
    receipt = ended(one)
    assert receipt.error and len(receipt.error.encode()) <= 512
    assert (one.folder / "receipt.json").stat().st_size <= 4_096
    assert len(json.dumps(one.identity)) <= 512


def test_64_start_and_end_at_once(bench: Bench, tmp_path: Path) -> None:
    specs = [bench.spec("sleep", "0.3") for _ in range(64)]
    for number, spec in enumerate(specs):
        prepare(tmp_path / f"execution-{number}", spec)
    before = time.monotonic()
    bench.live = [bench.server.spawn(tmp_path / f"execution-{n}") for n in range(64)]
    for one in bench.live:
        one.go(boottime_ms() + LEASE_MS)
    took_s = time.monotonic() - before
    private_kib = [
        int(line.split()[1])
        for line in Path(f"/proc/{bench.live[0].identity['launcher_pid']}/smaps_rollup")
        .read_text()
        .splitlines()
        if line.startswith("Private_Dirty")
    ]
    assert {ended(one).exit for one in bench.live} == {"exit:0"}
    assert took_s < 3.0  # 0.3 s on an idle machine
    assert private_kib[0] < 3_072  # 1.2 MiB measured


def test_a_folder_may_be_longer_than_the_path_of_a_socket(bench: Bench) -> None:
    one = bench.spawn(bench.spec("true"), "execution-" + "x" * 200)
    again = adopt(one.folder)
    assert again and again.go(boottime_ms() + LEASE_MS)
    assert ended(again).exit == "exit:0"


def test_elsewhere_than_on_linux_start_up_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(NotSupported, match="need Linux, this is darwin"):
        start_forkserver(tmp_path)
