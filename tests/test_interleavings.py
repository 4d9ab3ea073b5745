"""Every order of commands on one step, each try and return once (more: `scripts/prove`)."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.interleaving import Variant
from tests.mutants import NAMED
from tests.prove.interleavings import ONE_STEP, explore

SMALL = {one.name: replace(one, tries=1, returns=1) for one in ONE_STEP}


@pytest.mark.parametrize("name", ["fail", "hold"])
def test_every_order_ends_well(sqlite_template: Path, name: str) -> None:
    found = explore(sqlite_template, SMALL[name])
    print(f"{name}: {found.states} states, {found.edges} moves, {found.refusals} refusals")
    assert found.failures == []
    assert found.whole
    assert found.states > 300
    assert len(found.ends) >= 20


@pytest.mark.parametrize(
    "name",
    [
        "the frontier moves under an intent",
        "attempts are admitted under an intent",
        "a start under an intent goes through",
        "one admission a step, not an epoch",
    ],
)
def test_a_changed_rule_is_found(sqlite_template: Path, name: str) -> None:
    found = explore(sqlite_template, SMALL["fail"], NAMED[name])
    assert found.failures


def test_what_is_left_out_is_told(sqlite_template: Path) -> None:
    found = explore(sqlite_template, Variant("fail"), most=20)
    assert not found.whole
    assert found.failures == []
