"""Every order of commands on one step, explored to the end (two steps: `scripts/prove`)."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests import interleaving_key
from tests.interleaving_variant import Variant
from tests.mutants import NAMED, Mutant
from tests.prove.interleavings import ONE_STEP, TWO_STEPS, explore

VARIANTS = {one.name: one for one in (*ONE_STEP, *TWO_STEPS)}
STATES = {
    "fail": 189, "retry": 200, "hold": 74, "no fence of its own": 74, "task": 94,
    "run with a deadline": 163,
}  # fmt: skip
# Rules of recovery, claims that come back, retries, cancellation before and after the start,
# convergence, the frontier: changed, they are found on these steps.
FOUND_ON = {
    "the frontier moves under an intent": "fail",
    "timed out beats failed": "fail",
    "a need that runs is enough": "chain",
    "a run ends while a retry waits": "retry",
    "attempts are admitted under an intent": "fail",
    "one admission a step, not an epoch": "fail",
    "a start under an intent goes through": "fail",
    "exit 0 beats the intent": "fail",
    "one retry too many after a report": "fail",
    "one claim return too many after a report": "hold",
    "hold believes a fence": "hold",
    "every session fences itself": "no fence of its own",
    "work past the barrier is fenced without grace": "fail",
    "an operator may retry for ever": "fail",
    "on_lost is asked under an intent": "fail",
    "a held claim is cancelled": "fail",
    "a released lease blocks": "fail",
    "work past the barrier does not block the run": "fail",
    "a starting attempt does not block its step": "fail",
    "a waiting retry outlives the intent": "retry",
}
SILENT = (
    Mutant(
        "explain does not say hold", "explain", "explain",
        "when v.on_lost = 'hold' then 'hold'", "when v.on_lost = 'hold' then null",
    ),
    Mutant(
        "explain does not say evidence", "explain", "explain",
        "when l.self_fencing = 0 then 'evidence'", "when l.self_fencing = 2 then 'evidence'",
    ),
    Mutant(
        "explain forgets who is held by nobody", "explain", "explain",
        "where a.status = 'claimed'", "where a.status = 'waiting'",
    ),
)  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_every_order_ends_well(sqlite_template: Path, name: str) -> None:
    found = explore(sqlite_template, VARIANTS[name], again_in=10)
    print(
        f"{name}: {len(found)} states, {found.moves} moves, {found.still} commands that did"
        f" nothing, {found.refusals} that were refused, {len(found.again)} states seen again"
    )
    assert found.failures == []
    assert found.whole
    assert (len(found), len(found.again) > 20) == (STATES[name], True)


@pytest.mark.parametrize("name", FOUND_ON)
def test_a_changed_rule_is_found(sqlite_template: Path, name: str) -> None:
    assert explore(sqlite_template, VARIANTS[FOUND_ON[name]], NAMED[name]).failures


@pytest.mark.parametrize(
    ("mutant", "on"), list(zip(SILENT, ("hold", "no fence of its own", "fail"), strict=True))
)
def test_explain_that_is_silent_is_found(sqlite_template: Path, mutant: Mutant, on: str) -> None:
    (first, *_) = explore(sqlite_template, VARIANTS[on], mutant).failures
    assert "explain says" in first


@pytest.mark.parametrize(
    ("table", "column", "on"),
    [("run", "cancel_reason", "hold"), ("step_run", "attempt_count", "retry")],
)
def test_a_key_that_is_too_coarse_is_found(
    sqlite_template: Path, monkeypatch: pytest.MonkeyPatch, table: str, column: str, on: str
) -> None:
    rows, columns = interleaving_key.TABLES[table]
    coarse = (rows, columns | {column: interleaving_key.NAME})
    monkeypatch.setitem(interleaving_key.TABLES, table, coarse)
    found = explore(sqlite_template, VARIANTS[on], again_in=5)
    assert any("two moments are one state" in failure for _, failure in found.failed)


def test_every_column_has_its_place_in_the_key(sqlite_template: Path) -> None:
    with closing(sqlite3.connect(sqlite_template)) as connection:
        tables = "select name from sqlite_schema where type = 'table' and name not like 'sqlite%'"
        found = {
            name: {row[1] for row in connection.execute(f'pragma table_info("{name}")')}
            for (name,) in connection.execute(tables)
            if name != "alembic_version"
        }
    told = {name: set(columns) for name, (_, columns) in interleaving_key.TABLES.items()}
    assert told == {name: found[name] for name in found if name not in interleaving_key.LEFT_OUT}
    assert found.keys() - told.keys() == interleaving_key.LEFT_OUT.keys()


def test_what_is_left_out_is_told(sqlite_template: Path) -> None:
    found = explore(sqlite_template, replace(Variant("fail"), tries=2), most=20)
    assert not found.whole
    assert found.failures == []
