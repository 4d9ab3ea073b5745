"""Plans on PostgreSQL with 200,000 finished runs present: what is done costs what is due.

Each step is called several times on due work, in one session, at three moments: in a small
database, right after it has grown (with the plans and statistics of the small one), and after
`analyze`. auto_explain shows the plan of every statement inside. That SQLite scans nothing either
is proved from its byte code by test_sqlite_files.
"""

from collections import defaultdict
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql

from qinglong_sql.metrics import Metrics
from qinglong_sql.store import select_text
from qinglong_sql.store.postgres import PostgresStore
from qinglong_sql.store.steps import STEPS
from tests import acting, conftest, engines
from tests.acting import Row
from tests.plans import FAR_MS, LIMIT, Looks, leased, opened, start
from tests.plans_calls import idle, measured, purged
from tests.plans_grown import audited, finished_run, grow, put_far

WIDE = 126
SCAN = "select count(*) from ql.run as r where r.result_code = 'x'"
# what `status` and `runs` ask of the whole database
LOOKING = {
    "open runs": "select * from ql.open_run order by admitted_at_ms, run_id limit 1001",
    "due": "select * from ql.agenda_state where stage = 'expiry' and due_at_ms >= 0"
           f" and due_at_ms < {FAR_MS} order by due_at_ms, run_id limit 1001",
    "newest runs": "select * from ql.run_state order by admitted_at_ms desc, run_id desc limit 21",
    "runs of a workflow": "select * from ql.run_state where admitted_at_ms >= 0"
                          f" and admitted_at_ms < {FAR_MS} and target_id = 'wf'"
                          " order by admitted_at_ms desc, run_id desc limit 21",
    "what workers hold": "select * from ql.worker_hold order by worker_id, attempt_id limit 1001",
}  # fmt: skip


class Asked(dict[str, str]):
    """What /metrics asks of the whole database, as text by the view and the stage."""

    def clock(self) -> int:
        return FAR_MS - 2

    def read(self, view: str, /, *, order: str = "", limit: int = 0, **equals: Any) -> list[Row]:
        columns = {*equals, *order.replace(",", " ").split()}
        text, values = select_text(view, columns, order, limit, equals)
        name = " ".join(["metrics", view, *(one for one in equals.values() if type(one) is str)])
        self[name] = f"select * from ql.{view}{text}".format(*map(repr, values))
        return []


asked = Asked()
assert Metrics().sample(asked) is None  # type: ignore[arg-type]
LOOKING |= asked


# what a call may touch: most take LIMIT runs, the sweep 32
BUFFERS = defaultdict(lambda: 800, sweep_agenda=1600)
LEVELS, SLACK = 3, 20
# once a session, a fault, a publication, a minute or a day: these may be planned at each call
SELDOM = {
    "register_worker", "end_session", "heartbeat_worker", "audit_worker", "drain_worker",
    "undrain_worker", "purge_audit", "record_fault", "release_fault", "publish_package",
    "withdraw_package", "pause_trigger", "resume_trigger", "fire_trigger", "record_trigger_fault",
    "sweep_schedule",
    "purge_runs",
}  # fmt: skip


@pytest.fixture(scope="module")
def looks(request: pytest.FixtureRequest, server_of: conftest.ServerOf) -> Looks:
    """{moment: {step: its calls}}, measured once for all tests of this file."""
    server = conftest._server(None, request.config, server_of)
    dsn = engines.fresh_postgres(server)
    try:
        # Statistics move when the test says so, and no session reads its catalogue again meanwhile.
        autovacuum(dsn, "set autovacuum = off")
        site = opened(dsn)
        done = finished_run(site)
        site.watched.execute("analyze")
        found = {"small": measured(site, "s")}
        grow(site, done)
        found["grown"] = measured(site, "g")
        put_far(site)
        audited(site)
        site.watched.execute("analyze")
        found["analysed"] = measured(site, "a")
        found["idle"] = idle(site)
        for number in range(LIMIT):
            acting.admit(site.store, start(site, "flow", f"held.{number}"))
        assert len(leased(site, LIMIT)) == len(site.store.read("worker_hold")) == LIMIT
        found["looking"] = {
            name: [site.watch(sql.SQL(text), [])[0]] for name, text in LOOKING.items()
        }
        found["scan"] = {"run": [site.watch(sql.SQL(SCAN), [])[0]]}
        found["purge"] = purged(site)
        for one in (site.store, site.watched, site.clock):
            one.close()
        return found
    finally:
        autovacuum(dsn, "reset autovacuum")
        engines.drop_postgres(server, dsn)


def autovacuum(dsn: str, words: LiteralString) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("alter system {}").format(sql.SQL(words)))
        connection.execute("select pg_reload_conf()")


def test_a_purge_costs_what_goes(looks: Looks) -> None:
    """With 200,000 runs of which all may go: two of them, and nothing of the others."""
    walks = {fault for seen in looks["purge"].values() for look in seen for fault in look.faults}
    assert walks == set()
    assert max(look.buffers for look in looks["purge"]["nothing"][1:]) < 80
    assert max(look.buffers for look in looks["purge"]["some"][1:]) < BUFFERS["purge_runs"]
    of_audit = looks["purge"]["nothing of the audit"][1:] + looks["purge"]["some of the audit"][1:]
    assert max(look.buffers for look in of_audit) < 80


def test_no_step_walks_through_a_table_that_grows(looks: Looks) -> None:
    walks = {
        step: sorted({fault for look in seen for fault in look.faults})
        for step, seen in looks["analysed"].items()
    }
    assert {step: faults for step, faults in walks.items() if faults} == {}


@pytest.mark.parametrize("moment", ["grown", "analysed"])
def test_a_call_touches_as_many_buffers_as_its_work_needs(looks: Looks, moment: str) -> None:
    touched = {
        step: (min(look.buffers for look in looks["small"][step]), [look.buffers for look in seen])
        for step, seen in looks[moment].items()
    }
    # the first call of a session reads the catalogue as well; an index grows by two levels
    over = {
        step: (small, now)
        for step, (small, now) in touched.items()
        if max(now[1:]) > min(BUFFERS[step], LEVELS * small + SLACK)
    }
    assert over == {}


def test_a_page_with_nothing_due_reads_an_empty_index(looks: Looks) -> None:
    assert {
        step: seen[1].buffers for step, seen in looks["idle"].items() if seen[1].buffers > 9
    } == {}


def test_looking_costs_what_is_open_or_shown(looks: Looks) -> None:
    found = {name: look for name, (look,) in looks["looking"].items()}
    # an index may be walked from its end, as far as the limit; what is in fault now is few
    walks = {name: [f for f in one.faults if f.startswith("Seq")] for name, one in found.items()}
    walks["metrics fault_state"] = []
    assert {name: some for name, some in walks.items() if some} == {}
    # entries of runs that have just ended stay in an index until it is vacuumed
    assert {name: one.buffers for name, one in found.items() if one.buffers > BUFFERS[name]} == {}


def test_a_walk_would_be_seen(looks: Looks) -> None:
    (look,) = looks["scan"]["run"]
    assert len(look.faults) == 1 and look.faults[0].startswith("Seq Scan of run")
    assert look.buffers > BUFFERS["run"]


def test_every_step_that_works_on_runs_is_looked_at(looks: Looks) -> None:
    looked = {*looks["analysed"], *(["purge_runs", "purge_audit"] if looks["purge"] else [])}
    assert STEPS.keys() == looked


@pytest.mark.all_versions
def test_a_step_of_a_run_is_not_planned_anew_at_each_call(postgres_dsn: str) -> None:
    """Buffers are the same either way (measured with 300,000 runs), time is half and less."""
    with psycopg.connect(postgres_dsn) as connection:
        found = connection.execute(
            "select proname from pg_proc where pronamespace::regnamespace::text ~ '^ql_'"
            " and 'plan_cache_mode=force_generic_plan' = any(proconfig)"
        ).fetchall()
    assert STEPS.keys() - {name for (name,) in found} == SELDOM


@pytest.mark.parametrize("view", ["dispatch_effect", "completion_effect"])
def test_a_decision_about_a_wide_run_grows_with_its_width(postgres_dsn: str, view: str) -> None:
    """A run is one row to a planner without statistics: no attempt may meet every input."""
    store = PostgresStore(postgres_dsn)
    run_id = acting.begun(store, {f"s{number:03}": [] for number in range(WIDE)})
    held = list(acting.lease(store, *(f"o{number}" for number in range(WIDE // 2))).values())
    acting.run(store, *held)
    acting.report(store, *held[: WIDE // 4])
    text = (
        "explain (analyze, buffers, format json)"
        " select e.* from unnest(%s::text[]) as i (run_id) cross join lateral"
        f" (select * from ql.{view} as v where v.run_id = i.run_id offset 0) as e"
    )
    with psycopg.connect(postgres_dsn) as connection:
        for name in ("seqscan", "hashjoin", "mergejoin"):
            connection.execute(f"set enable_{name} = off")  # type: ignore[arg-type]
        row = connection.execute(text, [[run_id]]).fetchone()  # type: ignore[arg-type]
    store.close()
    assert row is not None
    touched = row[0][0]["Plan"]["Shared Hit Blocks"] + row[0][0]["Plan"]["Shared Read Blocks"]
    assert touched < 30 * WIDE
