"""Random commands on both engines side by side, fifty scripts of forty (see tests.simulation).

And that a rule which is broken, on one engine or on both, is seen and told in a short script.
"""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qinglong_sql.store.sqlfiles import sqlite_steps
from qinglong_sql.store.sqlite import SqliteStore
from tests import engines
from tests.mutants import NAMED, changed
from tests.prove.simulation import COMMANDS, SEEDS, failure, sides, simulated, smallest
from tests.server import SQL_ROOT, Server
from tests.simulation import Command, Side, SqliteSide, parsed, replayed, shrunk
from tests.simulation_audit import audit

# rules and checks know these, nothing makes them (DESIGN §5, Statuses): approvals; a lost step that
# is tried again; a ready step that is skipped; a lease that is taken again, since what came back
# has a new attempt
RESERVED = {
    ("step", "ready", "waiting_approval"),
    ("step", "waiting_approval", "ready"),
    ("step", "waiting_approval", "running"),
    ("step", "waiting_approval", "cancelled"),
    ("step", "waiting_approval", "timed_out"),
    ("step", "lost", "ready"),
    ("step", "ready", "skipped"),
    ("lease", "released", "leased"),
}
SHORT = 15
FIRST = 50  # these fifty reach every transition


def test_both_engines_stay_equal_and_no_rule_is_broken(
    tmp_path: Path, postgres_server: Server
) -> None:
    reached: Counter[tuple[Any, ...]] = Counter()
    answered: Counter[tuple[str, str]] = Counter()
    with sides(tmp_path, postgres_server) as on:
        legal = {
            (row["entity"], row["from_status"], row["to_status"])
            for row in on[0].store.read("state_transition")
        }
        for seed in range(FIRST, FIRST + SEEDS):
            play, told = simulated(on, seed, COMMANDS)
            assert not told, failure(on, seed, play, told)
            reached.update(play.reached)
            answered.update(play.answered)
    print(f"{len(reached)} transitions with their codes, {sum(reached.values())} in all")
    assert legal - {one[:3] for one in reached} == RESERVED
    codes = {code for *_, code in reached}
    assert codes >= {
        "workflow_step_failed", "workflow_step_timed_out", "workflow_cancelled",
        "workflow_timed_out", "execution_cancelled", "execution_timed_out", "execution_failed",
        "executor_start_failed", "bad_output", "execution_stopped", "not_started",
        "claim_expired", "execution_lost", "dependency_not_succeeded", "taken_over",
    }  # fmt: skip
    assert {code for _, code in answered} >= {"QL400", "QL404", "QL410", "conflict", "existing"}


@pytest.fixture
def one_side(tmp_path: Path) -> Iterator[list[Side]]:
    """SQLite alone, with the rule of `changed_rule`: then only the oracle can know better."""
    with sides(tmp_path, None) as on:
        yield on


def template_with(folder: Path, name: str) -> Path:
    """The template of a schema with one of the mutants of tests.mutants in it."""
    root = folder / "sql"
    shutil.copytree(SQL_ROOT, root)
    for word, text in changed(NAMED[name]).items():
        (root / "decision" / f"{word}.sql").write_text(text, encoding="utf-8")
    return engines.sqlite_template(folder, root)


def first_failure(on: list[Side]) -> tuple[int, list[Command], list[str]]:
    """The first seed that fails, its script and what was wrong."""
    for seed in range(FIRST, FIRST + SEEDS):
        play, told = simulated(on, seed, COMMANDS)
        if told:
            return seed, play.played, told
    raise AssertionError("nobody saw it")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a need that runs is enough", "verdict"),
        ("the frontier moves under an intent", "verdict"),
        ("exit 0 beats the deadline", "verdict"),
    ],
)
def test_a_rule_that_is_wrong_on_every_engine_is_seen_by_the_oracle(
    tmp_path: Path, name: str, kind: str
) -> None:
    side = SqliteSide(tmp_path / "simulation.db", template_with(tmp_path, name))
    try:
        _, script, told = first_failure([side])
        assert told[0].startswith((kind, "violation")), told
        short = smallest([side], script, told)
        assert len(short) <= SHORT, "\n".join(map(str, short))
        assert replayed([side], audit, parsed("\n".join(map(str, short))))
    finally:
        side.close()


def test_a_statement_that_only_one_engine_has_wrong_is_seen(tmp_path: Path) -> None:
    """A mirror that forgets to move the expiry of a lease when it is renewed."""

    def forget(store: SqliteStore) -> None:
        steps = dict(sqlite_steps())
        renew = steps["renew_attempts"]
        kept = tuple(
            p for p in renew.parts if not p.text.lstrip().startswith("update attempt_lease")
        )
        assert len(kept) == len(renew.parts) - 1
        steps["renew_attempts"] = type(renew)(
            renew.name, renew.stage, renew.word, renew.check_code, kept
        )
        store._steps = steps

    template = engines.sqlite_template(tmp_path)
    good = SqliteSide(tmp_path / "good.db", template)
    bad = SqliteSide(tmp_path / "bad.db", template, steps=forget)
    bad.name = "forgetful"
    try:
        _, script, told = first_failure([good, bad])
        assert told[0].startswith(("rows", "answers")), told
        short = smallest([good, bad], script, told)
        assert short[-1].step == "renew_attempts"
        assert len(short) <= SHORT, "\n".join(map(str, short))
    finally:
        good.close()
        bad.close()


def test_shrinking_keeps_only_what_is_needed_and_the_times_of_the_rest() -> None:
    script = [Command(number, "step", {"p_limit": number}) for number in range(40)]

    def fails(shorter: list[Command]) -> bool:
        times, now = {}, 0
        for command in shorter:
            now += command.wait_ms
            times[command.params["p_limit"]] = now
        return times.get(7) == 28 and times.get(31) == 496

    assert [command.params["p_limit"] for command in shrunk(fails, script)] == [7, 31]


def test_a_script_is_read_back_as_it_was_written() -> None:
    script = [Command(-5, "admit_tasks", {"p_run_id": "ru"}), Command(7, "renew", {"p_x": '["é"]'})]
    assert parsed("# seed 1\n\n" + "\n".join(map(str, script))) == script
