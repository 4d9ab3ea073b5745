"""A command, or its answer, is lost between a store and PostgreSQL: repeated, it changes nothing.

`tests.proxy` loses it, `tests.losing` compares with a run without faults.
"""

from contextlib import closing

import pytest

from qinglong_sql.store.postgres import PostgresStore
from qinglong_sql.store.steps import STEPS
from tests import losing
from tests.lives import LATE
from tests.losing import Spoilt
from tests.proxy import Loss
from tests.server import Server
from tests.test_replay import LIFE


@pytest.mark.parametrize(
    ("loss", "prepare_threshold", "paged"),
    [("answer", 0, False), ("command", 5, False), ("part", None, True)],
)
def test_a_loss_is_repeated_and_changes_nothing(
    loss: Loss, prepare_threshold: int | None, paged: bool, postgres_server: Server
) -> None:
    if postgres_server.entry:  # a pgbouncer of 1.18 breaks what is prepared
        prepare_threshold = None
    told = list(losing.compared(postgres_server, loss, prepare_threshold, paged=paged))
    assert len(told) == len(LIFE) + len(LATE)
    assert [line for line in told if line] == []


def test_every_step_is_lost_once() -> None:
    assert {act.step for act in (*LIFE, *LATE)} == STEPS.keys()


# --- teeth

SPOILT = {
    "a session that registers again is a new one": Spoilt(
        "ql_worker.register_worker", "where w.session_id <> excluded.session_id", ""
    ),
    "only a new offer is answered": Spoilt(
        "ql_worker.lease_attempts",
        "where l.status = 'leased'",
        "where l.status = 'leased' and l.offer_id = any(v_offer_ids)",
    ),
    "a report that is known is refused": Spoilt(
        "ql_worker.report_attempts",
        "v_new || ql.known_reports(v_commands, v_new, 'ended')",
        "v_new",
    ),
    "what was refused is kept each time": Spoilt("ql.keep_refused", "and f.known = 0", ""),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_step_without_its_check_for_replay_is_found(name: str, postgres_server: Server) -> None:
    with closing(losing.compared(postgres_server, "answer", None, spoilt=SPOILT[name])) as told:
        assert any(line for line in told)


def test_a_page_that_blames_a_run_for_the_connection_is_found(
    postgres_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresStore, "ends_cycle", lambda *_: False)
    with closing(losing.compared(postgres_server, "answer", None, paged=True)) as told:
        assert any("swallowed" in line for line in told)
