"""The table of known faults names tests that exist; and rows that no other test shows."""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_sql.package import parse_package
from tests import acting
from tests.acting import GRACE_MS, LEASE_MS, Engine, Store
from tests.known_faults import KNOWN_FAULTS

HERE = Path(__file__).resolve().parent
FAULTS = HERE.parent.parent / "shared" / "cases" / "faults.md"
GROUPS = "stuck|lease|cancel|dag|db|payload|schedule|sqlite|time|timeout-retry|migration|ops|ha"
WHY = re.compile(r"(Cannot arise|Later): .*\.")


def defined(file: str) -> set[str]:
    """The names of a file's tests, or of a drill's gates."""
    if file.startswith("gates"):
        text = (HERE.parent / "scripts" / "ha" / f"{file}.txt").read_text(encoding="utf-8")
        return {line.partition("\t")[0] for line in text.splitlines() if "\t" in line}
    tree = ast.parse((HERE / f"{file}.py").read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", KNOWN_FAULTS)
def test_a_row_names_tests_that_exist_or_says_why(row: str) -> None:
    said = KNOWN_FAULTS[row]
    assert said
    for one in said:
        file, _, name = one.partition("::")
        assert WHY.fullmatch(one) or name in defined(file), one


def test_every_row_that_the_core_can_meet_is_answered() -> None:
    if not FAULTS.exists():
        pytest.skip(f"no shared cases at {FAULTS}")
    text = FAULTS.read_text(encoding="utf-8")
    rows = re.findall(rf"^\| (B\d+) \| (?:{GROUPS}) \|", text, re.MULTILINE)
    assert len(rows) > 90
    assert set(rows) == set(KNOWN_FAULTS)


# -- what no other test shows


@pytest.fixture
def unbroken(store: Store) -> Iterator[None]:
    yield
    assert acting.unbroken(store)


after_it = pytest.mark.usefixtures("unbroken")


def wide(roots: int, below: int) -> dict[str, list[str]]:
    """Steps without needs, and as many that need the first of them."""
    flow: dict[str, list[str]] = {f"r{number:02}": [] for number in range(roots)}
    return flow | {f"p{number:02}": ["r00"] for number in range(below)}


def by_status(store: Store, run_id: str) -> dict[str, int]:
    found = sorted(acting.statuses(store, run_id).values())
    return {status: len(list(same)) for status, same in itertools.groupby(found)}


@after_it
def test_a_wide_run_that_is_cancelled_ends_each_step_as_it_stands(
    store: Store, engine: Engine
) -> None:
    """Running 10 of which 5 starting, claimed 5, offered 15, pending 30; the run comes last."""
    run_id = acting.begun(store, wide(30, 30))
    held = list(acting.lease(store, *(f"o{number}" for number in range(15))).values())
    acting.run(store, *held[:5])
    acting.cross(store, *held[5:10])
    acting.cancel(store, run_id)
    assert acting.converge(store, run_id)["outcome"] == "blocked"
    assert by_status(store, run_id) == {"cancelled": 45, "ready": 10, "running": 5}
    answers = acting.cross(store, *held[10:])  # claims learn of the intent and come back
    assert {(row["outcome"], row["code"]) for row in answers} == {("blocked", "QL410")}
    acting.report(store, *held[:10])
    assert acting.run_row(store, run_id)["status"] == "running"
    assert acting.converge(store, run_id)["outcome"] == "settled"
    assert by_status(store, run_id) == {"cancelled": 60}
    rows = store.read("event_log", run_id=run_id, order="sequence")
    assert [row["sequence"] for row in rows] == list(range(1, len(rows) + 1))
    assert (rows[-1]["entity"], rows[-1]["to_status"]) == ("run", "cancelled")
    before = acting.everything(engine)
    assert acting.converge(store, run_id)["outcome"] == "settled"
    assert acting.everything(engine) == before


@after_it
def test_a_run_past_its_deadline_ends_each_step_as_it_stands(store: Store, clock) -> None:
    """Running 3, ready 5, pending 9."""
    run_id = acting.begun(store, wide(8, 9), run_timeout_ms=10_000)
    held = list(acting.lease(store, "o1", "o2", "o3").values())
    acting.run(store, *held)
    clock.advance(10_000)
    assert store.call("deadline_run", p_run_id=run_id)[0]["outcome"] == "applied"
    assert acting.converge(store, run_id)["outcome"] == "blocked"
    assert by_status(store, run_id) == {"cancelled": 9, "running": 3, "timed_out": 5}
    acting.report(store, *held)
    assert acting.run_row(store, run_id)["status"] == "running"
    acting.converge(store, run_id)
    assert by_status(store, run_id) == {"cancelled": 9, "timed_out": 8}
    assert acting.ended(store, run_id)[0] == "timed_out"


@after_it
@pytest.mark.parametrize("queued", [True, False])
def test_a_cancelled_run_is_never_retried(
    store: Store, engine: Engine, clock, queued: bool
) -> None:
    run_id = acting.begun(store, {"a": []}, retry={"attempts": 5, "on": ["failed", "lost"]})
    acting.register(store)
    if not queued:
        acting.finish(store, run_id, a=1)
        assert acting.statuses(store, run_id) == {"a": "retry_wait"}
    acting.cancel(store, run_id)
    assert acting.converge(store, run_id)["outcome"] == "settled"
    assert acting.ended(store, run_id)[0] == "cancelled"
    clock.advance(3_600_000)
    before = acting.everything(engine)
    assert acting.page(store, "retry_page") == []
    for step in ("retry_run", "admit_tasks", "advance_frontier", "recover_run"):
        assert store.call(step, p_run_id=run_id)[0]["outcome"] == "settled"
    assert acting.offer_rows(store, ["late"]) == []
    assert acting.everything(engine) == before


@after_it
def test_the_order_in_which_leaves_end_decides_nothing(store: Store) -> None:
    ends = {"a": 0, "b": 1, "c": 0, "d": 3}
    acting.publish(store, {"root": [], **{key: ["root"] for key in ends}})
    seen = set()
    for number, order in enumerate(itertools.permutations(ends)):
        run_id = acting.start(store, key=f"order {number}")
        acting.admit(store, run_id)
        acting.finish(store, run_id)
        acting.advance(store, run_id)
        held = acting.lease(store, *(f"{number}.{key}" for key in ends), run_id=run_id)
        acting.run(store, *held.values())
        for key in order:
            acting.report(store, held[key], exit_code=ends[key])
            acting.advance(store, run_id)
        seen.add(
            (acting.ended(store, run_id), tuple(sorted(acting.statuses(store, run_id).items())))
        )
    assert len(seen) == 1
    assert next(iter(seen))[0] == ("failed", "workflow_step_failed")


@after_it
def test_a_step_opens_once_after_the_last_try_of_its_need(store: Store, clock) -> None:
    flow = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
    run_id = acting.begun(store, flow, retry={"attempts": 3})
    acting.finish(store, run_id)
    acting.advance(store, run_id)
    for end in (1, 1, 0):
        acting.finish(store, run_id, b=end)
        acting.advance(store, run_id)
        assert acting.statuses(store, run_id)["d"] == ("ready" if end == 0 else "pending")
        clock.advance(600_000)
        store.call("retry_run", p_run_id=run_id)
        acting.admit(store, run_id)
    rows = store.read("event_log", run_id=run_id, entity="step", entity_id="d", order="sequence")
    assert [row["to_status"] for row in rows] == ["pending", "ready"]
    assert acting.step(store, run_id, "b")["attempt_count"] == 3


@after_it
def test_a_bad_output_leaves_no_neighbour_behind(store: Store) -> None:
    run_id = acting.begun(store, {"a": [], "b": []})
    held = acting.lease(store, "o1", "o2")
    acting.run(store, *held.values())
    acting.report(store, held["a"], how="bad_output")
    acting.advance(store, run_id)
    assert acting.run_row(store, run_id)["status"] == "running"
    acting.report(store, held["b"])
    acting.advance(store, run_id)
    assert acting.statuses(store, run_id) == {"a": "failed", "b": "succeeded"}
    assert acting.ended(store, run_id)[0] == "failed"


@after_it
@pytest.mark.parametrize("how", ["exit", "timeout"])
def test_a_listed_end_is_tried_exactly_as_often_as_allowed(store: Store, clock, how: str) -> None:
    listed = {"exit": "failed", "timeout": "timed_out"}[how]
    run_id = acting.begun(
        store, {"a": []}, timeout_ms=10_000, retry={"attempts": 5, "on": [listed]}
    )
    tries = 0
    while acting.run_row(store, run_id)["status"] == "running":
        held = acting.lease(store, f"o{tries}")["a"]
        acting.run(store, held)
        if how == "timeout":
            clock.advance(10_000)
            acting.report(store, held, how="deadline", exit_code=None)
        else:
            acting.report(store, held, exit_code=1)
        tries += 1
        acting.advance(store, run_id)
        clock.advance(600_000)
        store.call("retry_run", p_run_id=run_id)
        acting.admit(store, run_id)
        assert tries <= 5
    assert tries == 5
    assert acting.ended(store, run_id)[0] == listed


@after_it
def test_what_failed_for_good_is_never_offered_again(store: Store, engine: Engine, clock) -> None:
    run_id = acting.begun(store, {"a": []}, retry={"attempts": 2})
    for _ in "ab":
        acting.finish(store, run_id, a=1)
        clock.advance(600_000)
        store.call("retry_run", p_run_id=run_id)
        acting.admit(store, run_id)
    acting.advance(store, run_id)
    assert acting.ended(store, run_id)[0] == "failed"
    before = acting.everything(engine)
    for number in range(5):
        clock.advance(3_600_000)
        assert acting.offer_rows(store, [f"late{number}"]) == []
        assert store.call("sweep_agenda", p_after_run_id="", p_limit=100) in (
            [], [{"run_id": run_id, "stages": 0}],
        )  # fmt: skip
    assert acting.everything(engine) == before


@after_it
def test_each_lease_has_its_own_end(store: Store, clock) -> None:
    run_id = acting.begun(store, {"a": [], "b": []})
    acting.register(store)
    (short,) = acting.lease(store, "o1", worker="w1", lease_ms=5_000)
    (long,) = acting.lease(store, "o2", worker="w1", lease_ms=300_000)
    clock.advance(5_000)
    acting.recover(store, run_id)
    found = {row["step_key"]: row["status"] for row in store.read("attempt_state", run_id=run_id)}
    assert found == {short: "lost", long: "claimed"}
    clock.advance(294_999)
    acting.recover(store, run_id)
    assert store.read("attempt_state", run_id=run_id, step_key=long)[0]["status"] == "claimed"
    clock.advance(1)
    acting.recover(store, run_id)
    assert store.read("attempt_state", run_id=run_id, step_key=long)[0]["status"] == "lost"


@after_it
def test_what_ran_when_an_old_copy_was_made_converges(store: Store, clock) -> None:
    """A copy that is ten minutes old says running, starting, claimed: nobody renews any of it."""
    run_id = acting.begun(store, {"a": [], "b": [], "c": []})
    held = list(acting.lease(store, "o1", "o2", "o3").values())
    acting.run(store, held[0])
    acting.cross(store, held[1])
    clock.advance(600_000 + LEASE_MS + GRACE_MS)
    acting.recover(store, run_id)
    statuses = acting.statuses(store, run_id)
    assert sorted(statuses.values()) == ["failed", "failed", "ready"]
    acting.admit(store, run_id)
    acting.finish(store, run_id)
    acting.advance(store, run_id)
    assert acting.ended(store, run_id)[0] == "failed"


def test_only_the_list_of_needs_counts() -> None:
    said = """
package: nightly
tasks:
  work: {run: [echo, "needs: b"]}
workflows:
  flow:
    steps:
      a: {task: work, name: "needs: a, b"}  # needs: a
      b: {task: work, needs: [a]}
"""
    parsed = parse_package(said.encode(), "flow.yaml")
    steps = parsed.model["workflows"]["flow"]["steps"]  # type: ignore[index,union-attr]
    assert {key: step["needs"] for key, step in steps.items()} == {"a": [], "b": ["a"]}
