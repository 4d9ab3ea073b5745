"""Real flows from public sources: each is accepted or refused with all of its faults named."""

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from qinglong_sql.package import Package, PackageFaults, parse_package

FOLDER = Path(__file__).resolve().parent.parent.parent / "shared" / "cases" / "dags"
FILES = sorted(FOLDER.glob("*.json"))

pytestmark = pytest.mark.skipif(not FILES, reason=f"no shared cases at {FOLDER}")


def load(file: Path) -> dict[str, Any]:
    case: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return case


def as_yaml(case: dict[str, Any]) -> str:
    """The flow as a package file; a key that the flow has twice is written twice."""
    lines = ["package: case", "workflows:", "  flow:", "    steps:"]
    for step in case["steps"]:
        key = json.dumps(step["key"], ensure_ascii=False)
        needs = json.dumps(step["needs"], ensure_ascii=False)
        lines.append(f"      {key}: {{run: 'true', needs: {needs}}}")
    return "\n".join(lines) + "\n"


def read(case: dict[str, Any]) -> Package | PackageFaults:
    try:
        return parse_package(as_yaml(case).encode("utf-8"), "case.yaml")
    except PackageFaults as error:
        return error


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_real_flow_is_accepted_whole_or_refused_with_all_its_faults(file: Path) -> None:
    case = load(file)
    answer = read(case)
    if case["expect"] == "accept":
        assert isinstance(answer, Package), str(answer)
        steps = answer.model["workflows"]["flow"]["steps"]
        assert {key: step["needs"] for key, step in steps.items()} == {
            step["key"]: sorted(set(step["needs"])) for step in case["steps"]
        }
        return
    assert isinstance(answer, PackageFaults)
    codes = Counter(fault.code for fault in answer.faults)
    assert codes[case["reject_because"]]
    told = " ".join(fault.words() for fault in answer.faults)
    stats = case["stats"]
    for name in (*stats.get("dangling", ()), *stats.get("duplicate_keys", ())):
        assert name in told
    keys = Counter(step["key"] for step in case["steps"])
    assert codes["duplicate_key"] == sum(count - 1 for count in keys.values())
    assert codes["unknown_need"] == sum(
        need not in keys for step in case["steps"] for need in set(step["needs"])
    )
    assert codes["self_need"] == sum(step["key"] in step["needs"] for step in case["steps"])
    if case["reject_because"] == "too_many_steps":
        assert f"{len(keys)} steps, and the limit is 128" in told
    for key in stats.get("one_cycle", ()):
        assert re.search(rf"\b{key}\b", told)


@pytest.mark.parametrize(
    "file", [f for f in FILES if load(f)["expect"] == "reject"], ids=lambda file: file.stem
)
def test_a_cycle_that_is_told_is_one_of_the_flow(file: Path) -> None:
    case = load(file)
    needs = {step["key"]: step["needs"] for step in case["steps"]}
    answer = read(case)
    assert isinstance(answer, PackageFaults)
    cycles = [fault.message for fault in answer.faults if fault.code == "cycle"]
    assert bool(cycles) == (
        len(case["stats"].get("one_cycle", ())) > 1 or "cylc-group" in file.stem
    )
    for message in cycles:
        steps = re.findall(r"s\d{3}", message.split("(")[0])
        assert steps[0] == steps[-1]
        assert all(second in needs[first] for first, second in pairwise(steps))


def test_the_folder_holds_both_verdicts() -> None:
    verdicts = Counter(load(file)["expect"] for file in FILES)
    assert verdicts["accept"] >= 30
    assert verdicts["reject"] >= 15
