#!/usr/bin/env python3
"""Check the report of a drill without a database: python3 scripts/ha_audit.py REPORT

Every gate of the drill's list is there, none else, and true; the timeline has the right order; the
limitations are told in full; nothing secret stands in it; only its owner can read it. This is about
consistency, with itself and with this version of the drill, and not about authenticity: whoever
wants to can write one that passes. Ends 0 with one line when all is well, 1 with a line a fault, 2
when it is no report. Standard library alone.
"""

import hashlib
import json
import math
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).resolve().parent / "ha"
LISTS: Final = {
    "ha_drill": "gates.txt",
    "ha_patroni": "gates_patroni.txt",
    "ha_partition": "gates_partition.txt",
    "ha_clock": "gates_clock.txt",
}
KEYS: Final = {
    "drill": str, "format": int, "began": str, "ms": int, "postgres": str, "product": str,
    "drillSum": str, "commit": str, "only": str, "sabotage": str, "gates": dict, "seen": dict,
    "notReached": list, "figures": dict, "timeline": list, "limitations": list, "passed": bool,
}  # fmt: skip
NULL_TOO: Final = ("commit", "only", "sabotage")
NO_SECRETS: Final = {"drillSum": "", "commit": None}  # but they look like some
# What a gate's name promises of its time: by the end of its name, after or before which event.
TIMES: Final = (
    ("BeforePartition", "before", "linkCut"),
    ("BeforeOldPrimaryFence", "before", "oldPrimaryFenced"),
    ("BeforePromotion", "before", "promoted"),
    ("BeforeEndpointSwitch", "before", "endpointSwitched"),
    ("AfterPromotion", "after", "promoted"),
    ("SurvivesPromotion", "after", "promoted"),
    ("replayAddsNothing", "after", "freshControlsReady"),
)
SECRETS: Final = {
    "a password or token": r"\b[0-9a-f]{32,}\b",
    "a password in a URL": r"://[^/\s:@\"]*:[^@\s\"]+@",
    "a password in words": r"(?i)\b(pg)?password\s*[=:']",
    "a password's verifier": r"SCRAM-SHA-256\$",
    "a private key": r"-----BEGIN",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the list of a drill asks of its report."""

    gates: tuple[str, ...]
    phases: tuple[str, ...]
    order: tuple[str, ...]
    limitations: tuple[str, ...]


class NoReport(Exception):
    """This cannot be audited at all; the message says why."""


def wanted(path: Path) -> Wanted:
    """Read a list of gates. Raises OSError."""
    gates: list[str] = []
    phases: list[str] = []
    order: list[str] = []
    limitations: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# order: "):
            order += line.removeprefix("# order: ").split()
        elif line.startswith("# phases: "):
            phases += line.removeprefix("# phases: ").split()
        elif line.startswith("# limitation: "):
            limitations.append(line.removeprefix("# limitation: "))
        elif line and not line.startswith("#"):
            gates.append(line.split("\t")[0])
    return Wanted(tuple(gates), tuple(phases), tuple(order), tuple(limitations))


def sum_of(drill: str) -> str:
    """The sum over the files of a drill, as scripts/ha/report.sh makes it. Raises OSError."""
    top = FOLDER.parent
    files = [one.relative_to(top) for one in [*FOLDER.rglob("*"), top / f"{drill}.sh"]
             if one.is_file() and not one.is_symlink()]  # fmt: skip
    lines = "".join(
        f"{hashlib.sha256((top / one).read_bytes()).hexdigest()} *{one}\n"
        for one in sorted(map(str, files))
        if "/__pycache__/" not in one and not one.rpartition("/")[2].startswith(".")
    )
    return hashlib.sha256(lines.encode()).hexdigest()


def read(path: Path) -> dict[str, Any]:
    """What a report says. Raises NoReport."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise NoReport("a name stands twice in one object")
        return found

    try:
        report = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=once)
    except (OSError, ValueError) as error:
        raise NoReport(str(error)) from None
    if not isinstance(report, dict) or set(report) != set(KEYS):
        lacking = sorted(set(KEYS) ^ set(report)) if isinstance(report, dict) else "it is no object"
        raise NoReport(f"not the report of a drill: {lacking}")
    for key, kind in KEYS.items():
        if type(report[key]) is not kind and not (key in NULL_TOO and report[key] is None):
            raise NoReport(f"{key} is no {kind.__name__}")
    return report


def faults(path: Path) -> Iterator[str]:
    """What is wrong with a report, one sentence each. Raises NoReport."""
    report = read(path)
    if report["format"] != 1 or report["drill"] not in LISTS:
        raise NoReport(f"format {report['format']} of drill {report['drill']!r} is not known")
    want = wanted(FOLDER / LISTS[report["drill"]])
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode != 0o600:
        yield f"its mode is {mode:04o}, not 0600: others may read it"
    text = json.dumps(report | NO_SECRETS, ensure_ascii=False)
    for name, pattern in SECRETS.items():
        if re.search(pattern, text):
            yield f"{name} stands in it"
    yield from _verdicts(report, want)
    yield from _words(report, want)
    yield from _origin(report)
    if tuple(report["limitations"]) != want.limitations:
        yield "the limitations are not those of the drill's list"
    for name, number in report["figures"].items():
        if type(number) not in (int, float) or not 0 <= number < math.inf:
            yield f"figure {name} is no number"
    yield from _times(report, want)
    yield from _phases(report, want)


def _verdicts(report: dict[str, Any], want: Wanted) -> Iterator[str]:
    gates, unreached = report["gates"], report["notReached"]
    for name in (one for one in want.gates if one not in unreached):
        if name not in gates:
            yield f"gate {name} is missing"
        elif gates[name] is not True:
            yield f"gate {name} is {json.dumps(gates[name])}"
    yield from (f"gate {name} is in no list" for name in gates if name not in want.gates)
    yield from (f"gate {name} was not reached" for name in unreached)
    if report["passed"] is not True:
        yield "it says of itself that it has not passed"
    if report["only"] is not None:
        yield f"it is of phase {report['only']} only"
    if report["sabotage"] is not None:
        yield f"it is of a sabotage: {report['sabotage']}"
    elif any(_event(point) == "sabotage" for point in report["timeline"]):
        yield "a sabotage stands on its timeline, and it names none"


def _words(report: dict[str, Any], want: Wanted) -> Iterator[str]:
    seen = report["seen"]
    for name in (one for one in want.gates if one not in report["notReached"]):
        words = seen.get(name)
        if not isinstance(words, str) or not words.strip():
            yield f"gate {name} does not say what was seen"
        elif report["gates"].get(name) is True and re.search(r"\bwanted\b.*\bfound\b", words):
            yield f"gate {name} is true, and says {words!r}"
    yield from (f"{name} is seen and in no list" for name in seen if name not in want.gates)


def _origin(report: dict[str, Any]) -> Iterator[str]:
    """When, with what, and by which version of the drill."""
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", report["began"]):
        yield "it does not say when it began"
    if not re.fullmatch(r"1[5-8]\.\d+", report["postgres"]):
        yield f"postgres {report['postgres']!r} is no version of 15 to 18"
    if not re.fullmatch(r"qinglong-sql, version \d[\w.+-]*", report["product"]):
        yield f"product {report['product']!r} is no version of qinglong-sql"
    if report["drillSum"] != sum_of(report["drill"]):
        yield f"made by another version of the drill: {report['drillSum']}"
    commit = report["commit"]
    if commit is not None and not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit):
        yield f"commit {commit!r} is none"


def _times(report: dict[str, Any], want: Wanted) -> Iterator[str]:
    first: dict[str, int] = {}  # event: its place on the timeline
    last: dict[str, int] = {}
    before = 0
    for place, point in enumerate(report["timeline"]):
        ms = point.get("ms") if isinstance(point, dict) else None
        if type(ms) is not int or not isinstance(point.get("event"), str):
            yield f"point {place} of the timeline is no event with its time"
            continue
        if not before <= ms <= report["ms"]:
            yield f"{point['event']} at {ms} ms is out of order on the timeline"
        before = max(before, ms)
        first.setdefault(point["event"], place)
        last[point["event"]] = place
        if point["event"].startswith("gate:") and point.get("words") != "true":
            yield f"{point['event']} was {point.get('words')!r} on the timeline"
    yield from (f"{name} is not on the timeline" for name in want.order if name not in first)
    there = [name for name in want.order if name in first]
    for one, other in pairwise(there):
        if first[one] > first[other]:
            yield f"{other} came before {one}"
    for name in want.gates:
        if f"gate:{name}" not in first:
            if name in report["notReached"]:
                continue
            yield f"gate {name} was never judged on the timeline"
            continue
        for end, how, event in TIMES:
            if not name.endswith(end) or event not in want.order or event not in first:
                continue
            if how == "before" and first[f"gate:{name}"] > first[event]:
                yield f"gate {name} was judged after {event}"
            if how == "after" and last[f"gate:{name}"] < first[event]:
                yield f"gate {name} was judged before {event}"


def _phases(report: dict[str, Any], want: Wanted) -> Iterator[str]:
    """Each phase began, in order, and so did all of them if the drill was told several times."""
    began = [point.get("words") for point in report["timeline"] if _event(point) == "phase"]
    count = len(want.phases)
    yield from (f"phase {name} is not on the timeline" for name in want.phases if name not in began)
    if set(began) >= set(want.phases) and began != [*want.phases] * (len(began) // count):
        yield f"the phases were {began}, not {[*want.phases]} once or several times"
    phase = ""
    for point in report["timeline"]:
        phase = point.get("words") if _event(point) == "phase" else phase
        if _event(point) is not None and point.get("phase") != phase:
            yield f"{point['event']} stands in phase {point.get('phase')!r} below {phase!r}"
            return


def _event(point: object) -> object:
    return point.get("event") if isinstance(point, dict) else None


def main(words: list[str]) -> int:
    """The exit code: 0 well, 1 faults, 2 no report."""
    if len(words) != 1 or words[0].startswith("-"):
        print(__doc__, file=sys.stderr if words != ["--help"] else sys.stdout)
        return 0 if words == ["--help"] else 2
    try:
        found = list(faults(Path(words[0])))
    except (NoReport, OSError) as error:
        print(f"{words[0]}: {error}", file=sys.stderr)
        return 2
    for fault in found:
        print(f"{words[0]}: {fault}")
    if not found:
        print(f"{words[0]}: every gate true, in order, nothing secret")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
