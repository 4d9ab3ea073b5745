"""Plans on PostgreSQL with 200,000 finished runs present: what is done costs what is due.

Each step is called several times on due work, in one session, at three moments: in a small
database, right after it has grown (with the plans and statistics of the small one), and after
`analyze`. auto_explain shows the plan of every statement inside. That SQLite scans nothing either
is proved from its byte code by test_sqlite_store.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from qinglong_sql.canonical import canonical
from qinglong_sql.metrics import Metrics
from qinglong_sql.store import select_text
from qinglong_sql.store.postgres import PostgresStore
from qinglong_sql.store.steps import STEPS
from tests import acting, conftest, engines
from tests.acting import Held, Row
from tests.stores import ServerClock

RUNS = 200_000
CALLS = 7  # plpgsql thinks of a generic plan from the sixth on
LIMIT = 2
WAITING = 20_000
HOUR_MS = 3_600_000
FAR_MS = 4_000_000_000_000
FIXED = {"package", "worker_session", "trigger_fault"}
TRIGGERS = 20_000
CHAIN = {"a": [], "b": ["a"], "c": ["b"]}
# what a clone takes along of the run that is cloned: the rest would only take time
COPIED = {
    "run": "true",
    "run_input": "true",
    "step_run": "true",
    "step_output": "step_key = 'a'",
    "task_attempt": "number <= 2",
    "attempt_lease": "attempt_id like '%-2' or attempt_id like '%-3'",
    "attempt_offer": "attempt_id like '%-1'",
    "attempt_report": "kind = 'ended' and attempt_id like '%-2'",
    "attestation": "true",
    "run_event": "sequence = 1",
}
DEFINED = ("package_generation", "task_revision", "workflow_revision", "workflow_step",
           "workflow_ancestor")  # fmt: skip
GENERATIONS = 500
OLD = {
    "generation": "1000 * t.generation + c.g",
    "state": "'superseded'",
    "ended_at_ms": "t.published_at_ms",
    "task_id": "'ta' || left(md5(t.task_id || c.g), 24)",
    "workflow_id": "'wf' || left(md5(t.workflow_id || c.g), 24)",
}
EVERY_HOUR = {"cron": "0 * * * *", "kind": "task", "misfire": "fire_once", "overlap": "skip",
              "target": "work", "tz": "UTC"}  # fmt: skip
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
IDS = {"run_id", "attempt_id", "entity_id", "input_id", "offer_id"}


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


@dataclass(frozen=True, slots=True)
class Look:
    """One call: shared buffers that it touched, and what its plans should not have."""

    buffers: int
    faults: tuple[str, ...]


Looks = dict[str, dict[str, list[Look]]]


@dataclass(slots=True)
class Site:
    """A database, its clock, a store that prepares work, and the session that is looked at."""

    dsn: str
    clock: ServerClock
    store: PostgresStore
    watched: psycopg.Connection[Any]
    heard: list[str] = field(default_factory=list)
    table_of_index: dict[str, str] = field(default_factory=dict)
    offers: int = 0

    def call(self, step: str, **params: Any) -> tuple[Look, list[Row]]:
        """Call a step in the watched session."""
        names = STEPS[step].params
        text = sql.SQL("select * from {}.{}({})").format(
            sql.Identifier(STEPS[step].schema),
            sql.Identifier(step),
            sql.SQL(", ").join(sql.SQL("{} => %s").format(sql.Identifier(name)) for name in names),
        )
        return self.watch(text, [params[name] for name in names])

    def watch(self, text: sql.SQL | sql.Composed, values: list[Any]) -> tuple[Look, list[Row]]:
        self.heard.clear()
        with self.watched.cursor(row_factory=dict_row) as cursor:
            rows = cursor.execute(text, values).fetchall()
        plans = [json.loads(one[one.index("{") :]) for one in self.heard if "plan:" in one]
        outer = plans[-1]["Plan"]  # what is nested was told before, and is in its counts
        faults = [f for plan in plans for f in self.faults(plan["Plan"], plan["Query Text"])]
        touched = int(outer["Shared Hit Blocks"]) + int(outer["Shared Read Blocks"])
        return Look(touched, tuple(faults)), rows

    def faults(self, node: Row, text: str) -> Iterator[str]:
        """Walks from one end to the other of tables that grow."""
        table = node.get("Relation Name") or self.table_of_index.get(node.get("Index Name", ""), "")
        kind = node["Node Type"]
        whole = kind == "Seq Scan" or (
            kind in ("Index Scan", "Index Only Scan", "Bitmap Index Scan")
            and "Index Cond" not in node
        )
        if whole and table not in FIXED and node.get("Actual Loops"):
            yield f"{kind} of {table} in {' '.join(text.split())[:300]}"
        for child in node.get("Plans", ()):
            yield from self.faults(child, text)


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


def opened(dsn: str) -> Site:
    watched = psycopg.connect(dsn, autocommit=True)
    site = Site(dsn, ServerClock(dsn), PostgresStore(dsn), watched)
    watched.add_notice_handler(lambda told: site.heard.append(told.message_primary or ""))
    for text in (
        "load 'auto_explain'",
        "set log_min_messages = panic",
        "set client_min_messages = log",
        "set auto_explain.log_format = json",
        "set auto_explain.log_analyze = on",
        "set auto_explain.log_buffers = on",
        "set auto_explain.log_timing = off",
        "set auto_explain.log_nested_statements = on",
        "set auto_explain.log_min_duration = 0",
    ):
        watched.execute(text)
    listed = "select indexname, tablename from pg_indexes where schemaname = 'ql'"
    site.table_of_index = dict(watched.execute(listed).fetchall())
    flows = {
        "flow": acting.workflow(CHAIN),
        "timed": acting.workflow(CHAIN, timeout_ms=HOUR_MS),
    }
    work = acting.task(retry={"attempts": 9}, on_lost="retry")
    acting.publish_model(site.store, acting.model({"work": work}, flows))
    crons = {f"t{number:02}": EVERY_HOUR for number in range(CALLS * LIMIT)}
    site.store.call("publish_package", p_package_key="crons", p_base_dir="/srv",
                    p_manifest=canonical(acting.model({"work": work})
                                         | {"package": "crons", "triggers": crons}))  # fmt: skip
    acting.register(site.store)
    return site


def start(site: Site, target: str, key: str) -> str:
    rows = site.store.call("start_run", **started(target, key))
    return str(rows[0]["run_id"])


def started(target: str, key: str) -> Row:
    return {
        "p_package_key": "nightly",
        "p_kind": "task" if target == "work" else "workflow",
        "p_target_key": target,
        "p_run_key": key,
        "p_input": "{}",
    }


def leased(site: Site, count: int) -> list[Held]:
    """Lease the oldest attempts, in the order of the offers."""
    names = [f"o{site.offers + number}" for number in range(count)]
    site.offers += count
    rows = acting.offer_rows(site.store, names, lease_ms=300_000)
    assert len(rows) == count
    return [
        Held(row["attempt_id"], row["fence"], acting.token(row["offer_id"]), row) for row in rows
    ]


def finished_run(site: Site) -> str:
    """A run of three steps that has succeeded after a loss; its offers are named after it."""
    store, run_id = site.store, start(site, "flow", "done")
    acting.admit(store, run_id)
    lost = acting.lease(store, f"{run_id}.lost")["a"]
    acting.cross(store, lost)
    store.call("attest_attempts", p_commands=acting.commands(lost, reason="gone"))
    site.clock.advance(HOUR_MS)
    store.call("retry_run", p_run_id=run_id)
    for number in range(len(CHAIN)):
        acting.admit(store, run_id)
        held = acting.lease(store, f"{run_id}.{number}")
        acting.run(store, *held.values())
        acting.report(store, *held.values(), output='{"x":1}')
        acting.advance(store, run_id)
    assert acting.ended(store, run_id) == ("succeeded", None)
    return run_id


def grow(site: Site, done: str) -> None:
    """Copy a finished run many times over, set by set, past all rules but those of the tables."""
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")  # no foreign keys
        connection.execute("set synchronous_commit = off")
        connection.execute(
            "create temp table clone as select 'ru' || left(md5(g::text), 24) collate \"C\""
            f" as run_id from generate_series(1, {RUNS}) as g order by 1"
        )
        new = {name: f"replace(t.{name}, '{done}', c.run_id)" for name in IDS}
        for table, which in COPIED.items():
            copy(connection, table, new, "clone as c", f"t.run_id = '{done}' and {which}")
        for table in DEFINED:
            copy(connection, table, OLD, f"generate_series(1, {GENERATIONS}) as c (g)", "true")
        # some that fire in years, and more that are paused
        others = f"generate_series(1, {TRIGGERS}) as c (g)"
        state = "case c.g % 2 when 0 then 'active' else 'paused' end"
        named = {"trigger_key": "'far' || c.g", "state": state}
        times = (
            named
            | {"next_fire_at_ms": str(FAR_MS), "claim_owner": "null"}
            | {"due_at_ms": f"case c.g % 2 when 0 then {FAR_MS} end"}
        )
        first = "t.package_key = 'crons' and t.trigger_key = 't00'"
        copy(connection, "trigger", named, others, first)
        copy(connection, "trigger_schedule", times, others, first)
        count = connection.execute("select count(*) from ql.run where status <> 'running'")
        assert count.fetchone()[0] >= RUNS


def audited(site: Site) -> None:
    """As many requests that were audited as runs that have ended."""
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        connection.execute(
            "insert into ql.worker_audit (minute_ms, worker_id, route, certificate, first_at_ms)"
            " select g * 60000::bigint, 'w1', 'lease', '2a', g * 60000::bigint"
            f" from generate_series(1, {RUNS}) as g"
        )


def put_far(site: Site) -> None:
    """An agenda as long as if many runs waited for something that is not due for years."""
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        connection.execute(
            "insert into ql.agenda (run_id, stage, due_at_ms)"
            f" select r.run_id, 'deadline', {FAR_MS} from ql.run as r limit {WAITING}"
        )


def copy(connection: psycopg.Connection[Any], table: str, new: dict[str, str], clones: str,
         which: str) -> None:  # fmt: skip
    """Insert a table's rows once more for each clone, with new values in some columns."""
    listed = "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0"
    names = [name for (name,) in connection.execute(listed, [f"ql.{table}"])]
    values = ", ".join(new.get(name, f"t.{name}") for name in names)
    connection.execute(
        f"insert into ql.{table} ({', '.join(names)}) select {values} from {clones}"
        f" cross join ql.{table} as t where {which}"
    )


def measured(site: Site, tag: str) -> dict[str, list[Look]]:
    """Prepare due work of every kind, then call every step CALLS times."""
    store, many = site.store, CALLS * LIMIT
    kinds = {kind: [start(site, "flow", f"{tag}.{kind}.{n}") for n in range(many)]
             for kind in ("ended", "failed", "silent", "gone", "held", "stopping")}  # fmt: skip
    kinds = {kind: sorted(run_ids) for kind, run_ids in kinds.items()}  # as pages take them
    for run_ids in kinds.values():
        for run_id in run_ids:
            acting.admit(store, run_id)
    held = {one.row["run_id"]: one for one in leased(site, many * len(kinds))}
    of = {kind: [held[run_id] for run_id in run_ids] for kind, run_ids in kinds.items()}
    acting.run(store, *held.values())
    acting.report(store, *of["ended"], output="{}")
    acting.report(store, *of["failed"], exit_code=1)
    tasks = [start(site, "work", f"{tag}.task.{n}") for n in range(many)]
    for run_id in tasks:
        acting.admit(store, run_id)
        acting.cancel(store, run_id)
    timed = sorted(start(site, "timed", f"{tag}.timed.{n}") for n in range(many))
    site.clock.advance(HOUR_MS)
    fresh = [start(site, "flow", f"{tag}.fresh.{n}") for n in range(many)]
    for run_id in fresh:
        acting.admit(store, run_id)

    found: dict[str, list[Look]] = defaultdict(list)

    def look(step: str, **params: Any) -> list[Row]:
        seen, rows = site.call(step, **params)
        found[step].append(seen)
        return rows

    def page(step: str) -> None:
        rows = look(step, p_after_due_at_ms=-1, p_after_run_id="", p_limit=LIMIT)
        assert [row["effects"] > 0 for row in rows] == [True] * LIMIT, (step, rows)

    for n in range(CALLS):
        look("due_page", p_stage="expiry", p_after_due_at_ms=-1, p_after_run_id="", p_limit=32)
        page("frontier_page")
        page("task_admission_page")
        page("retry_page")
        page("deadline_page")
        page("settle_task_cancellations")
        look("sweep_agenda", p_after_run_id=kinds["held"][n][:-1], p_limit=32)
        look("start_run", **started("flow", f"{tag}.started.{n}"))
        look("request_cancel", p_run_id=kinds["stopping"][n], p_reason="user", p_actor="ann")
        for step, run_id in (
            ("advance_frontier", kinds["ended"][n]), ("admit_tasks", kinds["ended"][n]),
            ("retry_run", kinds["ended"][n]), ("deadline_run", timed[n]),
            ("recover_run", kinds["silent"][n]), ("converge_cancellation", kinds["stopping"][n]),
        ):  # fmt: skip
            look(step, p_run_id=run_id)
        fault = {"p_run_id": fresh[n], "p_stage": "frontier"}
        look("record_fault", **fault, p_error="poison")
        look("release_fault", **fault)
        worker(site, look)
        some = of["gone"][n * LIMIT : (n + 1) * LIMIT]
        look("attest_attempts", p_commands=acting.commands(*some, reason="gone"))
        look("declare_stopped", p_attempt_id=of["held"][n].attempt_id, p_reason="gone",
             p_actor="ann", p_follow=None)  # fmt: skip
    for n in range(CALLS):
        scheduled(site, look, tag, n)
    for row in store.read("trigger_state", package_key="crons", state="paused"):
        if row["trigger_key"].startswith("t"):
            store.call("resume_trigger", p_package_key="crons", p_trigger_key=row["trigger_key"])
    for n in range(CALLS):
        session = {"p_worker_id": f"w{tag}{n}", "p_session_id": "s1"}
        look("register_worker", **session, p_queues='["default"]', p_slots=4,
             p_self_fencing=1, p_grace_ms=2_000)  # fmt: skip
        look("heartbeat_worker", **session)
        look("drain_worker", p_worker_id=f"w{tag}{n}")
        look("undrain_worker", p_worker_id=f"w{tag}{n}")
        look("end_session", **session)
        look("audit_worker", p_worker_id="w1", p_route="lease", p_certificate=f"{tag}{n}")
        look("publish_package", p_package_key="other", p_manifest=other(tag, n), p_base_dir="/srv")
        look("withdraw_package", p_package_key="other")
    clear(site)
    for n in range(CALLS):  # cancelled by now; `a` has succeeded
        (row,) = look("start_retry", p_run_id=kinds["ended"][n], p_run_key=None)
        assert row["outcome"] == "created" and row["taken_over_count"] > 0
    clear(site)
    return found


def scheduled(site: Site, look: Callable[..., list[Row]], tag: str, n: int) -> None:
    """Two of the triggers that are due: one fires, one raises; and what an operator does."""
    rows = look("claim_schedule", p_owner="me", p_token=f"{tag}{n}", p_limit=LIMIT)
    assert len(rows) == LIMIT
    fires, raises = rows
    due_ms = fires["next_fire_at_ms"] or fires["since_ms"]
    (told,) = look(
        "commit_schedule", p_package_key="crons", p_trigger_key=fires["trigger_key"],
        p_owner="me", p_token=f"{tag}{n}", p_claim_version=fires["claim_version"],
        p_state_version=fires["state_version"], p_cursor_ms=fires["next_fire_at_ms"],
        p_due_at_ms=due_ms, p_observed_at_ms=fires["observed_at_ms"],
        p_next_at_ms=fires["observed_at_ms"] + HOUR_MS, p_grace_ms=30_000,
    )  # fmt: skip
    assert told["disposition"] == "admit"
    name = {"p_package_key": "crons", "p_trigger_key": raises["trigger_key"]}
    look("record_trigger_fault", **name, p_state_version=raises["state_version"], p_error="poison")
    look("sweep_schedule", p_limit=32)
    look("fire_trigger", **name, p_run_key=f"{tag}.{n}")
    look("pause_trigger", **name)
    look("resume_trigger", **name)
    site.store.call("pause_trigger", **name)  # out of the way until all have been looked at


def other(tag: str, n: int) -> str:
    """The manifest of a package that is published again and again, each time a little different."""
    model = acting.model({"work": acting.task(queue=f"{tag}{n}")}, {"flow": acting.workflow(CHAIN)})
    return canonical(model | {"package": "other"})


def worker(site: Site, look: Callable[..., list[Row]]) -> None:
    """What a worker does with an execution, from the lease to the report."""
    names = [f"o{site.offers + number}" for number in range(LIMIT)]
    site.offers += LIMIT
    rows = look(
        "lease_attempts", p_worker_id="w1", p_session_id="s1", p_queue="default",
        p_offers=acting.offers(names), p_lease_ms=acting.LEASE_MS, p_run_id=None,
    )  # fmt: skip
    held = [Held(row["attempt_id"], row["fence"], acting.token(row["offer_id"]), row)
            for row in rows]  # fmt: skip
    assert len(held) == LIMIT
    plain, mine = acting.commands(*held), acting.commands(*held, worker_id="w1")
    look("attempt_input", p_attempt_id=held[0].attempt_id, p_token=held[0].token)
    for step in ("attempt_inputs", "attempt_standing"):
        rows = look(step, p_commands=acting.commands(*held, worker_id="w1"))
        assert [row["outcome"] for row in rows] == ["applied"] * LIMIT
    ended = {"how": "exit", "exit_code": 0, "output": "{}", "error": None}
    for rows in (
        look("start_attempts", p_commands=acting.commands(*held, identity="pid 7")),
        look("running_attempts", p_commands=plain),
        look("renew_attempts", p_commands=mine, p_lease_ms=acting.LEASE_MS),
        look("report_attempts", p_commands=acting.commands(*held, **ended)),
    ):
        assert [row["outcome"] for row in rows] == ["applied"] * LIMIT


def clear(site: Site) -> None:
    """End all runs, so that the next moment begins with no due work."""
    site.clock.advance(HOUR_MS)
    for row in site.store.read("run_state", status="running"):
        acting.cancel(site.store, row["run_id"])
        acting.recover(site.store, row["run_id"])
        acting.converge(site.store, row["run_id"])
    first = site.store.read("agenda_state", order="due_at_ms", limit=1)
    assert [row for row in first if row["due_at_ms"] < FAR_MS] == []
    assert site.store.read("run_state", status="running") == []


def idle(site: Site) -> dict[str, list[Look]]:
    """The pages when nothing is due."""
    pages = [name for name in STEPS if name.endswith("_page") or name.startswith("settle_")]
    keys = {"p_after_due_at_ms": -1, "p_after_run_id": "", "p_limit": 32}
    claims = {"p_owner": "me", "p_limit": 32}
    site.store.call("claim_schedule", **claims, p_token="what is due")
    return {
        "claim_schedule": [
            site.call("claim_schedule", **claims, p_token=f"idle {number}")[0]
            for number in range(2)
        ]
    } | {
        name: [
            site.call(name, **keys, **({"p_stage": "expiry"} if name == "due_page" else {}))[0]
            for _ in range(2)
        ]
        for name in pages
    }


def purged(site: Site) -> dict[str, list[Look]]:
    """The purge when nothing is old enough, and then of the oldest runs."""
    found: dict[str, list[Look]] = defaultdict(list)
    for before_ms, name in ((1, "nothing"), (FAR_MS, "some")):
        for _ in range(CALLS):
            seen, rows = site.call("purge_runs", p_before_ms=before_ms, p_limit=LIMIT)
            assert len(rows) == (LIMIT if name == "some" else 0)
            found[name].append(seen)
            seen, rows = site.call("purge_audit", p_before_ms=before_ms, p_limit=LIMIT)
            assert rows == [{"purged": LIMIT if name == "some" else 0}]
            found[f"{name} of the audit"].append(seen)
    return found


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
