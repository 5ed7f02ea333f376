"""What happens around a worker's life: logs, its row, warm-up, and giving jobs back at the end."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import structlog
from celery import bootsteps, signals

from models import jobs
from models.blobs import PROBE_SHA256
from models.hashing import code_version
from models.logs import configure_logging
from models.repositories import blobs, workers
from worker.app import app, settings
from worker.context import services

log = structlog.get_logger(__name__)
BEAT_INTERVAL_S = 10.0


def _set_up_logging(**_: Any) -> None:
    configure_logging(settings)


def _warm_up(**_: Any) -> None:
    """In each new job process, beside its first job: an ingest needs no kernels and must not wait for a compiler."""
    if settings.worker_warmup and "replay" in settings.worker_queues:
        threading.Thread(target=_compile, name="warm-up", daemon=True).start()


def _compile() -> None:
    from worker.runner import warm_up

    try:
        log.info("worker.warm", seconds=round(warm_up(everything=False), 3))
    except Exception:
        log.exception("worker.warm_up_failed")


def _close(**_: Any) -> None:
    services().database.close()


def _begin_shutdown(sender: str, **_: Any) -> None:
    """Called within a signal handler, so the work is a thread's: the interrupted code may hold the locks it needs."""
    threading.Thread(target=_shut_down, args=(sender,), name="shutdown", daemon=True).start()


def _shut_down(hostname: str) -> None:
    """Job processes read the mark at their next heartbeat and put their jobs back; one that cannot is ended."""
    log.info("worker.stopping", worker=hostname)
    try:
        with services().database.write() as session:
            workers.mark_stopping(session, hostname, services().clock())
    except Exception as error:  # noqa: BLE001 - without the database the jobs are left to the reaper
        log.warning("worker.mark_failed", error=type(error).__name__)
    time.sleep(settings.worker_soft_shutdown_s + 5)  # by then the heartbeats have ended what would not stop
    os.kill(os.getpid(), signal.SIGQUIT)


def _give_back(sender: Any, **_: Any) -> None:
    """After the job processes have ended: whatever they could not put back themselves."""
    with services().database.write() as session:
        given_back = jobs.requeue_of_worker(session, sender.hostname, services().clock())
        workers.remove(session, sender.hostname)
    log.info("worker.stopped", worker=sender.hostname, jobs_given_back=given_back)
    services().database.close()


def _blob_probe() -> bool | None:
    """Whether this worker sees what the API wrote; ``None`` while the API has written nothing."""
    with services().database.read() as session:
        written = blobs.exists(session, PROBE_SHA256)
    return services().blobs.exists(PROBE_SHA256) if written else None


class RowStep(bootsteps.StartStopStep):  # type: ignore[misc] # celery has no types
    """Keeps the worker's row fresh from the consumer's own loop: a live process that stopped consuming goes silent."""

    requires = ("celery.worker.components:Timer",)

    def start(self, parent: Any) -> None:
        with services().database.write() as session:
            workers.register(
                session,
                name=parent.hostname,
                queues=",".join(settings.worker_queues),
                concurrency=parent.concurrency,
                code_version=code_version(),
                blob_probe_ok=_blob_probe(),
                now=services().clock(),
            )
        parent.timer.call_repeatedly(BEAT_INTERVAL_S, self._beat, (parent.hostname,))

    def _beat(self, hostname: str) -> None:
        try:
            with services().database.write() as session:
                workers.beat(session, hostname, _blob_probe(), services().clock())
        except Exception as error:  # noqa: BLE001 - the loop must go on; the row's age tells
            log.warning("worker.beat_failed", error=type(error).__name__)


signals.setup_logging.connect(_set_up_logging)
signals.worker_process_init.connect(_warm_up)
signals.worker_process_shutdown.connect(_close)
signals.worker_shutting_down.connect(_begin_shutdown)
signals.worker_shutdown.connect(_give_back)
app.steps["worker"].add(RowStep)
