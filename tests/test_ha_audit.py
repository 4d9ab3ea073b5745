"""The auditor of a drill's report: a good one passes, every way to spoil it is told (DOMAIN §8).

The report here is made from the drill's own list of gates; `.ci/run ha` audits that of a real one.
"""

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.ha_audit import FOLDER, LISTS, NoReport, faults, main, sum_of, wanted
from tests.server import ROOT

LATE = ("SurvivesPromotion", "AfterPromotion", "replayAddsNothing")
Report = dict[str, Any]


def good(drill: str = "ha_drill") -> Report:
    """What a drill reports in which all went well."""
    want = wanted(FOLDER / LISTS[drill])
    early = [f"gate:{name}" for name in want.gates if not name.endswith(LATE)]
    late = [f"gate:{name}" for name in want.gates if name.endswith(LATE)]
    events = [("phase", name) for name in want.phases]
    events += [(event, "true") for event in [*early, *want.order, *late]]
    points = [{"ms": at, "phase": want.phases[min(at, len(want.phases) - 1)], "event": event,
               "words": words} for at, (event, words) in enumerate(events)]  # fmt: skip
    return {
        "drill": drill,
        "format": 1,
        "began": "2026-01-31T10:20:30Z",
        "ms": len(points),
        "postgres": "18.6",
        "product": "qinglong-sql, version 1",
        "drillSum": sum_of(drill),
        "commit": "0f" * 20,
        "only": None,
        "sabotage": None,
        "gates": dict.fromkeys(want.gates, True),
        "seen": dict.fromkeys(want.gates, "so it was"),
        "notReached": [],
        "figures": {"runs": 3},
        "timeline": points,
        "limitations": list(want.limitations),
        "passed": True,
    }


def told(folder: Path, report: object, mode: int = 0o600) -> list[str]:
    path = folder / "report.json"
    path.write_text(report if isinstance(report, str) else json.dumps(report, indent=2))
    path.chmod(mode)
    return list(faults(path))


@pytest.mark.parametrize(
    "drill", [name for name, file in LISTS.items() if (FOLDER / file).exists()]
)
def test_a_good_report_has_no_fault(tmp_path: Path, drill: str) -> None:
    assert told(tmp_path, good(drill)) == []


def swap(report: Report, one: str, other: str) -> None:
    points = report["timeline"]
    a, b = (next(p for p in points if p["event"] == name) for name in (one, other))
    a["event"], b["event"] = other, one


SPOILT: list[tuple[str, Callable[[Report], object]]] = [
    ("gate violationEmpty is missing", lambda r: r["gates"].pop("violationEmpty")),
    ("gate violationEmpty is false", lambda r: r["gates"].update(violationEmpty=False)),
    ("gate violationEmpty is 1", lambda r: r["gates"].update(violationEmpty=1)),
    ("gate niceWeather is in no list", lambda r: r["gates"].update(niceWeather=True)),
    ("gate violationEmpty was not reached", lambda r: r["notReached"].append("violationEmpty")),
    ("it says of itself that it has not passed", lambda r: r.update(passed=False)),
    ("it is of phase cut only", lambda r: r.update(only="cut")),
    ("it is of a sabotage: fresh-key", lambda r: r.update(sabotage="fresh-key")),
    ("it does not say when it began", lambda r: r.update(began="yesterday")),
    ("postgres '' is no version of 15 to 18", lambda r: r.update(postgres="")),
    ("postgres '9.6' is no version of 15 to 18", lambda r: r.update(postgres="9.6")),
    ("product 'true (GNU coreutils) 9.1' is no version of qinglong-sql",
     lambda r: r.update(product="true (GNU coreutils) 9.1")),
    ("made by another version of the drill: 0f0f", lambda r: r.update(drillSum="0f" * 32)),
    ("commit 'main' is none", lambda r: r.update(commit="main")),
    ("a sabotage stands on its timeline, and it names none",
     lambda r: r["timeline"].append({**r["timeline"].pop(), "event": "sabotage"})),
    ("gate violationEmpty does not say what was seen", lambda r: r["seen"].pop("violationEmpty")),
    ("gate violationEmpty does not say what was seen",
     lambda r: r["seen"].update(violationEmpty=" ")),
    ("gate physicalStreaming does not say what was seen", lambda r: r.update(seen={})),
    ("gate violationEmpty is true, and says 'run wanted 3 found 4'",
     lambda r: r["seen"].update(violationEmpty="run wanted 3 found 4")),
    ("niceWeather is seen and in no list", lambda r: r["seen"].update(niceWeather="sun")),
    ("phase fence is not on the timeline",
     lambda r: [p.update(event="x") for p in r["timeline"] if p["event"] == "phase"]),
    ("phase fence is not on the timeline",
     lambda r: [p.update(event="x") for p in r["timeline"] if p["words"] == "fence"]),
    ("the phases were ['roles', 'nodes', 'sync'",
     lambda r: [p.update(words=words, phase=words)
                for p, words in zip(r["timeline"], ("roles", "nodes"), strict=False)]),
    ("the phases were ['nodes', 'nodes', 'roles'",
     lambda r: r["timeline"].insert(0, {**r["timeline"][0]})),
    ("stands in phase 'nodes' below 'late'", lambda r: r["timeline"][-1].update(phase="nodes")),
    ("the limitations are not those of the drill's list", lambda r: r["limitations"].pop()),
    ("figure runs is no number", lambda r: r["figures"].update(runs="many")),
    ("figure runs is no number", lambda r: r["figures"].update(runs=-1)),
    ("promoted is not on the timeline",
     lambda r: [p.update(event="x") for p in r["timeline"] if p["event"] == "promoted"]),
    ("promoted came before oldControlsNotReady", lambda r: swap(r, "promoted", "oldPrimaryFenced")),
    ("gate oldPrimaryFencedBeforePromotion was judged after promoted",
     lambda r: swap(r, "gate:oldPrimaryFencedBeforePromotion", "replayed")),
    ("gate taskAttemptSurvivesPromotion was judged before promoted",
     lambda r: swap(r, "gate:taskAttemptSurvivesPromotion", "streaming")),
    ("gate violationEmpty was never judged on the timeline",
     lambda r: [p.update(event="x") for p in r["timeline"]
                if p["event"] == "gate:violationEmpty"]),
    ("gate:violationEmpty was 'false' on the timeline",
     lambda r: [p.update(words="false") for p in r["timeline"]
                if p["event"] == "gate:violationEmpty"]),
    ("is out of order on the timeline", lambda r: r["timeline"][3].update(ms=1)),
    ("is out of order on the timeline", lambda r: r["timeline"][-1].update(ms=999_999)),
    ("point 3 of the timeline is no event with its time",
     lambda r: r["timeline"][3].update(ms="3")),
    ("a password or token stands in it", lambda r: r["seen"].update(violationEmpty="0f" * 16)),
    ("a password in a URL stands in it",
     lambda r: r["seen"].update(violationEmpty="postgresql://drill:pw@127.0.0.1/x")),
    ("a password in words stands in it",
     lambda r: r["seen"].update(violationEmpty="user=drill password=pw")),
    ("a password's verifier stands in it",
     lambda r: r["seen"].update(violationEmpty="SCRAM-SHA-256$4096:x")),
]  # fmt: skip


@pytest.mark.parametrize(("words", "spoil"), SPOILT, ids=[words for words, _ in SPOILT])
def test_a_spoilt_report_is_told(
    tmp_path: Path, words: str, spoil: Callable[[Report], object]
) -> None:
    report = copy.deepcopy(good())
    spoil(report)
    found = told(tmp_path, report)
    assert any(words in fault for fault in found), found


def test_a_drill_that_was_told_twice_has_its_phases_twice(tmp_path: Path) -> None:
    report = good("ha_clock")
    phases = [p for p in report["timeline"] if p["event"] == "phase"]
    report["timeline"] = [{**p, "ms": 0} for p in phases] + report["timeline"]
    assert told(tmp_path, report) == []


def test_a_tree_without_commits_will_do(tmp_path: Path) -> None:
    assert told(tmp_path, {**good(), "commit": None}) == []


def test_a_report_that_others_may_read_is_told(tmp_path: Path) -> None:
    assert told(tmp_path, good(), 0o640) == ["its mode is 0640, not 0600: others may read it"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"gates": {}, "gates": {}}', json.dumps({**good(), "format": 2}),
     json.dumps({**good(), "drill": "other"}), json.dumps({**good(), "gates": []}),
     json.dumps({**good(), "more": 1}), json.dumps({**good(), "passed": 1})],
)  # fmt: skip
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(NoReport):
        told(tmp_path, text)


def test_the_exit_code_tells_them_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    told(tmp_path, good())
    assert main([str(path)]) == 0
    told(tmp_path, {**good(), "passed": False})
    assert main([str(path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith("it has not passed")
    path.write_text("nothing")
    assert main([str(path)]) == 2
    assert main([str(tmp_path / "none")]) == 2
    assert main([]) == 2
    assert main(["--help"]) == 0


def test_it_runs_alone_where_nothing_is_installed(tmp_path: Path) -> None:
    told(tmp_path, good())
    done = subprocess.run(
        [sys.executable, "-I", "-S", ROOT / "scripts" / "ha_audit.py", tmp_path / "report.json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("every gate true, in order, nothing secret\n")
