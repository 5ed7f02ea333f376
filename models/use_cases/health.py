"""What /readyz and the workers' health checks ask."""

from __future__ import annotations

from dataclasses import dataclass

from models.services import Services


@dataclass(frozen=True)
class Check:
    """One dependency: its name, whether it works, and a sentence."""

    name: str
    ok: bool
    detail: str


def readiness(services: Services) -> list[Check]:
    """Database, migration head, broker (1 s bound), blob store, live workers and whether they read the API's blobs.

    Never raises. Not ready unless all are ``ok``; ``workers`` is told but is always ``ok``: requests are taken without.
    """
    raise NotImplementedError


@dataclass(frozen=True)
class QueueFigures:
    """For the metrics that page someone."""

    jobs_by_status: dict[str, int]
    oldest_queued_s: float
    stale_heartbeats: int
    live_workers: int
    blob_disk_free_bytes: int


def queue_figures(services: Services) -> QueueFigures:
    """Counts over all tenants; cheap enough for each scrape."""
    raise NotImplementedError
