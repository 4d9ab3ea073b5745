"""Triggers: paused and resumed by an operator. Firing them is not built yet."""

import pytest

from qinglong_sql.errors import Unknown
from tests import acting
from tests.acting import Engine, Store

NIGHTLY = {
    "cron": "30 2 * * *",
    "kind": "task",
    "misfire": "fire_once",
    "overlap": "allow",
    "target": "work",
    "tz": "Europe/Berlin",
}
NAME = {"p_package_key": "nightly", "p_trigger_key": "every-night"}


def publish(store: Store) -> None:
    model = acting.model({"work": acting.task()}) | {"triggers": {"every-night": NIGHTLY}}
    acting.publish_model(store, model)


def test_a_trigger_is_paused_and_resumed(store: Store, engine: Engine) -> None:
    publish(store)
    for step, state in (("pause_trigger", "paused"), ("resume_trigger", "active")):
        assert store.call(step, **NAME) == [{"trigger_key": "every-night", "state": state}]
        (row,) = store.read("trigger_state", package_key="nightly")
        assert row["state"] == state
        before = acting.everything(engine)
        assert store.call(step, **NAME) == [{"trigger_key": "every-night", "state": state}]
        assert acting.everything(engine) == before


def test_a_withdrawn_trigger_is_unknown(store: Store) -> None:
    publish(store)
    store.call("withdraw_package", p_package_key="nightly")
    for name in (NAME, NAME | {"p_trigger_key": "no-such"}):
        with pytest.raises(Unknown):
            store.call("resume_trigger", **name)
