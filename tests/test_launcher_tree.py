"""What a launcher starts: the tree is gone before the receipt, and no file of ours has a secret."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_sql.execution import boottime_ms, write_journal
from tests.launching import (
    ENV,
    LEASE_MS,
    Bench,
    alive,
    ended,
    opened,
    processes_under,
    started,
    until,
)

CKSUM_OF_SECRET = subprocess.run(
    ["cksum"], input="correct horse battery", capture_output=True, text=True, check=True
).stdout


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with opened(tmp_path) as bench:
        yield bench


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
