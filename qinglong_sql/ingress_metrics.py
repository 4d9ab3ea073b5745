"""What an ingress counts, for Prometheus; names and labels are a promise.

No label names a worker or a run: routes, statuses and reasons are few, and known beforehand.
"""

from collections.abc import Iterator, Mapping
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
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from qinglong_sql.wire import ROUTES

PREFIX: Final = "qinglong_sql_ingress"
NO_ROUTE: Final = "none"
DOCUMENT: Final = "openapi"
SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
# why somebody was not let in or not answered
REASONS: Final = (
    "handshake", "slow_handshake", "crowded", "connections", "certificate", "revoked", "expired",
    "http", "route", "method", "media", "length", "large", "slow", "body", "busy", "contended",
    "step", "database", "stopping", "fault",
)  # fmt: skip
POOL: Final = {
    "pool_size": ("pool_connections", "Connections to the database."),
    "pool_available": ("pool_idle", "Of those, the ones that nobody uses."),
    "requests_waiting": ("pool_waiting", "Calls that wait for a connection."),
}


class IngressMetrics:
    """Everything that one ingress counts; any thread may tell it.

    With a `registry` of somebody else it adds its own to that; `text` is for an ingress alone.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry or CollectorRegistry()
        self._pool: Mapping[str, int] = {}
        self._requests = Counter(
            f"{PREFIX}_requests", "Requests that were answered.", ["route", "status"],
            registry=self.registry,
        )  # fmt: skip
        self._seconds = Histogram(
            f"{PREFIX}_request_seconds", "How long an answer took, from the request's head on.",
            ["route"], buckets=SECONDS, registry=self.registry,
        )  # fmt: skip
        self._refused = Counter(
            f"{PREFIX}_refused", "What was refused, and why.", ["reason"], registry=self.registry
        )
        self.connections = Gauge(
            f"{PREFIX}_connections", "Connections whose certificate was seen.",
            registry=self.registry,
        )  # fmt: skip
        self.handshakes = Gauge(
            f"{PREFIX}_handshakes", "Connections that have shown no certificate yet.",
            registry=self.registry,
        )  # fmt: skip
        self.in_flight = Gauge(
            f"{PREFIX}_in_flight", "Requests that are being answered.", registry=self.registry
        )
        self._log_bytes = Counter(
            f"{PREFIX}_log_bytes", "Bytes of logs that workers sent.", registry=self.registry
        )
        self._log_failures = Counter(
            f"{PREFIX}_log_failures", "Times that the folder of the logs did not take something.",
            registry=self.registry,
        )  # fmt: skip
        self.registry.register(_Collected(self._pool_families))
        if registry is None:
            self._ready = Gauge(f"{PREFIX}_ready", "1 when /readyz is 200.", registry=self.registry)
            ProcessCollector(registry=self.registry)
        for route in (*ROUTES, DOCUMENT, NO_ROUTE):  # a rate does not see what begins at 1
            self._seconds.labels(route)
            self._requests.labels(route, "200")
        for reason in REASONS:
            self._refused.labels(reason)

    def answered(self, route: str, status: int, took_s: float) -> None:
        """Count an answer."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(took_s)

    def refused(self, reason: str) -> None:
        """Count who was not let in or not answered; `reason` is one of REASONS."""
        self._refused.labels(reason).inc()

    def logged(self, octets: int) -> None:
        """Count what came of logs."""
        self._log_bytes.inc(octets)

    def log_failed(self) -> None:
        """Count what the folder of the logs did not take."""
        self._log_failures.inc()

    def pool(self, stats: Mapping[str, int]) -> None:
        """The statistics of the ingress' own psycopg_pool.ConnectionPool."""
        self._pool = dict(stats)

    def text(self, refusal: str | None) -> bytes:
        """All of it in Prometheus' text format; `refusal` is what /readyz says."""
        self._ready.set(refusal is None)
        return generate_latest(self.registry)

    def _pool_families(self) -> Iterator[Metric]:
        stats = self._pool
        for key, (name, words) in POOL.items() if stats else ():
            yield GaugeMetricFamily(f"{PREFIX}_{name}", words, value=stats.get(key, 0))


class _Collected(Collector):
    """Families that are made when somebody asks."""

    def __init__(self, families: "object") -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families()  # type: ignore[no-any-return, operator]
