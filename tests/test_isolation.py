"""Two sessions that touch one run, in named orders: tests/isolation/*.spec, one golden for all."""

import os

import pytest

from tests import isolating
from tests.server import Server


@pytest.mark.parametrize("name", isolating.specs())
def test_one_wins_and_the_other_hears_so(postgres_server: Server, name: str) -> None:
    program = isolating.tester()
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail(isolating.WAY)
        pytest.skip(isolating.WAY)
    said = isolating.told_on(postgres_server, program, name)
    assert "deadlock" not in said
    assert "VIOLATED" not in said
    assert said == isolating.golden(name).read_text(encoding="utf-8")
