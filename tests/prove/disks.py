"""Full, failing, read-only and vanished disks: told in words, nothing lost, and work goes on.

1. `run` and `edge` (both profiles) on an ext4 of 8 MiB that is filled at a random moment and has
   room again seconds later: told once and not every cycle, every run ends right, nothing ran twice.
2. EIO from the Nth sync, write or read on, for N up to the last one, of `publish`, `start` and
   `cancel`: exit 6 with words, all of it is stored or nothing, and the command repeated works.
3. EIO for seconds of every sync, write or read of a serving edge, and of its launchers: it stays.
4. Files and folders replaced or removed under an edge; read-only; not permitted (disks_gone).
5. PostgreSQL with its tables or its log on a full ext4 (disks_postgres).
6. The receipt, the journal or all of an execution's folder gone (disks_receipts).
"""

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from qinglong_sql.store.sqlite import Profile, open_sqlite
from tests import filling, mounts
from tests.prove import Setting, Verdict, disks_gone, disks_postgres, disks_receipts, needing
from tests.serving import Serving, serving, steadily
from tests.shell import Shell, ended
from tests.site import kill_all_of, wait

ROUNDS, QUICK_ROUNDS = 30, 2  # fewer, and perhaps none meets the full disk
EDGE_ROUNDS, QUICK_EDGE_ROUNDS = 12, 1
HELD_S = 2
CALM = "it works again"
PROFILES: tuple[Profile, ...] = ("edge", "standalone")
VIEWS = ("package_state", "run_state", "event_log", "agenda_state", "violation")
CALLS = (filling.SYNCS, "pwrite64", "pread64")
LAST, QUICK_NUMBERS = 60, (1, 4)  # of calls; no command here has as many writes or reads
BELOW = "fsync,fdatasync,linkat,pwrite64"  # what launchers write receipts with
LOUD = """\
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
    with needing(verdict, "a full ext4"):
        with small(setting.folder) as folder:
            _run_fills(setting, verdict, folder)
        for profile in PROFILES[: 1 if setting.quick else None]:
            with small(setting.folder) as folder:
                _edge_fills(setting, verdict, folder, profile)
    with needing(verdict, "failing calls"):
        for profile in PROFILES[: 1 if setting.quick else None]:
            _commands_fail(setting, verdict, profile)
        for profile in PROFILES[setting.quick :]:
            _edge_fails(setting, verdict, profile)
    disks_gone.prove(setting, verdict)
    disks_receipts.prove(setting, verdict)
    with needing(verdict, "PostgreSQL on a full ext4"):
        disks_postgres.prove(setting, verdict)
    return verdict


@contextmanager
def small(folder: Path) -> Iterator[Path]:
    """An ext4 of 8 MiB. Raises CannotRun."""
    with mounts.mounted(folder, "ext4", 8 * mounts.MIB) as mount:
        try:
            yield mount.folder
        finally:
            kill_all_of(mount.folder)
    mount.folder.rmdir()


def _shell(folder: Path) -> Shell:
    folder.mkdir(exist_ok=True)
    shell = Shell(folder, f"sqlite:///{folder}/ql.db")
    shell.write("jobs.yaml", LOUD)
    for words in (("migrate",), ("publish", "jobs.yaml")):
        done = shell(*words)
        assert done.returncode == 0, done.stderr
    return shell


# --- full


def _run_fills(setting: Setting, verdict: Verdict, folder: Path) -> None:
    shell, output = _shell(folder), setting.folder / "run.out"
    for number in range(QUICK_ROUNDS if setting.quick else ROUNDS):
        setting.say(f"disks: run, full, round {number}")
        draw = setting.random("full", number)
        output.write_text("")
        process = shell.begin("run", "jobs.yaml", "calm", output=output)
        if number % 4:  # else at any moment of its beginning
            _until_it_runs(process, output)
        _full_for_a_while(folder, draw.uniform(0, 0.4))
        code, said = ended(process), output.read_text()
        where = f"seed {setting.seed}, run, full, round {number}"
        told = "full" in said or "No space left" in said
        verdict.count("full rounds of run")
        verdict.count("told by run", int(told))
        if code == 6 and told and "run ru" not in said:  # not admitted: nothing was promised
            done = shell.process("run", "jobs.yaml", "calm")
            code, said = done.returncode, said + done.stdout + done.stderr
        verdict.check(code == 0, f"{where}: exit {code}: {said}")
        verdict.check("Traceback" not in said, f"{where}: {said}")
        check = shell.process("status", "--check", "--json")
        verdict.check(check.returncode == 0, f"{where}: {check.stdout}{check.stderr}")
        for log in folder.rglob("*.log"):
            log.unlink(missing_ok=True)
    verdict.check(verdict.counts["told by run"], "no round of run met the full disk: no teeth")


def _until_it_runs(process: subprocess.Popen[bytes], output: Path) -> None:
    """Or has ended, of which its exit code and its words are judged."""
    wait(lambda: process.poll() is not None or "a  started" in output.read_text(), "it runs", 90)


def eventually(true: Callable[[], bool], within_s: float = 10) -> bool:
    """An edge says that it works again a second after its last trouble."""
    end = time.monotonic() + within_s
    while not true() and time.monotonic() < end:
        time.sleep(0.1)
    return true()


def _said_more(served: Serving, known: int) -> bool:
    return served.times(CALM) > known


def _full_for_a_while(folder: Path, delay_s: float) -> None:
    time.sleep(delay_s)
    filler = filling.fill(folder)
    time.sleep(HELD_S)
    filler.unlink()


def _edge_fills(setting: Setting, verdict: Verdict, folder: Path, profile: Profile) -> None:
    with serving(folder, setting.folder, profile) as served:
        for number in range(QUICK_EDGE_ROUNDS if setting.quick else EDGE_ROUNDS):
            setting.say(f"disks: edge, full, {profile}, round {number}")
            where = f"seed {setting.seed}, {profile} edge, full, round {number}"
            draw = setting.random("edge", profile, number)
            before, calm = len(served.troubles()), served.times(CALM)
            filled = threading.Thread(target=_full_for_a_while, args=(folder, draw.uniform(0, 1)))
            filled.start()
            verdict.failures += steadily(served, draw, str(number), 1 + HELD_S)
            filled.join()
            verdict.failures += [f"{where}: {line}" for line in served.wrong()]
            told = served.troubles()[before:]
            verdict.count("full rounds of edge")
            verdict.check(told, f"{where}: it said nothing")
            verdict.check(len(told) <= 4, f"{where}: it said it {len(told)} times: {told}")
            for line in told:
                good = "MiB free" in line and str(folder) in line and "make room" in line
                verdict.check(good, f"{where}: no file, free space or way out: {line}")
            again = eventually(partial(_said_more, served, calm))
            verdict.check(again, f"{where}: never calm: {served.said()}")
            shutil.rmtree(served.state / "edge" / "log", ignore_errors=True)
        code = served.stop()
        verdict.check(code == 0, f"{profile} edge on a disk that was full: exit {code}")


# --- failing


def _commands_fail(setting: Setting, verdict: Verdict, profile: Profile) -> None:
    shell = _shell(setting.folder / f"calls-{profile}")
    open_sqlite(shell.folder / "ql.db", profile=profile).close()  # it keeps the journal of this
    for calls in CALLS:
        met = {"publish": 0, "start": 0, "cancel": 0}
        for number in QUICK_NUMBERS if setting.quick else range(1, LAST):
            before = dict(met)
            shell.write("jobs.yaml", LOUD.replace("echo c", f"echo {calls} {number}"))
            key = f"{calls}.{number}"
            found = shell("start", "disk", "calm", "--key", f"{key}.c", "--json").stdout
            cancelled = found.split('"run_id": "')[1].partition('"')[0]
            for words in (
                ("publish", "jobs.yaml"), ("start", "disk", "calm", "--key", key),
                ("cancel", cancelled),
            ):  # fmt: skip
                setting.say(f"disks: {words[0]}, {calls} {number}")
                met[words[0]] += _one_fails(verdict, shell, calls, number, words)
            if met == before:  # none of them has so many
                break
        for word, failed in met.items():
            verdict.check(failed, f"no {calls} of {word} failed: this check has no teeth")
            verdict.count(f"failed calls of {word}", failed)


def _one_fails(
    verdict: Verdict, shell: Shell, calls: str, number: int, words: tuple[str, ...]
) -> int:
    """Whether the command met it."""
    where = f"EIO from {calls} {number} of `{' '.join(words)}` on"
    before = _facts(shell)
    done = filling.failing_call(shell, calls, f"error=EIO:when={number}+", *words)
    between = _facts(shell)
    verdict.check("Traceback" not in done.stderr, f"{where}: {done.stderr}")
    if done.returncode:
        verdict.check(done.returncode == 6, f"{where}: exit {done.returncode}: {done.stderr}")
        told = "dmesg" in done.stderr and str(shell.folder) in done.stderr
        verdict.check(told, f"{where}: it said {done.stderr}")
    again = shell(*words)
    verdict.check(again.returncode == 0, f"{where}: once more: {again.stderr}")
    after = _facts(shell)
    if done.returncode == 0:
        verdict.check(between != before and between == after, f"{where}: answered, and not stored")
    else:
        verdict.check(between in (before, after), f"{where}: half of it is stored")
    verdict.check(not after["violation"], f"{where}: {after['violation']}")
    return int(done.returncode != 0)


def _facts(shell: Shell) -> dict[str, list[dict[str, object]]]:
    """What commands change, without times, as another connection sees it."""
    with closing(open_sqlite(shell.folder / "ql.db")) as store:
        return {
            view: [{k: v for k, v in row.items() if "_ms" not in k} for row in store.read(view)]
            for view in VIEWS
        }


def _edge_fails(setting: Setting, verdict: Verdict, profile: Profile) -> None:
    folder = setting.folder / f"edge-{profile}"
    folder.mkdir()
    with serving(folder, setting.folder, profile) as served:
        for number in range(QUICK_EDGE_ROUNDS if setting.quick else EDGE_ROUNDS // 3):
            for calls, who in (*((one, "edge") for one in CALLS), (BELOW, "launchers")):
                setting.say(f"disks: {profile} edge, {calls} of {who}, round {number}")
                where = f"seed {setting.seed}, {profile} edge, {calls} of {who}, round {number}"
                draw = setting.random("fails", profile, calls, number)
                served.start(f"{calls}.{number}")
                time.sleep(draw.uniform(0, 0.6))
                pid = served.process.pid if who == "edge" else served.forkserver()
                with filling.failing(pid, calls):
                    wrong = steadily(served, draw, f"{calls}.{number}", 2)
                wrong += served.wrong()
                verdict.failures += [f"{where}: {line}" for line in wrong]
                verdict.count("failing rounds of edge")
        told = served.troubles()
        verdict.check(told, f"{profile} edge: nothing was told")
        most = 6 * verdict.counts["failing rounds of edge"]  # type: ignore[operator]
        verdict.check(len(told) <= most, f"{profile} edge: {len(told)} lines")
        verdict.check(not any("LaunchFailed" in one for one in told), f"{told}")
        code = served.stop()
        verdict.check(code == 0, f"{profile} edge on a failing disk: exit {code}")
