"""Logins that are members of one role each, and a life that is led through their doors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from qinglong_sql.store.steps import STEPS
from tests import acting
from tests.server import Server, dsn

GROUPS = ("admission", "scheduler", "worker", "operator", "reader")
LOGINS = (*GROUPS, "stranger")


@contextmanager
def logins_of(server: Server, url: str) -> Iterator[dict[str, str]]:
    """A DSN for each role, of a login that is a member of just that; the stranger of none."""
    database = url.rsplit("/", 1)[1]
    with psycopg.connect(url, autocommit=True) as dba:
        for role in LOGINS:
            dba.execute(f"create role login_{role} login")
            if role in GROUPS:
                dba.execute(f"grant ql_{role} to login_{role}")
        yield {role: dsn(server, database, f"login_{role}") for role in LOGINS}
        for role in LOGINS:
            dba.execute(f"drop owned by login_{role} cascade")
            dba.execute(f"drop role login_{role}")


class Doors:
    """A store in which every step is called by the login of its role, and views by the reader."""

    engine: Literal["postgres"] = "postgres"

    def __init__(self, logins: dict[str, str]) -> None:
        self.of = {
            role: psycopg.connect(logins[role], autocommit=True, row_factory=dict_row)
            for role in GROUPS
        }
        self._reader = psycopg.connect(logins["reader"], autocommit=True, row_factory=dict_row)

    def call(self, step: str, /, **params: object) -> list[dict[str, Any]]:
        one = STEPS[step]
        names = sql.SQL(", ").join(sql.SQL("{} => %s").format(sql.Identifier(p)) for p in params)
        text = sql.SQL("select * from {}.{}({})").format(
            sql.Identifier(one.schema), sql.Identifier(step), names
        )
        role = one.schema.removeprefix("ql_")
        door = self.of["operator" if role == "retention" else role]  # who purges
        return door.execute(text, list(params.values())).fetchall()

    def read(self, view: str, /, *, order: str = "", **equals: object) -> list[dict[str, Any]]:
        terms = " and ".join(f"{name} = %s" for name in equals) or "true"
        text = f"select * from ql.{view} where {terms}" + (f" order by {order}" if order else "")
        return self._reader.execute(text, list(equals.values())).fetchall()  # type: ignore[arg-type]

    def every(self) -> list[psycopg.Connection[Any]]:
        """All sessions, the one that reads for `read` too."""
        return [*self.of.values(), self._reader]

    def close(self) -> None:
        for connection in self.every():
            connection.close()


def life(store: Any, key: str) -> list[Any]:
    """A run that succeeds and one that is cancelled while it runs; what became of them."""
    acting.publish(store, {"a": [], "b": ["a"]})
    first, second = acting.start(store, key=key), acting.start(store, key=f"{key} again")
    session = {"worker": key, "session": key}
    acting.register(store, **session)
    for asked in ("drain_worker", "undrain_worker"):
        assert store.call(asked, p_worker_id=key)[0]["outcome"] == "applied"
    store.call("heartbeat_worker", p_worker_id=key, p_session_id=key)
    store.call("audit_worker", p_worker_id=key, p_route="lease", p_certificate="2a")
    store.call("purge_audit", p_before_ms=1, p_limit=1)
    for step in ("a", "b"):
        acting.page(store, "task_admission_page")
        one = acting.lease(store, f"{key} {step}", run_id=first, **session)[step]
        acting.cross(store, one)
        asked = {"p_attempt_id": one.attempt_id, "p_token": one.token}
        assert store.call("attempt_input", **asked)[0]["input"].startswith('{"input":{}')
        batch = acting.commands(one, worker_id=key)
        assert store.call("attempt_inputs", p_commands=batch)[0]["input"].startswith('{"input":{}')
        acting.renew(store, one)
        acting.report(store, one, output='{"x":1}')
        assert store.call("attempt_standing", p_commands=batch)[0]["status"] == "succeeded"
        acting.page(store, "frontier_page")
    live = acting.lease(store, f"{key} c", run_id=second, **session)["a"]
    acting.run(store, live)
    acting.cancel(store, second)
    acting.converge(store, second)
    named = {"p_attempt_id": live.attempt_id, "p_reason": "power cut", "p_actor": "ann"}
    store.call("declare_stopped", **named, p_follow=None)
    acting.converge(store, second)
    store.call("end_session", p_worker_id=key, p_session_id=key)
    assert acting.unbroken(store)
    return [
        (acting.ended(store, run_id), acting.statuses(store, run_id), acting.events(store, run_id))
        for run_id in (first, second)
    ]
