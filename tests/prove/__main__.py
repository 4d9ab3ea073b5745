"""Prove the core: crashes, races, power, memory (see `scripts/prove --help`)."""

import argparse
import contextlib
import json
import platform
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import qinglong_sql
from tests.binaries import find
from tests.prove import CannotRun, Setting, Status, Verdict
from tests.prove.checks import CHECKS, Check

ROOT = Path(__file__).resolve().parents[2]
EPILOG = """\
Each check prints a line when it is over, and all of them go into proof.json. The same seed draws
the same commands, moments and faults; a failure says how to see it again.
Exit 0 when every check passed, 1 when one failed, 2 for wrong arguments, 130 on Ctrl-C.
What this machine cannot do (loop devices and memory limits need root) is printed with its reason.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parser().parse_args(arguments)
    chosen = [check for check in CHECKS if not asked.only or check.name in asked.only]
    if asked.list:
        for check in CHECKS:
            print(f"{check.name:<15}{check.sentence}")
        return 0
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(1_000_000)
    found = find()[0]
    report: dict[str, Any] = {
        "seed": seed,
        "quick": asked.quick,
        "minutes": asked.minutes,
        "versions": versions([binaries.version for binaries in found]),
        "checks": [],
    }
    print(
        f"seed {seed}; {', '.join(f'{k} {v}' for k, v in report['versions'].items())}", flush=True
    )
    interrupted = False
    for check in chosen:
        try:
            line = one(check, setting_of(check, chosen, asked, seed, [b.major for b in found]))
        except KeyboardInterrupt:
            interrupted = True
            break
        report["checks"].append(line)
        write(asked.json, report)
    report["passed"] = not interrupted and all(
        line["status"] == "passed" for line in report["checks"] if line["status"] != "not run"
    )
    write(asked.json, report)
    counts = [line["status"] for line in report["checks"]]
    for line in report["checks"]:
        for failure in line["failures"]:
            print(f"\n{line['name']}: {failure}")
    print(
        f"\n{counts.count('passed')} passed, {counts.count('failed')} failed, "
        f"{counts.count('not run')} could not run here; the report is {asked.json}"
    )
    return 130 if interrupted else 0 if report["passed"] else 1


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "scripts/prove",
        description="Prove the core: crashes, races, lost answers, power, full disks, memory.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--quick", action="store_true", help="every check once, some 25 minutes")
    made.add_argument("--minutes", type=minutes, default=60.0, metavar="N",
                      help="how long in all, about (default 60; not with --quick)")  # fmt: skip
    made.add_argument("--seed", type=int, metavar="S", help="what random choices come from")
    made.add_argument("--only", action="append", metavar="CHECK", help="this check (see --list)",
                      choices=[check.name for check in CHECKS])  # fmt: skip
    made.add_argument("--list", action="store_true", help="the checks, a sentence each")
    made.add_argument("--history", type=int, metavar="N",
                      help="rows that an upgrade finds (default 10 million, quick 1)")  # fmt: skip
    made.add_argument("--json", type=Path, default=Path("proof.json"), metavar="FILE",
                      help="the report (default proof.json)")  # fmt: skip
    return made


def minutes(text: str) -> float:
    value = float(text)
    if not 0 < value < 100_000:
        raise argparse.ArgumentTypeError("a number of minutes above 0")
    return value


def setting_of(
    check: Check, chosen: Sequence[Check], asked: argparse.Namespace, seed: int, majors: list[int]
) -> Setting:
    """What is left of the minutes after the fixed costs is shared by those that go on by time."""
    seconds = check.quick_s
    if not asked.quick and check.share:
        spare = asked.minutes * 60 - sum(one.quick_s for one in chosen)
        seconds += max(0.0, spare) * check.share / sum(one.share for one in chosen)
    folder = Path(tempfile.mkdtemp(prefix="ql-prove-"))
    folder.chmod(0o755)
    return Setting(seed, asked.quick, seconds, folder, tuple(majors), say, asked.history)


def one(check: Check, setting: Setting) -> dict[str, Any]:
    """Run a check and print its line. An error of the check itself is a failure."""
    began = time.monotonic()
    verdict, status = Verdict(), "passed"
    try:
        verdict = check.run(setting)
    except CannotRun as error:
        verdict.not_run.append(str(error))
        status = "not run"
    except Exception:
        verdict.failures.append(traceback.format_exc())
    finally:
        shutil.rmtree(setting.folder, ignore_errors=True)
    status = "failed" if verdict.failures else status
    took = time.monotonic() - began
    line(check, status, verdict, took)
    return {
        "name": check.name,
        "sentence": check.sentence,
        "status": status,
        "seconds": round(took, 1),
        "counts": verdict.counts,
        "failures": verdict.failures,
        "not_run": verdict.not_run,
    }


def line(check: Check, status: Status | str, verdict: Verdict, took: float) -> None:
    counts = ", ".join(f"{name} {value}" for name, value in verdict.counts.items())
    say("")
    print(f"{status:<8}{check.name:<15}{took:6.0f} s  {counts}", flush=True)
    for why in verdict.not_run:
        print(f"{'':<8}could not run here: {why}", flush=True)


def say(text: str) -> None:
    """Progress, on a terminal only: a line that the next one covers."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print("\r\033[K" + text[:width], end="", file=sys.stderr, flush=True)


def versions(servers: list[str]) -> dict[str, str]:
    found = {
        "qinglong-sql": qinglong_sql.__version__,
        "commit": _commit(),
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        "PostgreSQL": " and ".join(servers),
        "kernel": platform.release(),
    }
    return {name: value for name, value in found.items() if value}


def _commit() -> str:
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
        return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    return ""


def write(path: Path, report: dict[str, Any]) -> None:
    whole = path.with_name(path.name + ".new")
    whole.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    whole.replace(path)


if __name__ == "__main__":
    sys.exit(main())
