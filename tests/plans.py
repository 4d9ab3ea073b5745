"""A session whose plans are looked at by auto_explain, and how work is made due for it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from qinglong_sql.canonical import canonical
from qinglong_sql.store.postgres import PostgresStore
from qinglong_sql.store.steps import STEPS
from tests import acting
from tests.acting import Held, Row
from tests.stores import ServerClock

CALLS = 7  # plpgsql thinks of a generic plan from the sixth on
LIMIT = 2
HOUR_MS = 3_600_000
FAR_MS = 4_000_000_000_000
FIXED = {"package", "worker_session", "trigger_fault"}
CHAIN = {"a": [], "b": ["a"], "c": ["b"]}
EVERY_HOUR = {"cron": "0 * * * *", "kind": "task", "misfire": "fire_once", "overlap": "skip",
              "target": "work", "tz": "UTC"}  # fmt: skip


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
