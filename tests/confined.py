"""A control process on a small machine: in a control group, as nobody, and nothing can be written.

All that it sees of the file systems is read-only, /tmp and /dev/shm as well, in a mount namespace
of its own. Where the Python of the tests lies in a folder that nobody else may enter (root's home),
the namespace shows that Python and nothing else of the folder.
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qinglong_sql.store import Store
from qinglong_sql.store.postgres import open_postgres_store
from tests import acting
from tests.acting import Held
from tests.controls import login_of, page
from tests.machine import Machine, counts, group
from tests.prove import CannotRun
from tests.scratch import traversable
from tests.shell import HOME

MACHINE = Machine(512, 2.0, 256)
NOBODY = "65534"
BATCH = 32
WITHIN_S = 3600.0
HOUR_CYCLES = 3600 * 1000 // 250  # of one lifecycle, at its cadence
# $1: folders of groups; $2: folders that must be seen; $3: those around them that hide them
SHUT_IN = """
set -e
for group in $1; do echo $$ > "$group/cgroup.procs"; done
mount -t tmpfs -o mode=755 tmpfs /mnt
n=0
for folder in $2; do n=$((n + 1)); mkdir /mnt/$n; mount --bind "$folder" /mnt/$n; done
for around in $3; do mount -t tmpfs -o mode=755 tmpfs "$around"; done
n=0
for folder in $2; do n=$((n + 1)); mkdir -p "$folder"; mount --bind /mnt/$n "$folder"; done
while read -r _ place _; do
  case $place in /proc*|/sys*|/dev|/dev/pts|/dev/mqueue) ;;
    *) mount -o remount,bind,ro "$place" 2>/dev/null || true ;; esac
done < /proc/self/mounts
shift 3
exec setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs --inh-caps=-all \\
  --bounding-set=-all -- "$@"
"""
# what a confined process may not do, said by it
TRIES = """
import os
from pathlib import Path
def writes(path):
    try:
        Path(path).write_text("x", encoding="utf-8")
    except OSError as error:
        return error.strerror
    return "written"
print(os.getuid(), *(writes(f"{d}/x") for d in ("/tmp", "/var/tmp", "/dev/shm")), sep=", ")
"""
IMPORT = """
import qinglong_sql.cli.control, qinglong_sql.control_parts
from pathlib import Path
for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
    if line.startswith(("VmHWM", "VmRSS")):
        print(line.split()[1])
"""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a control process took. Memory in MiB; cycles of the scheduler lifecycle."""

    imported: float
    ready: float
    half: float
    end: float
    peak: float
    group: float
    kills: int
    threads: int
    cycles: int
    runs: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.imported:.1f} MiB after import, {self.ready:.1f} when ready,"
            f" {self.half:.1f} after half and {self.end:.1f} after all of {self.cycles} cycles"
            f" with {self.runs} runs in {self.seconds:.0f} s, peak {self.peak:.1f},"
            f" group {self.group:.1f}, {self.threads} threads, {self.kills} killed"
        )


def shut_in(folders: list[Path], *words: str) -> list[str]:
    """The command that runs these words confined, in these control groups."""
    needed = {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), HOME}
    hidden = sorted(one for one in needed if not traversable(one))
    around = sorted({_outermost(one) for one in hidden})
    lists = (" ".join(map(str, several)) for several in (folders, hidden, around))
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", SHUT_IN, "sh", *lists,
            sys.executable, *words]  # fmt: skip


def _outermost(folder: Path) -> Path:
    """The first folder on the way down that others may not enter."""
    return next(one for one in reversed((folder, *folder.parents)) if not traversable(one))


def asked(folders: list[Path], text: str) -> list[str]:
    """What a few lines of Python print when they run confined. Raises CannotRun."""
    done = subprocess.run(
        shut_in(folders, "-c", text),
        env=environment(), cwd="/", capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise CannotRun(f"needs root and mount namespaces: {done.stderr[-500:]}")
    return done.stdout.split("\n")[:-1]


def environment(**more: str) -> dict[str, str]:
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "PYTHONPATH": str(HOME),
            "PYTHONDONTWRITEBYTECODE": "1", **more}  # fmt: skip


def kept(folder: Path, dsn: str, cycles: int) -> Kept:
    """Let a confined control process do so many cycles under a steady load. Raises CannotRun."""
    with login_of(dsn) as login, group(MACHINE) as folders:
        told = asked(folders, TRIES)
        assert told == [f"{NOBODY}, {', '.join(['Read-only file system'] * 3)}"], told
        imported = int(asked(folders, IMPORT)[0]) / 1024
        with _control(folder, folders, login) as (child, port):
            ready = counts(child.pid)["VmRSS"]
            begun = time.monotonic()
            store = open_postgres_store(dsn)
            try:
                half, _ = _loaded(store, child, port, cycles // 2)
                middle = counts(child.pid)["VmRSS"]
                runs, done = _loaded(store, child, port, cycles, half)
            finally:
                store.close()
            seen = counts(child.pid)
            oom = (folders[0] / "memory.oom_control").read_text(encoding="ascii")
            return Kept(
                imported, ready / 1024, middle / 1024, seen["VmRSS"] / 1024, seen["VmHWM"] / 1024,
                int((folders[0] / "memory.max_usage_in_bytes").read_text(encoding="ascii")) / 2**20,
                int(re.findall(r"oom_kill (\d+)", oom)[0]), seen["Threads"], done, runs,
                time.monotonic() - begun,
            )  # fmt: skip


@contextmanager
def _control(
    folder: Path, folders: list[Path], login: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    log = folder / "control.log"
    words = ("-m", "qinglong_sql", "control", "--listen", "127.0.0.1:0", "--idle-ms", "10",
             "--log-level", "info")  # fmt: skip
    with log.open("wb") as sink:
        child = subprocess.Popen(
            shut_in(folders, *words), env=environment(QINGLONG_CONTROL_DSN=login), cwd="/",
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=sink,
        )  # fmt: skip
    try:
        end = time.monotonic() + 60
        while not re.search(r"\bready$", text := log.read_text(encoding="utf-8"), re.M):
            assert child.poll() is None and time.monotonic() < end, text
            time.sleep(0.05)
        found = re.search(r"listener: on \S+ port (\d+)", text)
        assert found, text
        yield child, int(found[1])
        child.terminate()
        assert child.wait(40) == 0, log.read_text(encoding="utf-8")[-2000:]
    finally:
        child.kill()
        child.wait()


def _loaded(
    store: Store, child: subprocess.Popen[bytes], port: int, cycles: int, runs: int = 0
) -> tuple[int, int]:
    """Start runs and end their steps until so many cycles are done: runs in all, and cycles."""
    if not runs:
        acting.publish(store, {"a": [], "b": ["a"]})
    acting.register(store)
    end = time.monotonic() + WITHIN_S
    while (done := _cycles(port)) < cycles:
        assert child.poll() is None and time.monotonic() < end, f"{done} of {cycles} cycles"
        for _ in range(BATCH // 4):
            acting.start(store, key=f"k{runs}")
            runs += 1
        for turn in range(4):
            rows = acting.offer_rows(store, (f"{runs}.{turn}.{n}" for n in range(BATCH)))
            held = [_held(row) for row in rows]
            if held:
                acting.run(store, *held)
                acting.report(store, *held)
    return runs, done


def _held(row: dict[str, Any]) -> Held:
    return Held(row["attempt_id"], row["fence"], acting.token(row["offer_id"]), row)


def _cycles(port: int) -> int:
    _, text = page(port, "/metrics")
    found = re.findall(r'^qinglong_sql_cycles_total\{lifecycle="scheduler".*\} (\S+)$', text, re.M)
    return int(sum(map(float, found)))
