"""What a control process counts, for Prometheus (DESIGN §7); names and labels are a promise.

Labels are `stage`, `lifecycle` and `outcome`, of which there are few: what one run, package or
trigger does is `explain`'s to say, and no label's. Counts are of this process; what is due and what
is in fault is read from the database, and so the same in every replica: take its `max`.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from qinglong_sql.schedule import SCHEDULE
from qinglong_sql.scheduler import SWEEP, Cycle
from qinglong_sql.stage import STAGES, Tally
from qinglong_sql.store import Span, Store

LIFECYCLES: Final = ("scheduler", "cancellation")
OUTCOMES: Final = ("applied", "settled", "blocked", "contended", "faulted")
ROADS: Final = (*STAGES, SWEEP, SCHEDULE)
AGENDA: Final = tuple(sorted({stage.agenda for stage in STAGES.values()}))
MOST_DUE: Final = 10_000  # rows of a stage that are counted; that many mean: at least
MOST_FAULTS: Final = 1_000
PREFIX: Final = "qinglong_sql"
DURATIONS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
LATENESS_S: Final = (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 1_800, 7_200)

# of psycopg_pool.ConnectionPool.get_stats: our name, what it says, and by what it is divided
POOL_GAUGES: Final = {
    "pool_max": ("pool_max", "Connections that the pool may have."),
    "pool_size": ("pool_connections", "Connections that the pool has."),
    "pool_available": ("pool_idle", "Connections of the pool that nobody uses."),
    "requests_waiting": ("pool_waiting", "Callers that wait for a connection."),
}
POOL_COUNTERS: Final = {
    "requests_num": ("pool_requests", "Connections that were asked for.", 1),
    "requests_queued": ("pool_queued", "Of those, the ones that had to wait.", 1),
    "requests_errors": ("pool_timeouts", "Of those, the ones that got none in time.", 1),
    "requests_wait_ms": ("pool_wait_seconds", "How long they waited.", 1_000),
    "usage_ms": ("pool_use_seconds", "For how long connections were in use.", 1_000),
    "connections_num": ("pool_connects", "Connections that were tried to be made.", 1),
    "connections_errors": ("pool_connect_errors", "Of those, the ones that failed.", 1),
    "connections_lost": ("pool_lost", "Connections that were found dead.", 1),
}


class Metrics:
    """Everything that one control process counts; any thread may tell it.

    `clock` counts seconds and never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        self._clock = clock
        self._lock = Lock()
        self._succeeded_s = dict.fromkeys(LIFECYCLES, clock())
        self._pool: dict[str, int] = {}
        self._backlog: _Backlog | None = None
        self._ready = Gauge(f"{PREFIX}_ready", "1 when /readyz is 200.", registry=registry)
        self._cycles = _counter(registry, "cycles", "Cycles that ended.", "lifecycle", "outcome")
        self._cycle_s = _histogram(registry, "cycle_seconds", "How long a cycle took.", "lifecycle")
        self._stage_s = _histogram(
            registry, "stage_seconds", "How long a stage of a cycle took.", "stage"
        )
        self._failures = _counter(
            registry, "stage_failures", "Stages that raised and so ended their cycle.", "stage"
        )
        self._candidates = _counter(
            registry, "candidates", "Runs, or triggers, that a stage looked at.", "stage"
        )
        self._outcomes = _counter(
            registry,
            "outcomes",
            "What became of them; applied ones moved, whatever else they are.",
            "stage",
            "outcome",
        )
        self._effects = _counter(
            registry, "effects", "Effects of a stage; of the schedule, the runs it began.", "stage"
        )
        self._late_s = Histogram(
            f"{PREFIX}_schedule_late_seconds",
            "How late the latest trigger of a cycle was looked at.",
            buckets=LATENESS_S,
            registry=registry,
        )
        registry.register(_Collected(self._ages))
        registry.register(_Collected(self._backlog_families))
        registry.register(_Collected(self._pool_families))
        ProcessCollector(registry=registry)
        self._begin()

    def cycle(
        self, lifecycle: str, cycle: Cycle, seconds: Mapping[str, float], failed: str | None
    ) -> None:
        """Count a cycle: what its stages did and, in seconds, how long each took.

        `failed` is the stage that raised, of which nothing is known but its time.
        """
        for stage, tally in cycle.tallies.items():
            self._count(stage, tally)
        for stage, took_s in seconds.items():
            self._stage_s.labels(stage).observe(took_s)
        self._cycle_s.labels(lifecycle).observe(sum(seconds.values()))
        if failed is not None:
            self._failures.labels(failed).inc()
            self._cycles.labels(lifecycle, "failed").inc()
            return
        self._cycles.labels(lifecycle, "applied" if cycle.applied else "idle").inc()
        with self._lock:
            self._succeeded_s[lifecycle] = self._clock()

    def fault(self, lifecycle: str) -> None:
        """Count a cycle that raised outside its stages."""
        self._cycles.labels(lifecycle, "failed").inc()

    def ready(self, reason: str | None) -> None:
        """What /readyz says: None, or the reason why not."""
        self._ready.set(reason is None)

    def pool(self, stats: Mapping[str, int]) -> None:
        """The statistics of a psycopg_pool.ConnectionPool, which counts from its own beginning."""
        with self._lock:
            self._pool = dict(stats)

    def sample(self, store: Store) -> Exception | None:
        """Ask the database what is due and what is in fault; answers what kept it from that.

        It reads views of ql_reader, by the database's clock, and costs what is due, at most
        MOST_DUE rows a stage. It is told in the next text.
        """
        found, failure = None, None
        try:
            found = _asked(store)
        except Exception as error:
            failure = error
        with self._lock:
            self._backlog = found
        return failure

    def text(self) -> bytes:
        """All of it in Prometheus' text format, version 0.0.4.

        What was sampled is told once: what is not known any more is absent, never an old value.
        """
        found = generate_latest(self.registry)
        with self._lock:
            self._backlog = None
        return found

    def _begin(self) -> None:
        """Begin every series at 0, since a rate does not see what begins at 1."""
        for lifecycle in LIFECYCLES:
            self._cycle_s.labels(lifecycle)
            for outcome in ("applied", "idle", "failed"):
                self._cycles.labels(lifecycle, outcome)
        for stage in ROADS:
            for one in (self._stage_s, self._failures, self._candidates, self._effects):
                one.labels(stage)
            for outcome in OUTCOMES:
                self._outcomes.labels(stage, outcome)

    def _count(self, stage: str, tally: Tally) -> None:
        self._candidates.labels(stage).inc(tally.scanned)
        self._effects.labels(stage).inc(tally.effects)
        for outcome in OUTCOMES:
            self._outcomes.labels(stage, outcome).inc(getattr(tally, outcome))
        if stage == SCHEDULE and tally.scanned:
            self._late_s.observe(max(0, tally.lag_ms) / 1000)

    def _ages(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            f"{PREFIX}_cycle_age_seconds",
            "How long ago a cycle ended of which no stage failed, or this process began.",
            labels=["lifecycle"],
        )
        with self._lock:
            ages = {name: self._clock() - at for name, at in self._succeeded_s.items()}
        for lifecycle, age_s in ages.items():
            family.add_metric([lifecycle], age_s)
        yield family

    def _backlog_families(self) -> Iterator[Metric]:
        with self._lock:
            found = self._backlog
        yield GaugeMetricFamily(
            f"{PREFIX}_sample_success",
            "1 when the database could be asked what is due.",
            value=found is not None,
        )
        if found is None:
            return
        for name, words, values in (
            ("due", f"Agenda rows, or triggers, that are due, up to {MOST_DUE}.", found.due),
            ("due_oldest_seconds", "How long the oldest of them has been due.", found.oldest_s),
            ("faults_open", f"Runs, or triggers, in fault, up to {MOST_FAULTS}.", found.faults),
        ):
            family = GaugeMetricFamily(f"{PREFIX}_{name}", words, labels=["stage"])
            for stage, value in values.items():
                family.add_metric([stage], value)
            yield family
        yield GaugeMetricFamily(
            f"{PREFIX}_schedule_lag_seconds",
            "How late the oldest due trigger is.",
            value=found.oldest_s[SCHEDULE],
        )

    def _pool_families(self) -> Iterator[Metric]:
        with self._lock:
            stats = self._pool
        if not stats:  # no pool yet: none of it is 0
            return
        for key, (name, words) in POOL_GAUGES.items():
            yield GaugeMetricFamily(f"{PREFIX}_{name}", words, value=stats.get(key, 0))
        for key, (name, words, unit) in POOL_COUNTERS.items():
            value = stats.get(key, 0) / unit
            yield CounterMetricFamily(f"{PREFIX}_{name}", words, value=value)


class _Collected(Collector):
    """Families that are made when somebody asks."""

    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families()


def _counter(registry: CollectorRegistry, name: str, words: str, *labels: str) -> Counter:
    return Counter(f"{PREFIX}_{name}", words, labels, registry=registry)


def _histogram(registry: CollectorRegistry, name: str, words: str, *labels: str) -> Histogram:
    return Histogram(f"{PREFIX}_{name}", words, labels, registry=registry, buckets=DURATIONS_S)


@dataclass(frozen=True, slots=True)
class _Backlog:
    """What waits in the database, by stage; of the schedule, triggers."""

    due: dict[str, int]
    oldest_s: dict[str, float]
    faults: dict[str, int]


def _asked(store: Store) -> _Backlog:
    now_ms = store.clock()
    due = Span(0, now_ms + 1)
    since = {
        stage: [
            row["due_at_ms"]
            for row in store.read(
                "agenda_state",
                stage=stage,
                due_at_ms=due,
                order="due_at_ms, run_id",
                limit=MOST_DUE,
            )
        ]
        for stage in AGENDA
    }
    # one whose time was never computed says 0: it has been due since it stands there
    since[SCHEDULE] = [
        row["due_at_ms"] or row["since_ms"]
        for row in store.read("trigger_state", due_at_ms=due, order="due_at_ms", limit=MOST_DUE)
    ]
    faults = dict.fromkeys((*AGENDA, SCHEDULE), 0)
    for row in store.read("fault_state", order="run_id, stage", limit=MOST_FAULTS):
        faults[row["stage"]] += 1
    faults[SCHEDULE] = len(store.read("schedule_blocked", waits_for="fault", limit=MOST_FAULTS))
    return _Backlog(
        {stage: len(times) for stage, times in since.items()},
        {
            stage: max(0, now_ms - min(times, default=now_ms)) / 1000
            for stage, times in since.items()
        },
        faults,
    )
