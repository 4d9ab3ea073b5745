"""One rule changed in a scratch database, and the enumeration finds it.

A mutant is a textual change at one place of a decision file; a mutant that agrees with the oracle
fails the test, since then the enumeration would not notice that rule being broken either.
"""

import itertools
import sqlite3
from collections.abc import Iterator

import psycopg
import pytest

from tests.cases import combined
from tests.facts import Connection, decide, install, write
from tests.golden_decision import golden_states
from tests.mutants import NAMED, ON_POSTGRES, Mutant, changed
from tests.single_cases import singles, stale_epochs
from tests.state import State
from tests.telling import VIEWS, Answers, differences, seen, told

Asked = tuple[Connection, list[State], Answers]


def some_states() -> list[State]:
    numbers = itertools.count(1)
    golden = [state for states in golden_states(numbers).values() for state in states]
    return [*golden, *singles(numbers), *stale_epochs(numbers), *combined(numbers, every=31)]


@pytest.fixture(scope="module")
def on_sqlite() -> Iterator[Asked]:
    states = some_states()
    connection = sqlite3.connect(":memory:", isolation_level=None)
    install(connection)
    write(connection, states)
    yield connection, states, told(states)
    connection.close()


def parted(asked: Asked, mutant: Mutant | None) -> list[str]:
    connection, states, answers = asked
    decide(connection, changed(mutant) if mutant else {})
    views = (mutant.view,) if mutant else VIEWS
    return list(differences(states, answers, seen(connection, views), most=1))


def test_the_rules_themselves_agree_with_the_oracle(on_sqlite: Asked) -> None:
    assert not parted(on_sqlite, None)


@pytest.mark.parametrize("name", NAMED)
def test_a_changed_rule_is_caught(on_sqlite: Asked, name: str) -> None:
    assert parted(on_sqlite, NAMED[name])


def test_a_changed_rule_is_caught_on_postgres(empty_dsn: str) -> None:
    states = some_states()
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        install(connection)
        write(connection, states)
        asked = (connection, states, told(states))
        assert not parted(asked, None)
        for name in ON_POSTGRES:
            assert parted(asked, NAMED[name]), name
