#!/usr/bin/env python3
"""Check the report of a drill without a database: python3 scripts/ha_audit.py REPORT

Every gate of the drill's list is there, none else, and true; the timeline has the right order; the
limitations are told in full; nothing secret stands in it; only its owner can read it (DOMAIN §8.1,
step 15). Ends 0 with one line when all is well, 1 with a line a fault, 2 when it is no report.
Standard library alone.
"""

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
    "only": str, "sabotage": str, "gates": dict, "seen": dict, "notReached": list,
    "figures": dict, "timeline": list, "limitations": list, "passed": bool,
}  # fmt: skip
NULL_TOO: Final = ("only", "sabotage")
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
    order: tuple[str, ...]
    limitations: tuple[str, ...]


class NoReport(Exception):
    """This cannot be audited at all; the message says why."""


def wanted(path: Path) -> Wanted:
    """Read a list of gates. Raises OSError."""
    gates: list[str] = []
    order: list[str] = []
    limitations: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# order: "):
            order += line.removeprefix("# order: ").split()
        elif line.startswith("# limitation: "):
            limitations.append(line.removeprefix("# limitation: "))
        elif line and not line.startswith("#"):
            gates.append(line.split("\t")[0])
    return Wanted(tuple(gates), tuple(order), tuple(limitations))


def read(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of a report and what it says. Raises NoReport."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise NoReport("a name stands twice in one object")
        return found

    try:
        text = path.read_text(encoding="utf-8")
        report = json.loads(text, object_pairs_hook=once)
    except (OSError, ValueError) as error:
        raise NoReport(str(error)) from None
    if not isinstance(report, dict) or set(report) != set(KEYS):
        lacking = sorted(set(KEYS) ^ set(report)) if isinstance(report, dict) else "it is no object"
        raise NoReport(f"not the report of a drill: {lacking}")
    for key, kind in KEYS.items():
        if type(report[key]) is not kind and not (key in NULL_TOO and report[key] is None):
            raise NoReport(f"{key} is no {kind.__name__}")
    return text, report


def faults(path: Path) -> Iterator[str]:
    """What is wrong with a report, one sentence each. Raises NoReport."""
    text, report = read(path)
    if report["format"] != 1 or report["drill"] not in LISTS:
        raise NoReport(f"format {report['format']} of drill {report['drill']!r} is not known")
    want = wanted(FOLDER / LISTS[report["drill"]])
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode != 0o600:
        yield f"its mode is {mode:04o}, not 0600: others may read it"
    for name, pattern in SECRETS.items():
        if re.search(pattern, text):
            yield f"{name} stands in it"
    yield from _verdicts(report, want)
    if tuple(report["limitations"]) != want.limitations:
        yield "the limitations are not those of the drill's list"
    for name, number in report["figures"].items():
        if type(number) not in (int, float) or not math.isfinite(number):
            yield f"figure {name} is no number"
    yield from _times(report, want)


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
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", report["began"]):
        yield "it does not say when it began"
    yield from (f"it names no {key}" for key in ("postgres", "product") if not report[key])


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
