"""What a process builds once and passes to the use cases that write: settings, database, blobs, clock."""

from __future__ import annotations

from dataclasses import dataclass

from models.blobs import BlobStore, build_blob_store
from models.broker import make_celery
from models.clock import Clock, utc_now
from models.database import Database
from models.doorbell import BackgroundDoorbell
from models.repositories import jobs
from models.settings import Settings


@dataclass(frozen=True)
class Services:
    """The process's long-lived parts."""

    settings: Settings
    database: Database
    blobs: BlobStore
    clock: Clock = utc_now


def build_services(settings: Settings, *, ring: bool = True) -> Services:
    """Database, blob store and, with ``ring``, the doorbell that tells workers of new jobs after each commit.

    Connects to nothing yet. Call ``services.database.close()`` at the end.
    """
    database = Database(settings)
    if ring:

        def mark_sent(job_ids: list[str]) -> None:
            with database.write() as session:
                jobs.mark_dispatched(session, job_ids, utc_now())

        database.doorbell = BackgroundDoorbell(make_celery(settings), mark_sent)
    return Services(settings, database, build_blob_store(settings))
