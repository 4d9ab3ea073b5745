"""A full disk and a failing sync, at each moment that counts.

1. `run` on a file system of 8 MiB (ext4 on a loop device) that is filled at a random moment, and
   has room again seconds later: the run ends right, nothing violates.
2. EIO from the Nth fsync or fdatasync on, for every N of `start` and of `publish`, by strace: told
   in words, exit 6, and what was acknowledged before is there; the command repeated works.
"""

import json
import random
import threading
import time
from pathlib import Path

from tests import filling, mounts
from tests.prove import Setting, Verdict, needing
from tests.shell import Shell
from tests.site import kill_all_of

ROUNDS, QUICK_ROUNDS = 30, 3
SYNCS, QUICK_SYNCS = 8, 3
HELD_S = 2
LONG = """\
package: disk
workflows:
  calm:
    steps:
      a: {run: "echo a; sleep 0.2"}
      b: {run: "yes 01234567890 | head -c 300000; sleep 0.2", needs: [a]}
      c: {run: "echo c", needs: [b]}
"""


def prove(setting: Setting) -> Verdict:
    verdict = Verdict()
    with (
        needing(verdict, "a full ext4"),
        mounts.mounted(setting.folder, "ext4", 8 * mounts.MIB) as mount,
    ):
        try:
            _fills(setting, verdict, mount.folder)
        finally:
            kill_all_of(mount.folder)
    with needing(verdict, "failing syncs"):
        _fails(setting, verdict)
    return verdict


def _shell(folder: Path) -> Shell:
    shell = Shell(folder, f"sqlite:///{folder}/ql.db")
    shell.write("jobs.yaml", LONG)
    for words in (("migrate",), ("publish", "jobs.yaml")):
        done = shell.process(*words)
        assert done.returncode == 0, done.stderr
    return shell


def _fills(setting: Setting, verdict: Verdict, folder: Path) -> None:
    shell = _shell(folder)
    for number in range(QUICK_ROUNDS if setting.quick else ROUNDS):
        setting.say(f"disks: full, round {number}")
        draw = setting.random("full", number)
        filled = threading.Thread(target=_full_for_a_while, args=(folder, draw))
        filled.start()
        done = shell.process("run", "jobs.yaml", "calm")
        filled.join()
        where = f"seed {setting.seed}, full, round {number}"
        said = done.stdout + done.stderr
        told = "full" in said or "No space left" in said
        verdict.count("rounds full")
        verdict.count("rounds that told it", int(told))
        if done.returncode == 6 and told:  # before it was admitted: nothing was promised
            verdict.count("rounds refused")
            done = shell.process("run", "jobs.yaml", "calm")
        verdict.check(done.returncode == 0, f"{where}: exit {done.returncode}: {done.stderr}")
        check = shell.process("status", "--check", "--json")
        verdict.check(check.returncode == 0, f"{where}: {check.stdout}{check.stderr}")
        for run in (folder / ".qinglong").rglob("*.log"):
            run.unlink(missing_ok=True)
    verdict.check(verdict.counts.get("rounds that told it"), "no round met the full disk: no teeth")


def _full_for_a_while(folder: Path, draw: random.Random) -> None:
    time.sleep(draw.uniform(0.3, 0.8))
    filler = filling.fill(folder)
    time.sleep(HELD_S)
    filler.unlink()


def _fails(setting: Setting, verdict: Verdict) -> None:
    folder = setting.folder / "syncs"
    folder.mkdir()
    shell = _shell(folder)
    for number in range(1, 1 + (QUICK_SYNCS if setting.quick else SYNCS)):
        key = f"k{number}"
        words = ("start", "disk", "calm", "--key", key, "--json")
        done = filling.failing_sync(shell, number, *words)
        where = f"EIO from sync {number} of start on"
        if done.returncode == 0:  # it has fewer syncs than this
            verdict.check(number > 1, f"{where}: nothing failed: this check has no teeth")
        else:
            verdict.count("failed syncs")
            verdict.check(done.returncode == 6, f"{where}: exit {done.returncode}")
            verdict.check("disk I/O error" in done.stderr, f"{where}: {done.stderr}")
        again = shell.process(*words)
        verdict.check(again.returncode == 0, f"{where}: once more: {again.stderr}")
    listed = json.loads(shell.process("status", "--check", "--json").stdout)
    verdict.check("violations" not in listed or not listed["violations"], f"{listed}")
