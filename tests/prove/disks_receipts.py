"""What an execution left is lost or is not its own: nothing is executed twice that may not be.

All of it in one life: many steps run, the edge is killed, their folders are spoilt each in its way,
and another edge takes over. Part of tests.prove.disks.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.prove import Setting, Verdict
from tests.serving import Serving, serving
from tests.site import kill_all_of, processes_of, wait

GATED = """\
package: receipts
tasks:
  once:
    run: "echo $QL_RUN_ID >> {marks}; while [ ! -e {gate} ]; do sleep 0.1; done"
  again:
    run: "echo $QL_RUN_ID >> {marks}; while [ ! -e {gate} ]; do sleep 0.1; done"
    idempotent: true
    on_lost: retry
"""


def _rewrite(path: Path, **change: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


# what happens to a folder when nothing of its execution lives, before and after it could end
KILLED: dict[str, Callable[[Path], object]] = {
    "no journal": lambda folder: (folder / "journal.json").unlink(),
    "journal of another boot": lambda folder: _rewrite(folder / "journal.json", boot_id="other"),
    "broken journal": lambda folder: (folder / "journal.json").write_text("{"),
    "killed": lambda folder: None,
}
ENDED: dict[str, Callable[[Path], object]] = {
    "no receipt": lambda folder: (folder / "receipt.json").unlink(),
    "empty receipt": lambda folder: (folder / "receipt.json").write_text(""),
    "receipt of another": lambda folder: _rewrite(folder / "receipt.json", attempt="ru-1"),
    "no folder": shutil.rmtree,
    "untouched": lambda folder: None,
}
TASKS = ("once", "again")


def prove(setting: Setting, verdict: Verdict) -> None:
    folder = setting.folder / "receipts"
    folder.mkdir()
    with serving(folder, setting.folder, slots=2 * (len(KILLED) + len(ENDED))) as served:
        gate = setting.folder / "gate"
        served.shell.write("gated.yaml", GATED.format(marks=served.marks, gate=gate))
        assert served.shell("publish", "gated.yaml").returncode == 0
        runs = _started(served)
        served.process.send_signal(signal.SIGKILL)
        served.process.wait()
        os.kill(served.forkserver(), signal.SIGKILL)  # it would attest for its launchers
        folders = _folders(served)
        for (case, _), run_id in runs.items():
            if case in KILLED:
                os.kill(_launcher(folders[run_id]), signal.SIGKILL)
        gate.touch()
        receipts = [folders[run_id] for (case, _), run_id in runs.items() if case in ENDED]
        wait(lambda: all((one / "receipt.json").exists() for one in receipts), "receipts")
        wait(lambda: not _launchers(served), "nothing runs")
        for (case, _), run_id in runs.items():
            (KILLED | ENDED)[case](folders[run_id])
        _told_while_unknown(verdict, served, runs[("no receipt", "once")])
        served.begin()
        _judge(verdict, served, runs)
    kill_all_of(folder)


def _started(served: Serving) -> dict[tuple[str, str], str]:
    runs = {}
    for case in KILLED | ENDED:
        for task in TASKS:
            key = f"{case}.{task}".replace(" ", "-")
            done = served.shell("start", "receipts", task, "--key", key, "--json")
            assert done.returncode == 0, done.stderr
            runs[case, task] = str(json.loads(done.stdout)["run_id"])
    wait(lambda: len(served.marks.read_text().split()) == len(runs), "all of it runs")
    return runs


def _folders(served: Serving) -> dict[str, Path]:
    journals = served.state.glob("edge/exec/*/journal.json")
    return {json.loads(one.read_text())["run_id"]: one.parent for one in journals}


def _launcher(folder: Path) -> int:
    return int(json.loads((folder / "journal.json").read_text())["launcher_pid"])


def _launchers(served: Serving) -> dict[int, str]:
    found = processes_of(served.folder)
    return {pid: line for pid, line in found.items() if "launchers of" in line}


def _told_while_unknown(verdict: Verdict, served: Serving, run_id: str) -> None:
    """Before anybody looks after it, it is said what the run waits for."""
    said = served.shell("show", run_id).stdout
    verdict.check("lease" in said or "nobody" in said, f"no receipt: `show` says {said}")


def _judge(verdict: Verdict, served: Serving, runs: dict[tuple[str, str], str]) -> None:
    try:
        wait(lambda: "running" not in served.runs().values(), "every run ends", 60)
    except AssertionError as error:
        verdict.failures.append(f"receipts: {error}: {served.runs()}; {served.said()}")
        return
    time.sleep(0.5)
    found, marks = served.runs(), served.marks.read_text().split()
    for (case, task), run_id in runs.items():
        where = f"{case}, {task}"
        kept = case == "untouched"
        wanted = "succeeded" if kept or task == "again" else "failed"
        count = 1 if kept or task == "once" else 2
        verdict.check(found[run_id] == wanted, f"{where}: {found[run_id]}, not {wanted}")
        verdict.check(marks.count(run_id) == count, f"{where}: executed {marks.count(run_id)}")
        said = served.shell("show", run_id).stdout
        verdict.check(
            kept or "fell silent" in said or task == "again",
            f"{where}: `show` does not say why: {said}",
        )
        verdict.count("spoilt executions", int(not kept))
    listed = json.loads(served.shell("status", "--check", "--json").stdout)
    verdict.check(not listed.get("violations"), f"receipts: {listed}")
