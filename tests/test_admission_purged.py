"""A run that is purged while a command of its key looks at it: the command still answers a row.

The purge is put between two statements of the command: while `ql.run` is a view, a session that is
named like a run, and reads it, waits for an advisory lock with the snapshot that it has.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

from qinglong_sql.store import open_store
from tests import acting

LOCK = 71
PAST_ALL_MS = 1 << 50
WAITING = """
  alter table ql.run rename to run_kept;
  create function ql.seen (p_run_id text) returns boolean language plpgsql volatile
  set search_path = pg_catalog, pg_temp as $$
  begin
    if current_setting('application_name') = p_run_id then
      perform pg_advisory_xact_lock_shared(71);
    end if;
    return true;
  end; $$;
  create view ql.run as select r.* from ql.run_kept as r where ql.seen(r.run_id);
  grant all on ql.run to ql_authority, ql_retention;
  alter function ql_admission.start_run set lock_timeout = '20s';
  alter function ql_admission.start_retry set lock_timeout = '20s';
"""
Hand = psycopg.Connection[Any]
Said = list[tuple[Any, ...]]


@pytest.fixture
def hand(postgres_dsn: str) -> Iterator[Hand]:
    """Publishes, starts, ends and purges; holds the lock."""
    with closing(open_store(postgres_dsn)) as store:
        acting.publish(store, {"a": []})
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(WAITING)
        connection.execute("select pg_advisory_lock(%s)", [LOCK])
        yield connection


def start(key: str) -> str:
    return f"select * from ql_admission.start_run('nightly', 'workflow', 'flow', '{key}', '{{}}')"


def answer(connection: Hand, text: str) -> Said:
    return connection.execute(text).fetchall()


def ended(hand: Hand, text: str) -> str:
    """Start a run and cancel it; its run_id."""
    ((run_id, outcome, *_),) = answer(hand, text)
    assert outcome == "created"
    end(hand, run_id)
    return str(run_id)


def end(hand: Hand, run_id: str) -> None:
    hand.execute("select ql_admission.request_cancel(%s, 'user', 'ann')", [run_id])
    hand.execute("select ql_scheduler.converge_cancellation(%s)", [run_id])


def purge(hand: Hand) -> list[str]:
    return [row[0] for row in answer(hand, f"select ql_retention.purge_runs({PAST_ALL_MS}, 1)")]


def until_it_waits(hand: Hand, run_id: str, event: str) -> None:
    text = "select 1 from pg_stat_activity where application_name = %s and wait_event = %s"
    limit = time.monotonic() + 20
    while not hand.execute(text, [run_id, event]).fetchone():
        assert time.monotonic() < limit, f"it does not wait for {event}"
        time.sleep(0.005)


def looking(dsn: str, hand: Hand, run_id: str, text: str, meanwhile: Callable[[], object]) -> Said:
    """What a command answers, when something happens between its first look at a run and the next.

    What happens first waits for the command to look; the lock is let go after it.
    """
    named = {"autocommit": True, "application_name": run_id}
    with psycopg.connect(dsn, **named) as session, ThreadPoolExecutor(1) as pool:  # type: ignore[arg-type]
        said = pool.submit(answer, session, text)
        meanwhile()
        hand.execute("select pg_advisory_unlock(%s)", [LOCK])
        return said.result(30)


def test_a_run_that_is_purged_while_its_key_is_started_again(postgres_dsn: str, hand: Hand) -> None:
    run_id = ended(hand, start("one"))

    def gone() -> None:
        until_it_waits(hand, run_id, "advisory")
        assert purge(hand) == [run_id]

    ((found, outcome, *_),) = looking(postgres_dsn, hand, run_id, start("one"), gone)
    assert (found, outcome) == (run_id, "existing")  # as it was when it looked


def test_a_run_that_another_session_starts_and_purges_meanwhile(
    postgres_dsn: str, hand: Hand
) -> None:
    """The insert waits for the other's, and gives way to it; then that one is gone."""
    with psycopg.connect(postgres_dsn) as other:
        ((run_id, *_),) = answer(other, start("one"))

        def gone() -> None:
            until_it_waits(hand, run_id, "transactionid")
            other.commit()
            until_it_waits(hand, run_id, "advisory")
            end(hand, run_id)
            assert purge(hand) == [run_id]

        ((found, outcome, *_),) = looking(postgres_dsn, hand, run_id, start("one"), gone)
    assert (found, outcome) == (run_id, "existing")


@pytest.mark.parametrize("key", ["null", "'again'"])
def test_a_retry_that_is_purged_while_it_is_asked_for_again(
    postgres_dsn: str, hand: Hand, key: str
) -> None:
    old = ended(hand, start("one"))
    retry = f"select * from ql_admission.start_retry('{old}', {key})"
    new = ended(hand, retry)

    def gone() -> None:
        until_it_waits(hand, new, "advisory")
        with psycopg.connect(postgres_dsn) as keeper:  # the retried run, which ended first, stays
            keeper.execute("select from ql.run where run_id = %s for key share", [old])
            assert purge(hand) == [new]

    ((found, outcome, *_),) = looking(postgres_dsn, hand, new, retry, gone)
    assert (found, outcome) == (new, "created")


def test_a_target_that_is_not_there_is_said(hand: Hand) -> None:
    with pytest.raises(psycopg.Error, match="no workflow other in package nightly") as raised:
        answer(hand, start("one").replace("'flow'", "'other'"))
    assert raised.value.sqlstate == "QL404"
