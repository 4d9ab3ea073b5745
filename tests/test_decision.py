"""The decision views say what the oracle says, for every combination, on both engines.

DESIGN §4: both engines load the same views, so that they can be wrong together. The oracle restates
the rules from the documents; here some hundred thousand states are asked of both.
QINGLONG_ENUMERATION=quick asks every twentieth of the combinations of three steps, which is enough
for a second version of PostgreSQL.
"""

import gc
import itertools
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing

import psycopg
import pytest

from tests import golden_decision, oracle
from tests.cases import combined, random_flows
from tests.facts import Connection, clear, install, read, write
from tests.single_cases import singles, stale_epochs
from tests.state import State
from tests.telling import VIEWS, Answers, differences, seen, told

CHUNK = 4_000
QUICK = os.environ.get("QINGLONG_ENUMERATION") == "quick"
STEPS = {  # DOMAIN §3.1, with retry_wait of DESIGN §5
    "pending": "ready skipped cancelled",
    "ready": "ready waiting_approval running retry_wait failed skipped cancelled timed_out",
    "waiting_approval": "ready running cancelled timed_out",
    "running": "lost retry_wait succeeded failed cancelled timed_out",
    "retry_wait": "ready cancelled timed_out",
    "lost": "ready failed cancelled",
}
ATTEMPTS = {  # DOMAIN §3.6
    "claimed": "starting cancelled timed_out lost",
    "starting": "running succeeded failed cancelled timed_out lost",
    "running": "succeeded failed cancelled timed_out lost",
}
RUNS = {"running": "running succeeded failed cancelled timed_out"}  # DOMAIN §2.3, §3.9


def sqlite() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    install(connection)
    return connection


@pytest.fixture
def postgres(empty_dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        install(connection)
        yield connection


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """Millions of small values without a cycle among them: looking for cycles costs a fifth."""
    gc.disable()
    yield
    gc.enable()


def chunks(states: Iterable[State]) -> Iterator[list[State]]:
    rest = iter(states)
    while chunk := list(itertools.islice(rest, CHUNK)):
        yield chunk


def every_combination() -> Iterator[State]:
    numbers = itertools.count(1)
    yield from singles(numbers)
    yield from combined(numbers, every=20 if QUICK else 1)


def ask(postgres: psycopg.Connection, states: Iterable[State]) -> int:
    """Hold the views of both engines against the oracle; returns how many states were asked."""
    asked, known = 0, set[str]()
    for chunk in chunks(states):
        wanted = told(chunk)
        with closing(sqlite()) as connection:
            write(connection, chunk)
            agree("SQLite", connection, chunk, wanted)
        clear(postgres)
        write(postgres, chunk, known)
        agree("PostgreSQL", postgres, chunk, wanted)
        asked += len(chunk)
    return asked


def agree(engine: str, connection: Connection, chunk: list[State], wanted: Answers) -> None:
    parted = list(differences(chunk, wanted, seen(connection)))
    assert not parted, "\n".join([f"on {engine}:", *parted])


def test_views_equal_the_oracle_in_every_combination(
    postgres: psycopg.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ask(postgres, every_combination())
    with capsys.disabled():
        print(f" {asked:,} states", end="", flush=True)
    assert asked >= (14_000 if QUICK else 100_000)


def test_views_equal_the_oracle_on_random_flows_of_up_to_twenty_steps(
    postgres: psycopg.Connection,
) -> None:
    assert ask(postgres, random_flows(itertools.count(1), 600)) == 600


def test_dispatch_refuses_an_epoch_that_is_over(postgres: psycopg.Connection) -> None:
    states = list(stale_epochs(itertools.count(1)))
    assert not any(oracle.dispatch(state) for state in states if not state.run.cancel_reason)
    assert ask(postgres, states) == len(states)


def test_every_word_has_effects_and_every_status_is_reached() -> None:
    """An enumeration that asks nothing would agree as well."""
    effects: dict[str, set[tuple[str, str]]] = {view: set() for view in oracle.WORDS}
    numbers = itertools.count(1)
    for state in itertools.chain(singles(numbers), combined(numbers, every=40)):
        for view, word in oracle.WORDS.items():
            effects[view].update((effect[2], effect[5]) for effect in word(state))
    reached = set.union(*effects.values())
    assert all(effects.values())
    assert {to for entity, to in reached if entity == "attempt"} == {*ATTEMPTS, *ends(ATTEMPTS)}
    assert {to for entity, to in reached if entity == "step"} == {
        *STEPS,
        *ends(STEPS),
    } - {"waiting_approval"}
    assert {to for entity, to in reached if entity == "run"} == {*RUNS, *ends(RUNS)}
    assert {to for entity, to in reached if entity == "lease"} == {"leased", "released"}


def ends(machine: dict[str, str]) -> set[str]:
    return {to for targets in machine.values() for to in targets.split()} - set(machine)


def test_state_machines_are_those_of_the_documents(postgres: psycopg.Connection) -> None:
    machines = {"step": STEPS, "attempt": ATTEMPTS, "run": RUNS}
    for connection in (sqlite(), postgres):
        found = read(connection, "state_transition", "entity, from_status, to_status")
        for entity, machine in machines.items():
            wanted = {(entity, was, to) for was, many in machine.items() for to in many.split()}
            assert set(found[entity]) == wanted


def test_no_effect_leaves_the_state_machines() -> None:
    known = {
        row for rows in read(sqlite(), "state_transition", TRANSITION).values() for row in rows
    }
    numbers = itertools.count(1)
    for state in itertools.chain(singles(numbers), combined(numbers, every=40)):
        for word in oracle.WORDS.values():
            for effect in word(state):
                assert effect[4] is None or (effect[2], effect[4], effect[5]) in known, effect


TRANSITION = "entity, from_status, to_status"


def test_golden_table_is_what_the_oracle_says() -> None:
    """Read the difference; `python -m tests.golden_decision --write` accepts it."""
    assert golden_decision.PATH.read_text() == golden_decision.rendered()


def test_golden_table_is_what_the_views_say(postgres: psycopg.Connection) -> None:
    states = golden_decision.golden_states()
    assert set(states) == set(VIEWS)
    everything = [state for found in states.values() for state in found]
    assert ask(postgres, everything) == len(everything)
