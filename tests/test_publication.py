"""Publication: a manifest becomes a generation, or is refused and leaves nothing (DESIGN §5)."""

import ast
import json
import random
from typing import Any

import pytest

from qinglong_sql import limits
from qinglong_sql.canonical import canonical, digest
from qinglong_sql.errors import Malformed, Unknown
from qinglong_sql.store import Store
from tests import acting
from tests.engines import Engine

Model = dict[str, Any]
NIGHTLY = "30 2 * * *"


@pytest.fixture(autouse=True)
def _nothing_broken(store):
    yield
    assert acting.unbroken(store)


def model(needs: dict[str, list[str]] | None = None, **changes: Any) -> Model:
    """Package `nightly`: task `work`, and workflow `flow` with these needs."""
    return {
        "package": "nightly",
        "tasks": {"work": acting.task()},
        "triggers": {},
        "workflows": {"flow": acting.workflow(needs or {"a": [], "b": ["a"]})},
    } | changes


def trigger(cron: str = NIGHTLY, tz: str = "Europe/Berlin", **changes: Any) -> Model:
    return {
        "cron": cron,
        "kind": "workflow",
        "misfire": "skip",
        "name": None,
        "overlap": "allow",
        "target": "flow",
        "tz": tz,
    } | changes


def publish(store: Store, what: Model | str, base_dir: str = "/srv/nightly") -> acting.Row:
    text = what if isinstance(what, str) else canonical(what)
    return store.call(
        "publish_package", p_package_key="nightly", p_manifest=text, p_base_dir=base_dir
    )[0]


def withdraw(store: Store) -> acting.Row:
    return store.call("withdraw_package", p_package_key="nightly")[0]


def generations(store: Store) -> list[tuple[int, str]]:
    rows = store.read("package_state", package_key="nightly", order="generation")
    return [(row["generation"], row["state"]) for row in rows]


def triggers(store: Store) -> dict[str, str]:
    return {row["trigger_key"]: row["state"] for row in store.read("trigger_state")}


def rows_of(engine: Engine, table: str) -> list[tuple[Any, ...]]:
    return [ast.literal_eval(row) for row in acting.everything(engine)[table]]


def test_the_first_publication_is_generation_one(store: Store) -> None:
    assert publish(store, model()) == {
        "package_key": "nightly",
        "generation": 1,
        "digest": digest(canonical(model())),
        "outcome": "published",
    }
    assert generations(store) == [(1, "active")]


def test_the_same_content_is_a_replay(store: Store, engine: Engine) -> None:
    first = publish(store, model())
    before = acting.everything(engine)
    assert publish(store, model()) == first | {"outcome": "existing"}
    assert acting.everything(engine) == before


def test_the_layout_of_a_manifest_is_no_content(store: Store) -> None:
    first = publish(store, model())
    turned = dict(reversed(model().items()))
    assert publish(store, json.dumps(turned, indent=2)) == first | {"outcome": "existing"}


def test_a_replay_takes_the_new_folder(store: Store) -> None:
    publish(store, model(), "/srv/old")
    publish(store, model(), "/srv/new")
    assert [row["base_dir"] for row in store.read("package_state")] == ["/srv/new"]


def test_new_content_supersedes_and_older_content_is_a_new_number(store: Store) -> None:
    publish(store, model())
    assert publish(store, model({"a": []}))["generation"] == 2
    assert generations(store) == [(1, "superseded"), (2, "active")]
    assert publish(store, model())["generation"] == 3
    assert generations(store) == [(1, "superseded"), (2, "superseded"), (3, "active")]
    assert [row["ended_at_ms"] is None for row in store.read("package_state")].count(True) == 1


def test_a_withdrawn_package_is_withdrawn_once(store: Store) -> None:
    publish(store, model())
    assert withdraw(store) == {
        "package_key": "nightly", "generation": 1, "outcome": "withdrawn",
    }  # fmt: skip
    assert withdraw(store)["outcome"] == "existing"
    assert generations(store) == [(1, "withdrawn")]
    assert publish(store, model())["generation"] == 2


def test_an_unknown_package_cannot_be_withdrawn(store: Store) -> None:
    with pytest.raises(Unknown):
        withdraw(store)


def test_targets_are_listed_by_generation(store: Store) -> None:
    flow = acting.workflow({"a": [], "b": ["a"]}, timeout_ms=5_000)
    publish(store, model(tasks={"work": acting.task(timeout_ms=900)}, workflows={"flow": flow}))
    listed = {
        row["target_key"]: (row["kind"], row["step_count"], row["timeout_ms"])
        for row in store.read("target_state", package_key="nightly", generation=1)
    }
    assert listed == {"flow": ("workflow", 2, 5_000), "work": ("task", 1, 900)}


def test_a_worker_gets_the_task_as_it_was_written(store: Store) -> None:
    odd = acting.task(env={"zoë": "x", "B": {"file": "/run/secret"}}, run=['é\u0001"\\', "\u007f"])
    publish(store, model({"a": []}, tasks={"work": odd}))
    acting.admit(store, acting.start(store))
    assert acting.lease(store)["a"].row["spec"] == canonical(odd)


def test_every_ancestor_is_stored_with_its_shortest_distance(store: Store, engine: Engine) -> None:
    chance = random.Random(7)
    keys = [f"s{number:02}" for number in range(24)]
    needs = {
        key: chance.sample(keys[:place], min(place, chance.randint(0, 3)))
        for place, key in enumerate(keys)
    }
    publish(store, model(needs))
    want = set()
    for key in keys:
        level, seen, distance = {key}, {key}, 0
        while level:
            distance += 1
            level = {need for one in level for need in needs[one]} - seen
            seen |= level
            want |= {(ancestor, key, distance) for ancestor in level}
    assert {row[1:] for row in rows_of(engine, "workflow_ancestor")} == want


def test_a_need_named_twice_counts_once(store: Store, engine: Engine) -> None:
    publish(store, model({"a": [], "b": ["a", "a"]}))
    assert {row[1]: row[3] for row in rows_of(engine, "workflow_step")} == {"a": 0, "b": 1}


def test_a_chain_of_128_steps_is_published_and_one_of_129_refused(store: Store) -> None:
    def chain(count: int) -> dict[str, list[str]]:
        return {f"s{n:03}": [f"s{n - 1:03}"] if n else [] for n in range(count)}

    assert publish(store, model(chain(128)))["generation"] == 1
    with pytest.raises(Malformed, match="129"):
        publish(store, model(chain(129)))
    assert generations(store) == [(1, "active")]


REFUSED = {
    "no JSON": "nightly",
    "no object": "[]",
    "another package": model(package="daily"),
    "no steps": model(workflows={"flow": acting.workflow({})}),
    "unknown task": model(tasks={}),
    "unknown need": model({"a": ["b"]}),
    "self need": model({"a": ["a"]}),
    "cycle": model({"a": [], "b": ["a", "d"], "c": ["b"], "d": ["c"]}),
    "unknown target": model(triggers={"n": trigger(target="nothing")}),
    "unknown kind": model(triggers={"n": trigger(kind="package")}),
    "retry of work that may not run twice": model(
        tasks={"work": acting.task(on_lost="retry", idempotent=False)}
    ),
    "65 attempts": model(tasks={"work": acting.task(retry={"attempts": 65})}),
}


@pytest.mark.parametrize("what", REFUSED.values(), ids=REFUSED)
def test_a_broken_manifest_is_refused_and_leaves_nothing(
    store: Store, engine: Engine, what: Model | str
) -> None:
    publish(store, model())
    before = acting.everything(engine)
    with pytest.raises(Malformed):
        publish(store, what)
    assert acting.everything(engine) == before


def test_triggers_follow_the_newest_generation(store: Store) -> None:
    publish(store, model(triggers={"keep": trigger(), "drop": trigger()}))
    assert triggers(store) == {"keep": "active", "drop": "active"}
    publish(store, model(triggers={"keep": trigger(misfire="fire_once")}))
    assert triggers(store) == {"keep": "active", "drop": "withdrawn"}
    kept = store.read("trigger_state", trigger_key="keep")[0]
    assert (kept["generation"], kept["misfire"]) == (2, "fire_once")
    publish(store, model(triggers={"keep": trigger(), "drop": trigger()}))
    assert triggers(store) == {"keep": "active", "drop": "active"}


def test_a_pause_outlives_a_publication(store: Store) -> None:
    publish(store, model(triggers={"n": trigger()}))
    store.call("pause_trigger", p_package_key="nightly", p_trigger_key="n")
    publish(store, model({"a": []}, triggers={"n": trigger()}))
    assert triggers(store) == {"n": "paused"}


def test_a_withdrawn_package_has_withdrawn_triggers(store: Store) -> None:
    publish(store, model(triggers={"n": trigger()}))
    withdraw(store)
    assert triggers(store) == {"n": "withdrawn"}


def test_only_another_calendar_resets_a_schedule(store: Store, engine: Engine) -> None:
    def state_version() -> int:
        (row,) = rows_of(engine, "trigger_schedule")
        return int(row[4])

    publish(store, model(triggers={"n": trigger()}))
    first = state_version()
    publish(store, model({"a": []}, triggers={"n": trigger()}))
    assert state_version() == first
    publish(store, model(triggers={"n": trigger(tz="Asia/Shanghai")}))
    assert state_version() == first + 1
    publish(store, model(triggers={"n": trigger(cron="0 3 * * *", tz="Asia/Shanghai")}))
    assert state_version() == first + 2


@pytest.mark.parametrize(
    "changes",
    [
        {"timeout_ms": 0},
        {"timeout_ms": limits.TIMEOUT_MAX_MS + 1},
        {"timeout_ms": 2**63 - 1},
        {"retry": {"backoff_ms": -1}},
        {"retry": {"max_backoff_ms": -1}},
        {"retry": {"backoff_ms": 2**62, "max_backoff_ms": 2**62}},
        {"retry": {"max_backoff_ms": limits.BACKOFF_MAX_MS + 1}},
        {"queue": ""},
        {"queue": "q" * (limits.QUEUE_CHARS + 1)},
    ],
)
def test_a_task_that_no_batch_could_carry_is_refused(
    store: Store, engine: Engine, changes: Any
) -> None:
    """A deadline that overflows would end the whole batch of starts in which it comes along."""
    before = acting.everything(engine)
    with pytest.raises(Malformed):
        acting.publish_model(store, model(tasks={"work": acting.task(**changes)}))
    assert acting.everything(engine) == before


def test_the_largest_task_is_published(store: Store) -> None:
    work = acting.task(
        timeout_ms=limits.TIMEOUT_MAX_MS,
        queue="q" * limits.QUEUE_CHARS,
        retry={"attempts": 64, "backoff_ms": 0, "max_backoff_ms": limits.BACKOFF_MAX_MS},
    )
    flow = acting.workflow({"s" * limits.KEY_CHARS: []}, timeout_ms=limits.TIMEOUT_MAX_MS)
    acting.publish_model(store, model(tasks={"work": work}, workflows={"flow": flow}))


@pytest.mark.parametrize(
    "changes",
    [
        {"workflows": {"flow": acting.workflow({"a": []}, timeout_ms=2**63 - 1)}},
        {"workflows": {"f" * (limits.KEY_CHARS + 1): acting.workflow({"a": []})}},
        {"workflows": {"flow": acting.workflow({"s" * (limits.KEY_CHARS + 1): []})}},
        {"tasks": {"work": acting.task(), "t" * (limits.TASK_KEY_CHARS + 1): acting.task()}},
        {"triggers": {"t" * (limits.KEY_CHARS + 1): trigger()}},
    ],
)
def test_keys_and_timeouts_are_bounded(store: Store, engine: Engine, changes: Model) -> None:
    before = acting.everything(engine)
    with pytest.raises(Malformed):
        acting.publish_model(store, model(**changes))
    assert acting.everything(engine) == before


@pytest.mark.parametrize(
    "key", ["", "p" * (limits.KEY_CHARS + 1), random.Random(1).randbytes(4000).hex()]
)
def test_a_package_key_is_bounded(store: Store, key: str) -> None:
    text = canonical(model() | {"package": key})
    with pytest.raises(Malformed):
        store.call("publish_package", p_package_key=key, p_manifest=text, p_base_dir="/srv")


@pytest.mark.parametrize(
    "text",
    ['{"a":1e400000}', *('{"a":' * deep + "1" + "}" * deep for deep in (3_000, 20_000))],
    ids=["huge", "deep", "deeper"],
)
def test_a_manifest_that_cannot_be_read_is_refused(store: Store, text: str) -> None:
    with pytest.raises(Malformed):
        store.call("publish_package", p_package_key="nightly", p_manifest=text, p_base_dir="/srv")
