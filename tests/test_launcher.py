"""How a command ends, what stops it, and when none is started (DESIGN §9): real processes."""

import os
import resource
import signal
import stat
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from qinglong_sql import forkserver, launcher, limits
from qinglong_sql.command import TAIL_BYTES
from qinglong_sql.execution import LaunchFailed, boottime_ms
from tests.launching import ENV, LEASE_MS, Bench, alive, ended, opened, started, until


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with opened(tmp_path) as bench:
        yield bench


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
