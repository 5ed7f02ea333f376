"""The heartbeat of a running job: a thread with its own short sessions, so that calls without chunks are covered."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType

import structlog

from models import jobs
from models.services import Services
from models.tables import Job

log = structlog.get_logger(__name__)


class CancelledError(Exception):
    """A user asked the job to stop."""


class StoppingError(Exception):
    """The worker is shutting down: the job is to be put back."""


def end_process() -> None:
    """Ends this job process at once; its parent starts another."""
    os._exit(75)


class Heartbeat:
    """Beats while the job runs; ``checkpoint`` is what the computation calls between its chunks.

    The thread alone talks to the database. A job that is told to end and reaches no checkpoint within the grace time (a
    compiler, one long call) has its process ended, once its row is in order.
    """

    def __init__(self, services: Services, job: Job, *, escalate: Callable[[], None] | None = None) -> None:
        self._services = services
        self._job = job
        self._attempt = job.attempt
        self._escalate = escalate
        self._progress = 0.0
        self._stop: type[Exception] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"heartbeat-{job.id}", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def checkpoint(self, progress: float) -> None:
        """Notes the progress (0 to 1). Raises CancelledError, StoppingError or LostJobError where the work must end."""
        self._progress = max(self._progress, min(1.0, progress))
        if self._stop is not None:
            raise self._stop(self._job.id)

    def _run(self) -> None:
        settings = self._services.settings
        told_at: float | None = None
        while not self._ended.wait(settings.job_heartbeat_s):
            try:
                beat = self._beat()
                if not beat.owned:
                    self._stop = jobs.LostJobError
                elif beat.cancelled or beat.stopping:
                    self._stop = CancelledError if beat.cancelled else StoppingError
                    told_at = told_at or time.monotonic()
                    grace_s = settings.job_cancel_grace_s if beat.cancelled else settings.worker_soft_shutdown_s
                    if time.monotonic() - told_at > grace_s:
                        self._end_hard(cancelled=beat.cancelled)
            except Exception as error:  # noqa: BLE001 - the database may be away for a while; the reaper decides
                log.warning("heartbeat.failed", job_id=self._job.id, error=type(error).__name__)

    def _beat(self) -> jobs.Beat:
        with self._services.database.write() as session:
            return jobs.beat(session, self._job.id, self._attempt, self._progress, self._services.clock())

    def _end_hard(self, *, cancelled: bool) -> None:
        if self._escalate is None:
            return
        with self._services.database.write() as session:
            if cancelled:
                jobs.end_cancelled(session, self._job, self._attempt, self._services.clock())
            else:
                jobs.requeue(session, self._job, self._attempt, self._services.clock())
        log.warning("heartbeat.process_ended", job_id=self._job.id, cancelled=cancelled)
        self._escalate()
