"""What /readyz and the workers' health checks ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from alembic.runtime.migration import MigrationContext

from models.blobs import PROBE, PROBE_SHA256, UploadWriter
from models.broker import ping
from models.hashing import code_version
from models.migrate import head_revision
from models.repositories import blobs as blob_rows
from models.repositories import jobs as job_rows
from models.repositories import workers as worker_rows
from models.services import Services

WORKER_SILENT_AFTER = timedelta(seconds=60)


@dataclass(frozen=True)
class Check:
    """One dependency: its name, whether it works, and a sentence."""

    name: str
    ok: bool
    detail: str


def readiness(services: Services) -> list[Check]:
    """Database, migration head, broker (1 s bound), blob store, live workers and whether they read the API's blobs.

    Never raises. Not ready unless all are ``ok``; no live worker is no fault: jobs wait for one. Without the database
    the rest is not asked: most of it needs the database too, and each would wait for it once more.
    """
    database = _guarded(services, _database)
    if not database.ok:
        return [database]
    return [database, *(_guarded(services, check) for check in (_migrations, _broker, _blobs, _workers))]


def _guarded(services: Services, check: Callable[[Services], Check]) -> Check:
    try:
        return check(services)
    except Exception as error:  # noqa: BLE001 - whatever a driver raises, the answer is "not ready"
        return Check(check.__name__.removeprefix("_"), False, f"failed: {type(error).__name__}")


def _database(services: Services) -> Check:
    with services.database.read() as session:
        session.connection().exec_driver_sql("SELECT 1")
    return Check("database", True, services.database.engine.dialect.name)


def _migrations(services: Services) -> Check:
    with services.database.read() as session:
        current = MigrationContext.configure(session.connection()).get_current_revision()
    head = head_revision(services.settings)
    same = current == head
    return Check("migrations", same, f"at {current}" if same else f"at {current}, needs {head}: run capreplay migrate")


def _broker(services: Services) -> Check:
    ping(services.settings, timeout_s=1.0)
    return Check("broker", True, "a folder" if services.settings.embedded else "answers")


def _blobs(services: Services) -> Check:
    write_probe(services)
    return Check("blobs", True, f"{services.blobs.free_bytes() // 2**20} MiB free")


def _workers(services: Services) -> Check:
    with services.database.read() as session:
        live = worker_rows.list_live(session, services.clock() - WORKER_SILENT_AFTER)
    blind = [worker.name for worker in live if worker.blob_probe_ok is False]
    if blind:
        return Check(
            "workers", False, f"{', '.join(blind)} cannot read the API's blobs: share CAPREPLAY_BLOB_DIR or _URL"
        )
    other = [worker.name for worker in live if worker.code_version != code_version()]
    note = f"; {len(other)} of another version" if other else ""
    return Check("workers", True, f"{len(live)} live{note}")


def write_probe(services: Services) -> None:
    """Stores the probe blob, once, for the workers to look for. Raises OSError where the store takes no files."""
    with services.database.read() as session:
        noted = blob_rows.exists(session, PROBE_SHA256)
    if noted and services.blobs.exists(PROBE_SHA256):
        return
    with UploadWriter(services.settings.tmp_path, len(PROBE)) as writer:
        writer.write(PROBE)
        upload = writer.finish()
        with services.database.write() as session:
            blob_rows.note_blob(session, upload.sha256, upload.bytes, services.clock())
            services.blobs.put_file(upload.path, upload.sha256)


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
    now = services.clock()
    stale_before = now - timedelta(seconds=services.settings.job_stale_s)
    with services.database.read() as session:
        oldest = job_rows.oldest_queued_at(session)
        return QueueFigures(
            jobs_by_status=job_rows.status_counts(session),
            oldest_queued_s=(now - oldest).total_seconds() if oldest else 0.0,
            stale_heartbeats=len(job_rows.list_running(session, silent_since=stale_before)),
            live_workers=len(worker_rows.list_live(session, now - WORKER_SILENT_AFTER)),
            blob_disk_free_bytes=services.blobs.free_bytes(),
        )
