"""Prometheus metrics of one API process, in a registry of its own; served on the internal port only."""

from __future__ import annotations

from collections.abc import Iterator

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from models.services import Services
from models.use_cases.health import queue_figures

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

log = structlog.get_logger(__name__)


class _QueueCollector(Collector):
    """Reads the queue's figures from the database at each scrape."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def describe(self) -> list[Metric]:
        return []  # else registering would ask the database before there is one

    def collect(self) -> Iterator[Metric]:
        try:
            figures = queue_figures(self._services)
        except Exception:
            log.exception("queue figures cannot be read")
            yield GaugeMetricFamily("capreplay_database_up", "1 where the figures below could be read", value=0)
            return
        yield GaugeMetricFamily("capreplay_database_up", "1 where the figures below could be read", value=1)
        jobs = GaugeMetricFamily("capreplay_jobs", "Jobs by status", labels=["status"])
        for status, count in sorted(figures.jobs_by_status.items()):
            jobs.add_metric([status], count)
        yield jobs
        for name, text, value in (
            ("capreplay_oldest_queued_seconds", "Age of the oldest queued job", figures.oldest_queued_s),
            ("capreplay_stale_heartbeats", "Running jobs without a recent heartbeat", figures.stale_heartbeats),
            ("capreplay_live_workers", "Workers with a recent heartbeat", figures.live_workers),
            ("capreplay_blob_disk_free_bytes", "Room left in the blob store", figures.blob_disk_free_bytes),
        ):
            yield GaugeMetricFamily(name, text, value=float(value))


class _ProcessCollector(Collector):
    """What the process counts for itself: memory, garbage, messages sent to workers."""

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from REGISTRY.collect()


class Metrics:
    """Counters of requests and uploads, and the queue's figures."""

    def __init__(self, services: Services) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_ProcessCollector())
        self.registry.register(_QueueCollector(services))
        self._requests = Counter(
            "capreplay_http_requests", "Requests answered", ["method", "route", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "capreplay_http_request_seconds",
            "Time to the end of the answer",
            ["method", "route"],
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.upload_bytes = Counter("capreplay_upload_bytes", "Bytes of trace uploads received", registry=self.registry)

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts one answered request. ``route`` is the template, never the path."""
        known = method if method in _METHODS else "other"
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(known, route).observe(seconds)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)
