"""What a control process counts: names and labels are a promise, numbers are what was (DESIGN §7).

`tests/golden/metrics.txt` is the promise; after a change on purpose,
`python -m tests.test_metrics` writes it anew; with `--text` it prints what Prometheus would read.
"""

import re
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from qinglong_sql.clock_watch import wall_ms
from qinglong_sql.ingress_metrics import IngressMetrics
from qinglong_sql.metrics import AGENDA, MOST_DUE, OUTCOMES, PREFIX, Metrics
from qinglong_sql.schedule import run_schedule
from qinglong_sql.scheduler import Cycle, StageFailed, Turn, cancellation_cycle, scheduler_cycle
from qinglong_sql.stage import STAGES, Tally
from qinglong_sql.store import Store
from qinglong_sql.store.postgres import PostgresStore
from tests import acting
from tests.engines import Engine
from tests.stores import DAWN_MS, FakeClock

GOLDEN = Path(__file__).parent / "golden" / "metrics.txt"
ROOT = Path(__file__).parents[1]
RULES = ROOT / "scripts" / "deploy" / "qinglong-sql.rules.yaml"
SECOND_MS, MINUTE_MS = 1_000, 60_000
LABELS = {"stage", "lifecycle", "outcome"}
# as psycopg_pool tells it; what is 0 it leaves out
POOL = {
    "pool_min": 4, "pool_max": 4, "pool_size": 4, "pool_available": 1, "requests_waiting": 2,
    "requests_num": 70, "requests_queued": 9, "requests_wait_ms": 1_500, "requests_errors": 1,
    "usage_ms": 12_345, "connections_num": 6, "connections_ms": 90, "connections_errors": 3,
    "connections_lost": 2, "returns_bad": 1,
}  # fmt: skip
EMPTY = Cycle({}, Turn())

Found = dict[tuple[str, ...], float]


class Idle:
    """A database in which nothing waits."""

    def clock(self) -> int:
        return DAWN_MS

    def read(self, view: str, /, **_: object) -> list[acting.Row]:
        return []


class Gone(Idle):
    def clock(self) -> int:
        raise psycopg.OperationalError("gone")


def values(metrics: Metrics) -> Found:
    """Every sample by its name without the prefix and its labels' values, in order of the names."""
    return {
        (one.name.removeprefix(f"{PREFIX}_"), *(one.labels[key] for key in sorted(one.labels))): (
            one.value
        )
        for family in text_string_to_metric_families(metrics.text().decode())
        for one in family.samples
    }


def whole() -> Metrics:
    """One that has been told of everything that there is."""
    metrics = Metrics()
    metrics.ready(None)
    metrics.pool(POOL)
    assert metrics.sample(Idle()) is None  # type: ignore[arg-type]
    return metrics


def door() -> IngressMetrics:
    """The same of an ingress that stands alone."""
    metrics = IngressMetrics()
    metrics.pool(POOL)
    return metrics


def promised() -> str:
    """A line a family: its type, its name, and its labels with all their values."""
    lines = set()
    for family in (*whole().registry.collect(), *door().registry.collect()):
        labels: dict[str, set[str]] = {}
        for sample in family.samples:
            for key, value in sample.labels.items():
                labels.setdefault(key, set()).add(value)
        labels.pop("le", None)
        told = "; ".join(f"{key}: {' '.join(sorted(labels[key]))}" for key in sorted(labels))
        name = family.name + ("_total" if family.type == "counter" else "")
        lines.add(f"{family.type:<9} {name}{f' {{{told}}}' if told else ''}")
    return "\n".join(sorted(lines, key=lambda line: line.split()[1])) + "\n"


def own(text: str) -> str:
    """Without what prometheus_client tells of any process."""
    return "".join(line for line in text.splitlines(True) if f"{PREFIX}_ingress" in line)


def test_names_and_labels_are_as_promised() -> None:
    assert promised() == GOLDEN.read_text(encoding="utf-8")


def test_no_label_is_of_one_run_package_or_trigger(store: Store, clock: FakeClock) -> None:
    """Whatever happens there is no series that was not there before, so none ever piles up."""
    metrics = whole()
    before = values(metrics).keys()
    clock.set(wall_ms() - 10 * MINUTE_MS)
    busy(store, metrics)
    assert metrics.sample(store) is None
    after = values(metrics)
    assert after.keys() == before
    assert after["faults_open", "schedule"] == 1, "the poisoned trigger"
    found = {label for family in metrics.registry.collect() for one in family.samples
             for label in one.labels}  # fmt: skip
    assert found - {"le"} == LABELS


def busy(store: Store, metrics: Metrics) -> None:
    """Publish, start, fire and cancel, with cycles of both lifecycles that are counted."""
    every = {"cron": "* * * * *", "kind": "task", "misfire": "fire_once", "overlap": "allow",
             "target": "work", "tz": "UTC"}  # fmt: skip
    model = acting.model({"work": acting.task()}, {"flow": acting.workflow({"a": [], "b": ["a"]})})
    poison = every | {"cron": "no cron at all"}
    acting.publish_model(store, model | {"triggers": {"every": every, "poison": poison}})
    runs = [acting.start(store, key=str(number)) for number in range(5)]
    acting.cancel(store, runs[0])
    acting.cancel(store, acting.start(store, "task", "alone"))
    for lifecycle, coordinator in (
        ("scheduler", scheduler_cycle), ("cancellation", cancellation_cycle),
    ):  # fmt: skip
        cycle = coordinator(store, Turn())
        metrics.cycle(lifecycle, cycle, cycle.seconds, None)


def test_a_cycle_is_counted_as_it_was(store: Store) -> None:
    metrics = Metrics()
    busy(store, metrics)
    found = values(metrics)
    assert found["candidates_total", "schedule"] == 2
    assert found["outcomes_total", "applied", "schedule"] == 1
    assert found["outcomes_total", "faulted", "schedule"] == 1
    assert found["candidates_total", "sweep"] == 6
    assert found["candidates_total", "task_admission"] == 4
    assert found["outcomes_total", "applied", "task_admission"] == 4
    assert found["effects_total", "task_admission"] == 4
    roads = [found["candidates_total", f"{road}cancellation"] for road in ("", "task_")]
    assert (
        sum(roads)
        == 2
        == sum(found["outcomes_total", "applied", f"{road}cancellation"] for road in ("", "task_"))
    )
    assert found["cycles_total", "scheduler", "applied"] == 1
    assert found["cycles_total", "cancellation", "applied"] == 1
    for stage in (*STAGES, "sweep", "schedule"):
        assert found["stage_seconds_count", stage] == 1
        assert 0 < found["stage_seconds_sum", stage] < 10
    stages = ("expiry", "retry", "sweep", "schedule", "frontier", "task_admission")
    took = sum(found["stage_seconds_sum", stage] for stage in stages)
    assert found["cycle_seconds_sum", "scheduler"] == pytest.approx(took)
    assert found["cycle_seconds_count", "cancellation"] == 1


def test_every_number_of_a_tally_has_its_place() -> None:
    metrics = Metrics()
    tally = Tally(scanned=21, applied=1, settled=2, blocked=3, contended=4, faulted=5, effects=6)
    for _ in range(2):
        metrics.cycle("scheduler", Cycle({"frontier": tally}, Turn()), {}, None)
    found = values(metrics)
    assert found["candidates_total", "frontier"] == 42 and found["effects_total", "frontier"] == 12
    counts = [found["outcomes_total", outcome, "frontier"] for outcome in OUTCOMES]
    assert counts == [2, 4, 6, 8, 10]
    assert sum(found[key] for key in found if key[0] == "outcomes_total") == 30


def test_an_idle_cycle_and_a_failed_one_are_told_apart() -> None:
    now = [100.0]
    metrics = Metrics(clock=lambda: now[0])
    now[0] += 7
    metrics.cycle("scheduler", EMPTY, {"expiry": 0.5}, None)
    now[0] += 2
    metrics.cycle("scheduler", EMPTY, {"expiry": 0.25, "retry": 3.0}, "retry")
    metrics.fault("cancellation")
    now[0] += 1
    found = values(metrics)
    assert found["cycles_total", "scheduler", "idle"] == 1
    assert found["cycles_total", "scheduler", "failed"] == 1
    assert found["cycles_total", "scheduler", "applied"] == 0
    assert found["cycles_total", "cancellation", "failed"] == 1
    assert found["stage_failures_total", "retry"] == 1
    assert found["stage_failures_total", "expiry"] == 0
    assert found["stage_seconds_sum", "retry"] == 3
    assert found["cycle_seconds_sum", "scheduler"] == 3.75
    assert found["cycle_age_seconds", "scheduler"] == 3, "a failed one is none"
    assert found["cycle_age_seconds", "cancellation"] == 10, "since this process began"


def test_how_late_triggers_were_looked_at_is_a_histogram() -> None:
    metrics = Metrics()
    for lag_ms, scanned in ((2_500, 3), (0, 0), (-4, 1)):
        tally = Tally(scanned=scanned, lag_ms=lag_ms)
        metrics.cycle("scheduler", Cycle({"schedule": tally}, Turn()), {}, None)
    found = values(metrics)
    assert found["schedule_late_seconds_count",] == 2
    assert found["schedule_late_seconds_sum",] == 2.5
    assert found["schedule_late_seconds_bucket", "2.0"] == 1
    assert found["schedule_late_seconds_bucket", "5.0"] == 2


def test_the_pool_is_told_in_seconds_and_only_when_there_is_one() -> None:
    metrics = Metrics()
    assert not [key for key in values(metrics) if key[0].startswith("pool")]
    metrics.pool(POOL)
    found = {key[0]: value for key, value in values(metrics).items() if key[0].startswith("pool")}
    assert found == {
        "pool_max": 4, "pool_connections": 4, "pool_idle": 1, "pool_waiting": 2,
        "pool_requests_total": 70, "pool_queued_total": 9, "pool_timeouts_total": 1,
        "pool_wait_seconds_total": 1.5, "pool_use_seconds_total": 12.345,
        "pool_connects_total": 6, "pool_connect_errors_total": 3, "pool_lost_total": 2,
    }  # fmt: skip
    metrics.pool({"pool_max": 4, "pool_size": 4, "pool_available": 4})
    assert values(metrics)["pool_waiting",] == 0


def test_what_waits_is_counted_by_stage_and_the_oldest_has_an_age(
    store: Store, clock: FakeClock
) -> None:
    metrics, now_ms = Metrics(), wall_ms()
    clock.set(now_ms - 90 * SECOND_MS)
    acting.publish(store, {"a": []}, run_timeout_ms=60 * SECOND_MS)
    acting.start(store, key="first")
    clock.advance(50 * SECOND_MS)
    for key in ("second", "third"):
        acting.start(store, key=key)
    clock.set(now_ms)
    assert metrics.sample(store) is None
    found = values(metrics)
    assert found["sample_success",] == 1
    due = {stage: found["due", stage] for stage in (*AGENDA, "schedule")}
    nothing = dict.fromkeys(due, 0)
    assert due == nothing | {"task_admission": 3, "deadline": 1}
    age = {stage: found["due_oldest_seconds", stage] for stage in due}
    assert age.pop("task_admission") == pytest.approx(90, abs=20)
    assert age.pop("deadline") == pytest.approx(30, abs=20)
    assert set(age.values()) == {0} and found["schedule_lag_seconds",] == 0
    assert {found["faults_open", stage] for stage in nothing} == {0}


def test_the_lag_is_that_of_the_oldest_due_trigger(store: Store, clock: FakeClock) -> None:
    metrics, now_ms = Metrics(), wall_ms() // MINUTE_MS * MINUTE_MS
    every = {"cron": "* * * * *", "kind": "task", "misfire": "fire_once", "overlap": "allow",
             "target": "work", "tz": "UTC"}  # fmt: skip
    triggers = {"every": every, "paused": every, "seldom": every | {"cron": "0 0 29 2 *"}}
    clock.set(now_ms - 5 * MINUTE_MS + 1)
    model = acting.model({"work": acting.task()})
    acting.publish_model(store, model | {"triggers": triggers})
    store.call("pause_trigger", p_package_key="nightly", p_trigger_key="paused")
    # one that was never looked at is late since it was published
    for lag_s, count in ((300, 2), (240, 1)):
        clock.set(now_ms)
        assert metrics.sample(store) is None
        found = values(metrics)
        assert found["schedule_lag_seconds",] == pytest.approx(lag_s + 30, abs=31 + 20)
        assert found["schedule_lag_seconds",] == found["due_oldest_seconds", "schedule"]
        assert found["due", "schedule"] == count
        clock.set(now_ms - 5 * MINUTE_MS + 2)
        run_schedule(store)


def test_a_candidate_that_raises_is_seen_in_explain_and_metrics(
    store: Store, clock: FakeClock, engine: Engine
) -> None:
    metrics = Metrics()
    clock.set(wall_ms() + 30 * SECOND_MS)
    acting.publish(store, {"a": []})
    bad, good = acting.start(store, key="bad"), acting.start(store, key="good")
    poisoned(engine, bad)
    cycle = scheduler_cycle(store, Turn())
    metrics.cycle("scheduler", cycle, cycle.seconds, None)
    assert metrics.sample(store) is None
    found = values(metrics)
    assert found["outcomes_total", "faulted", "task_admission"] == 1
    assert found["outcomes_total", "applied", "task_admission"] == 1
    assert found["faults_open", "task_admission"] == 1
    assert found["due", "task_admission"] == 0, "it waits for its next try"
    (row,) = [one for one in store.read("explain", run_id=bad) if one["waits_for"] == "fault"]
    assert "poison" in row["waits_on"] + row["resolved_by"]
    assert not [one for one in store.read("explain", run_id=good) if one["waits_for"] == "fault"]


def poisoned(engine: Engine, run_id: str) -> None:
    """Let any attempt of one run raise."""
    if engine.kind == "sqlite":
        with closing(sqlite3.connect(engine.dsn.removeprefix("sqlite:///"))) as connection:
            connection.execute(
                "create trigger poison before insert on task_attempt"
                f" when new.run_id = '{run_id}' begin select raise(abort, 'poison'); end"
            )
            connection.commit()
        return
    with psycopg.connect(engine.dsn, autocommit=True) as connection:
        connection.execute(
            "create function ql.poison () returns trigger language plpgsql as"
            " $$ begin raise exception 'poison'; end $$;"
            " create trigger poison before insert on ql.task_attempt for each row"
            f" when (new.run_id = '{run_id}') execute function ql.poison()"  # type: ignore[arg-type]
        )


def test_what_cannot_be_asked_is_absent_and_no_old_value() -> None:
    metrics = Metrics()
    backlog = {"due", "due_oldest_seconds", "faults_open", "schedule_lag_seconds"}

    def told() -> set[str]:
        return backlog & {key[0] for key in values(metrics)}

    assert told() == set()
    assert metrics.sample(Idle()) is None  # type: ignore[arg-type]
    assert told() == backlog
    assert told() == set(), "nobody has looked since"
    assert metrics.sample(Idle()) is None  # type: ignore[arg-type]
    failure = metrics.sample(Gone())  # type: ignore[arg-type]
    assert isinstance(failure, psycopg.OperationalError)
    found = values(metrics)
    assert found["sample_success",] == 0 and not backlog & {key[0] for key in found}


def test_a_stage_is_counted_up_to_a_bound() -> None:
    """A backlog of any length costs no more; and each stage is asked in the order of its index."""
    asked: list[tuple[str, int, str]] = []

    class Watched(Idle):
        def read(self, view: str, /, **how: object) -> list[acting.Row]:
            asked.append((view, int(str(how["limit"])), str(how.get("order", ""))))
            return []

    assert Metrics().sample(Watched()) is None  # type: ignore[arg-type]
    assert sorted(set(asked)) == [
        ("agenda_state", MOST_DUE, "due_at_ms, run_id"),
        ("fault_state", 1_000, "run_id, stage"),
        ("schedule_blocked", 1_000, ""),
        ("trigger_state", MOST_DUE, "due_at_ms"),
    ]
    assert len(asked) == len(AGENDA) + 3


def test_a_reader_may_ask_all_of_it(postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute("create role onlooker login in role ql_reader")
        try:
            dsn = psycopg.conninfo.make_conninfo(postgres_dsn, user="onlooker")
            store = PostgresStore(dsn)
            assert abs(store.clock() - wall_ms()) < MINUTE_MS
            failure = Metrics().sample(store)
            store.close()
            assert failure is None
        finally:
            connection.execute("drop role onlooker")


def test_many_threads_may_tell_at_once() -> None:
    metrics = whole()
    tally = Tally(scanned=1, applied=1, effects=1)

    def tell(lifecycle: str) -> Callable[[], None]:
        def work() -> None:
            for _ in range(200):
                metrics.cycle(lifecycle, Cycle({"frontier": tally}, Turn()), {"frontier": 1}, None)
                metrics.pool(POOL)
                metrics.sample(Idle())  # type: ignore[arg-type]
            metrics.text()

        return work

    threads = [threading.Thread(target=tell(name)) for name in ("scheduler", "cancellation") * 2]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    found = values(metrics)
    assert found["candidates_total", "frontier"] == found["stage_seconds_sum", "frontier"] == 800
    assert found["cycles_total", "scheduler", "applied"] == 400


def test_two_processes_in_one_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.cycle("scheduler", EMPTY, {}, None)
    assert values(one)["cycles_total", "scheduler", "idle"] == 1
    assert values(other)["cycles_total", "scheduler", "idle"] == 0


class Failing(Idle):
    """Nothing is due, each page takes a while, and the sweep raises."""

    def call(self, step: str, /, **_: object) -> list[acting.Row]:
        if step == "sweep_agenda":
            raise ConnectionError("gone")
        return []

    def page(self, *_: object) -> list[acting.Row]:
        time.sleep(0.05)
        return []


def test_a_stage_that_raises_has_its_time_too() -> None:
    with pytest.raises(StageFailed) as raised:
        scheduler_cycle(Failing(), Turn())  # type: ignore[arg-type]
    cycle = raised.value.cycle
    assert list(cycle.tallies) == ["expiry", "retry"]
    assert list(cycle.seconds) == ["expiry", "retry", "sweep"]
    assert (
        0 <= cycle.seconds["sweep"] < 0.05 <= min(cycle.seconds["expiry"], cycle.seconds["retry"])
    )


def test_every_metric_of_the_alerts_is_one_of_ours() -> None:
    ours = set(re.findall(rf"\b{PREFIX}_\w+", promised()))
    named = set(re.findall(rf"\b{PREFIX}_\w+", RULES.read_text(encoding="utf-8")))
    assert len(named) >= 7
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in named} <= ours


if __name__ == "__main__":
    if "--text" in sys.argv:
        print(whole().text().decode() + own(door().text(None).decode()), end="")
    else:
        GOLDEN.write_text(promised(), encoding="utf-8")
