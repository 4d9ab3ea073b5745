"""Real flows run to their end on both engines, in lock step: all running steps end at once.

The groups of steps that run together must be those of equal longest distance from the roots. Six
small flows are this project's own (tests/flows), all others are there only where they are shared.
"""

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qinglong_sql.errors import Malformed
from qinglong_sql.limits import LEASE_MAX_MS, MAX_STEPS, WORKER_BATCH
from qinglong_sql.package import PackageFaults, parse_package
from qinglong_sql.scheduler import Turn, local_cycle
from qinglong_sql.stage import STAGES, run_stage
from qinglong_sql.store import Store
from tests import acting
from tests.engines import Engine
from tests.test_cases_dags import FOLDER as SHARED
from tests.test_cases_dags import as_yaml, load

OWN = Path(__file__).parent / "flows"
# what a manifest cannot hold: its steps are an object, and their keys were checked before
BEFORE_THE_MANIFEST = {"duplicate_key", "bad_key"}
Needs = dict[str, list[str]]

both_folders = pytest.mark.parametrize(
    "folder",
    [
        pytest.param(OWN, id="own"),
        pytest.param(
            SHARED,
            id="shared",
            marks=pytest.mark.skipif(not SHARED.exists(), reason=f"no shared cases at {SHARED}"),
        ),
    ],
)


@dataclass(frozen=True, slots=True)
class Planned:
    """A run that has been started: its flow, and the step that is to fail."""

    name: str
    needs: Needs
    fails: str | None = None


def cases(folder: Path, verdict: str) -> list[dict[str, Any]]:
    loaded = map(load, sorted(folder.glob("*.json")))
    return [case for case in loaded if case["expect"] == verdict]


def needs_of(case: dict[str, Any]) -> Needs:
    return {step["key"]: step["needs"] for step in case["steps"]}


def longest_distance(needs: Needs) -> list[set[str]]:
    """Steps by their longest distance from the roots."""
    distance: dict[str, int] = {}
    while len(distance) < len(needs):
        for key, wanted in needs.items():
            if key not in distance and all(need in distance for need in wanted):
                distance[key] = 1 + max((distance[need] for need in wanted), default=-1)
    groups: dict[int, set[str]] = defaultdict(set)
    for key, far in distance.items():
        groups[far].add(key)
    return [groups[far] for far in sorted(groups)]


def after(needs: Needs, failed: str | None) -> set[str]:
    """All steps that need the failed one, however far."""
    found: set[str] = set()
    for group in longest_distance(needs):
        found |= {key for key in group if {failed, *found} & set(needs[key])}
    return found


def start(store: Store, name: str, case: dict[str, Any], keys: list[str]) -> list[str]:
    """Publish a flow under its own package key; a run for each key."""
    text = as_yaml(case).replace("package: case", f"package: {name}", 1)
    package = parse_package(text.encode("utf-8"), "case.yaml")
    store.call(
        "publish_package",
        p_package_key=name,
        p_manifest=package.manifest,
        p_base_dir="/srv",
    )
    rows = [
        store.call(
            "start_run",
            p_package_key=name,
            p_kind="workflow",
            p_target_key="flow",
            p_run_key=key,
            p_input="{}",
        )[0]
        for key in keys
    ]
    assert {row["outcome"] for row in rows} <= {"created"}
    return [row["run_id"] for row in rows]


def in_lock_step(store: Store, runs: dict[str, Planned]) -> dict[str, list[set[str]]]:
    """Drive runs until nothing is left to lease; {run_id: the groups that ran, in turn}."""
    acting.register(store)
    opened: dict[str, list[set[str]]] = defaultdict(list)
    for number in range(MAX_STEPS + 1):
        for stage in ("frontier", "task_admission"):
            while run_stage(store, STAGES[stage]).applied:
                pass
        held = list(lease_all(store, number))
        if not held:
            assert not local_cycle(store, Turn()).applied
            return opened
        groups: dict[str, set[str]] = defaultdict(set)
        for one in held:
            groups[one.row["run_id"]].add(one.row["step_key"])
        for run_id, group in groups.items():
            opened[run_id].append(group)
        end_all(store, held, runs)
    raise AssertionError(f"more groups than steps: {dict(opened)}")


def end_all(store: Store, held: list[acting.Held], runs: dict[str, Planned]) -> None:
    """Start all; end them, in runs with a failing step straight from the start barrier."""
    failing = [one for one in held if one.row["step_key"] == runs[one.row["run_id"]].fails]
    others = [one for one in held if one not in failing]
    whole = [one for one in held if runs[one.row["run_id"]].fails is None]
    for some in batches(held):
        assert applied(acting.cross(store, *some))
    for some in batches(whole):
        assert applied(store.call("running_attempts", p_commands=acting.commands(*some)))
    for some in batches(others):
        assert applied(acting.report(store, *some))
    for some in batches(failing):
        assert applied(acting.report(store, *some, exit_code=1))


def applied(rows: list[acting.Row]) -> bool:
    return bool(rows) and {row["outcome"] for row in rows} == {"applied"}


def lease_all(store: Store, number: int) -> Iterator[acting.Held]:
    for batch in itertools.count():
        names = [f"{number}.{batch}.{place}" for place in range(WORKER_BATCH)]
        rows = acting.offer_rows(store, names, lease_ms=LEASE_MAX_MS)
        for row in rows:
            token = acting.token(row["offer_id"])
            yield acting.Held(row["attempt_id"], row["fence"], token, row)
        if len(rows) < WORKER_BATCH:
            return


def batches(held: list[acting.Held]) -> Iterator[list[acting.Held]]:
    for first in range(0, len(held), WORKER_BATCH):
        yield held[first : first + WORKER_BATCH]


def statuses(store: Store, run_id: str) -> dict[str, set[str]]:
    """{status: step keys}."""
    found: dict[str, set[str]] = defaultdict(set)
    for key, status in acting.statuses(store, run_id).items():
        found[status].add(key)
    return dict(found)


@both_folders
def test_real_flows_open_group_by_group_and_end(store: Store, folder: Path) -> None:
    runs: dict[str, Planned] = {}
    for case in cases(folder, "accept"):
        name, needs = case["name"], needs_of(case)
        failing = [entry["step"] for entry in case["stats"].get("if_this_step_fails", ())]
        ids = start(store, name, case, ["whole", *(f"without {step}" for step in failing)])
        for run_id, step in zip(ids, [None, *failing], strict=True):
            runs[run_id] = Planned(name, needs, step)
    opened = in_lock_step(store, runs)
    for run_id, planned in runs.items():
        never = after(planned.needs, planned.fails)
        groups = [group - never for group in longest_distance(planned.needs)]
        assert opened[run_id] == [group for group in groups if group], planned
        ran = set(planned.needs) - never
        expected = {"skipped": never, "failed": {planned.fails}, "succeeded": ran - {planned.fails}}
        if planned.fails is None:
            expected["failed"] = set()
        found = statuses(store, run_id)
        assert found == {status: keys for status, keys in expected.items() if keys}, planned
        end = ("succeeded", None) if planned.fails is None else ("failed", "workflow_step_failed")
        assert acting.ended(store, run_id) == end, planned
    assert store.read("agenda_state") == []
    assert acting.unbroken(store)
    assert told(store, folder, runs, opened) == []


def told(
    store: Store, folder: Path, runs: dict[str, Planned], opened: dict[str, list[set[str]]]
) -> list[str]:
    """Flows whose own numbers are others than those that were seen."""
    wrong = []
    for case in cases(folder, "accept"):
        seen = {
            planned.fails: run_id
            for run_id, planned in runs.items()
            if planned.name == case["name"]
        }
        waves = case["stats"].get("waves", [1])
        if [len(group) for group in opened[seen[None]]] != waves:
            wrong.append(f"{case['name']}: waves")
        for entry in case["stats"].get("if_this_step_fails", ()):
            found = statuses(store, seen[entry["step"]])
            counted = len(found.get("skipped", ())), len(found.get("succeeded", ()))
            if counted != (entry["never_start"], entry["independent_still_run"]):
                wrong.append(f"{case['name']}: without {entry['step']} {counted}")
    return wrong


@both_folders
def test_broken_flows_are_refused_at_both_doors_and_nothing_is_stored(
    store: Store, engine: Engine, folder: Path
) -> None:
    before = acting.everything(engine)
    behind = Counter()
    for case in cases(folder, "reject"):
        with pytest.raises(PackageFaults) as refused:
            parse_package(as_yaml(case).encode("utf-8"), "case.yaml")
        codes = {fault.code for fault in refused.value.faults}
        words = " ".join(fault.words() for fault in refused.value.faults)
        assert case["reject_because"] in codes, case["name"]
        for name in ("dangling", "one_cycle", "duplicate_keys"):
            assert [key for key in case["stats"].get(name, ()) if key not in words] == []
        if case["reject_because"] not in BEFORE_THE_MANIFEST:
            with pytest.raises(Malformed):
                publish_by_hand(store, needs_of(case))
            behind[case["reject_because"]] += 1
    assert behind.total() >= 2
    assert acting.everything(engine) == before


def publish_by_hand(store: Store, needs: Needs) -> acting.Row:
    """Past qinglong_sql.package, straight to the step."""
    flows = {"flow": acting.workflow(needs)}
    return acting.publish_model(store, acting.model({"work": acting.task()}, flows))


def layers(count: int, width: int = 16) -> Needs:
    """Steps in layers, each of which needs all of the layer before."""
    keys = [f"s{number:03}" for number in range(count)]
    return {
        key: keys[max(0, number // width * width - width) : number // width * width]
        for number, key in enumerate(keys)
    }


def test_128_steps_run(store: Store) -> None:
    needs = layers(MAX_STEPS)
    case = {"steps": [{"key": key, "needs": wanted} for key, wanted in needs.items()]}
    run_id = start(store, "full", case, ["one"])[0]
    opened = in_lock_step(store, {run_id: Planned("full", needs)})
    assert opened[run_id] == longest_distance(needs)
    assert [len(group) for group in opened[run_id]] == [16] * 8
    assert acting.ended(store, run_id) == ("succeeded", None)
    assert publish_by_hand(store, needs)["outcome"] == "published"
    assert acting.unbroken(store)


def test_129_steps_are_refused_at_both_doors(store: Store, engine: Engine) -> None:
    needs = layers(MAX_STEPS + 1)
    case = {"steps": [{"key": key, "needs": wanted} for key, wanted in needs.items()]}
    with pytest.raises(PackageFaults) as refused:
        parse_package(as_yaml(case).encode("utf-8"), "case.yaml")
    assert [fault.code for fault in refused.value.faults] == ["too_many_steps"]
    before = acting.everything(engine)
    with pytest.raises(Malformed):
        publish_by_hand(store, needs)
    assert acting.everything(engine) == before


def test_our_own_flows_hold_both_verdicts() -> None:
    verdicts = Counter(json.loads(file.read_text())["expect"] for file in OWN.glob("*.json"))
    assert verdicts == {"accept": 4, "reject": 2}
