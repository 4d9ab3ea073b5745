"""A scheduler that is KILLed anywhere between claim and last commit leaves one run a time.

`tests.dying` kills it; the long proof (tests.prove.schedules) at every statement and every row.
"""

from contextlib import closing
from itertools import islice

from tests.dying import deaths
from tests.engines import Engine
from tests.losing import Spoilt
from tests.stores import FakeClock, ServerClock

POINTS = 12  # six around the calls of a page of two triggers, and some inside of them


def test_whoever_is_killed_between_claim_and_commit_there_is_one_run(
    engine: Engine, clock: FakeClock
) -> None:
    told = list(deaths(engine, clock, step=7))
    assert [(where, wrong) for where, wrong in told if wrong] == []
    assert len(told) >= POINTS


def test_a_claim_that_outlives_its_time_is_noticed(postgres_dsn: str) -> None:
    broken = Spoilt("ql_scheduler.claim_schedule", "due_at_ms = v_now + 30000",
                    "due_at_ms = v_now + 40000")  # fmt: skip
    broken.apply(postgres_dsn)
    with closing(ServerClock(postgres_dsn)) as clock:
        told = list(islice(deaths(Engine("postgres", postgres_dsn, None), clock), 2))
    assert [bool(wrong) for _, wrong in told] == [False, True], "before the claim, and after it"
