"""What beat asks for, or in embedded mode a thread: dispatch, reap, schedules, sweep. All may run twice at once."""

from __future__ import annotations

import shutil
import time
from datetime import datetime, timedelta
from pathlib import Path

import celery
import structlog
from prometheus_client import Counter

from models import jobs
from models.broker import count_messages
from models.doorbell import send_all
from models.repositories import blobs as blob_rows
from models.repositories import jobs as job_rows
from models.repositories import tenancy
from models.repositories import workers as worker_rows
from models.services import Services
from models.use_cases import schedules, traces

log = structlog.get_logger(__name__)
REAPED = Counter("capreplay_jobs_reaped_total", "Jobs taken from silent runners", ["outcome"])
FORGET_WORKERS_AFTER = timedelta(days=1)


def dispatch(services: Services, app: celery.Celery) -> int:
    """Sends the messages of queued jobs that were never sent, or that nobody claimed for a while; how many.

    What was sent before is sent again only while the broker holds fewer messages than jobs wait for theirs: behind a
    long queue, or without any worker, nothing piles up.
    """
    now = services.clock()
    with services.database.read() as session:
        waiting = job_rows.list_undispatched(session, now, services.settings.job_redispatch_s)
        were_sent = job_rows.count_dispatched(session) if any(again for _, again in waiting) else None
    if were_sent is not None and count_messages(app, jobs.QUEUE) >= were_sent:
        waiting = [(job_id, again) for job_id, again in waiting if not again]
    if not waiting:
        return 0
    sent = send_all(app, [(job_id, jobs.QUEUE) for job_id, _ in waiting])
    if sent:
        with services.database.write() as session:
            job_rows.mark_dispatched(session, sent, now)
    log.info("dispatcher.sent", jobs=len(sent), waiting=len(waiting))
    return len(sent)


def reap(services: Services, *, dead_worker: str | None = None) -> int:
    """Takes jobs from runners that have been silent for too long, or from a worker that is known dead; how many."""
    now = services.clock()
    stale_before = now - timedelta(seconds=0.0 if dead_worker else services.settings.job_stale_s)
    with services.database.read() as session:
        held = job_rows.list_running(session, silent_since=stale_before, claimed_by=dead_worker)
        silent = [job.id for job in held]
    taken = 0
    for job_id in silent:
        with services.database.write() as session:
            outcome = jobs.reap(session, job_id, stale_before, services.settings, now)
        if outcome is not None:
            taken += 1
            REAPED.labels(outcome).inc()
            log.warning("reaper.took", job_id=job_id, outcome=outcome)
    return taken


def run_schedules(services: Services) -> int:
    """Starts the runs of all schedules that are due; how many."""
    return schedules.run_due(services)


def sweep(services: Services) -> int:
    """Deletes unused blobs, abandoned temporary files, forgotten workers and old Idempotency-Keys; how many blobs."""
    now, settings = services.clock(), services.settings
    before = now - timedelta(seconds=settings.blob_grace_s)
    with services.database.read() as session:
        unused = blob_rows.list_unused(session, before)
    deleted = 0
    for sha256 in unused:
        with services.database.write() as session:
            if blob_rows.delete_if_unused(session, sha256, before):
                services.blobs.delete(sha256)  # within the transaction: who stores it again waits for the row
                deleted += 1
    deleted += _sweep_uploads(services, before)
    deleted += _sweep_orphans(services)
    with services.database.write() as session:
        tenancy.delete_old_idempotency_keys(session, now - timedelta(seconds=settings.idempotency_ttl_s))
        worker_rows.remove_silent(session, now - FORGET_WORKERS_AFTER)
    abandoned = _sweep_folder(settings.tmp_path, settings.tmp_grace_s)
    abandoned += _sweep_folder(settings.partial_path, settings.partial_upload_ttl_s)
    if deleted or abandoned:
        log.info("sweeper.deleted", blobs=deleted, temporary=abandoned)
    return deleted


def _sweep_uploads(services: Services, before: datetime) -> int:
    """Files of uploads that were read, or never will be: what an ingest could not delete by itself."""
    if services.settings.keep_uploads:
        return 0
    with services.database.read() as session:
        uploads = blob_rows.list_read_uploads(session, before)
    return sum(traces.delete_upload(services, sha256) for sha256 in uploads)


def _sweep_orphans(services: Services) -> int:
    """Files of the store that no row names: left by a transaction that failed after it had stored one."""
    deleted = 0
    for sha256 in list(services.blobs.list_older(max(services.settings.blob_grace_s, 60.0))):
        with services.database.read() as session:
            if blob_rows.exists(session, sha256):
                continue
        with services.database.write() as session:  # again: it may have been stored meanwhile
            if not blob_rows.exists(session, sha256):
                services.blobs.delete(sha256)
                deleted += 1
    return deleted


def _sweep_folder(folder: Path, grace_s: float) -> int:
    oldest = time.time() - grace_s
    deleted = 0
    for path in folder.iterdir() if folder.is_dir() else ():
        try:
            if path.stat().st_mtime >= oldest:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
            deleted += 1
        except FileNotFoundError:
            continue  # its owner was faster
    return deleted
