"""File systems that fill up, and syncs that fail, around the command line."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.prove import CannotRun
from tests.shell import Done, Shell, command
from tests.site import kill_all_of

MIB = 1 << 20
SYNCS = "fsync,fdatasync"
FLOWS = """\
package: disk
workflows:
  calm:
    steps:
      a: {run: "echo a"}
      b: {run: "echo b", needs: [a]}
  loud:
    steps:
      a: {run: "yes 0123456789 | head -c 3000000; cat /dev/zero > filler; exec sleep 1"}
      b: {run: "echo b", needs: [a]}
"""
FULL = "is full"


@contextlib.contextmanager
def small(folder: Path, size_mib: int = 8) -> Iterator[Path]:
    """A file system in memory of that size below `folder`. Raises CannotRun without root."""
    if os.geteuid() != 0:
        raise CannotRun("only root may mount a file system of 8 MiB: run it as root")
    place = folder / "small"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(place)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotRun(f"no file system of 8 MiB can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        kill_all_of(place)
        subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)


def fill(place: Path) -> Path:
    """Take all that is left; the file that holds it."""
    filler = place / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as sink:
        while True:
            sink.write(bytes(65_536))
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as sink:
        while True:
            sink.write(bytes(512))
    return filler


def traced(calls: str, inject: str) -> list[str]:
    """strace that makes system calls fail, ready for a command or `-p`. Raises CannotRun."""
    if shutil.which("strace") is None:
        raise CannotRun("no strace: apt-get install strace")
    return [
        "strace", "-f", "-o", os.devnull, "-e", f"trace={calls}", "-e", f"inject={calls}:{inject}",
    ]  # fmt: skip


def failing_call(shell: Shell, calls: str, inject: str, *words: object) -> Done:
    """A command whose calls on the database fail as strace says, such as by error=EIO:when=3+."""
    files = [shell.folder / f"ql.db{end}" for end in ("", "-journal", "-wal")]
    only = [word for path in files for word in ("-P", str(path))]
    return subprocess.run(
        [*traced(calls, inject), *only, *command(*words)],
        cwd=shell.folder, env=shell.environment(), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@contextlib.contextmanager
def failing(pid: int, calls: str, error: str = "EIO") -> Iterator[None]:
    """Meanwhile these system calls of a process, and of what it forks from now on, fail."""
    words = [*traced(calls, f"error={error}"), "-p", str(pid)]
    tracer = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    told = tracer.stderr.readline()
    try:
        if "attached" not in told:
            raise CannotRun(f"strace may not look at a process of ours: {told.strip()}")
        yield
    finally:
        tracer.send_signal(signal.SIGINT)  # it lets go; a KILL would as well
        tracer.communicate(timeout=10)
