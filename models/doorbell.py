"""The doorbell: after a commit, a background thread tells the workers. Failures are counted; the dispatcher repeats."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

import celery
import structlog
from prometheus_client import Counter

from models.broker import send_run

log = structlog.get_logger(__name__)
SENT = Counter("capreplay_dispatches_total", "Messages sent to workers", ["outcome"])
CAPACITY = 10_000


class BackgroundDoorbell:
    """Sends in a thread of its own, so that a broker that is down holds nobody up: a send then takes seconds."""

    def __init__(self, app: celery.Celery, mark_sent: Callable[[list[str]], None]) -> None:
        """``mark_sent`` notes in the database that these jobs' messages are out."""
        self._app = app
        self._mark_sent = mark_sent
        self._jobs: queue.Queue[tuple[str, str] | None] = queue.Queue(CAPACITY)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def ring(self, jobs: Sequence[tuple[str, str]]) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="doorbell", daemon=True)
                self._thread.start()
        for job in jobs:
            try:
                self._jobs.put_nowait(job)
            except queue.Full:
                SENT.labels("dropped").inc()

    def close(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join(timeout=5)
        self._app.close()

    def _run(self) -> None:
        while (first := self._jobs.get()) is not None:
            batch = [first]
            while len(batch) < 100 and not self._jobs.empty():
                if (job := self._jobs.get()) is None:
                    self._send(batch)
                    return
                batch.append(job)
            self._send(batch)

    def _send(self, batch: Sequence[tuple[str, str]]) -> None:
        sent = send_all(self._app, batch)
        if not sent:
            return
        try:
            self._mark_sent(sent)
        except Exception:  # noqa: BLE001 - a thread's last resort; the dispatcher would send these again, harmlessly
            log.warning("doorbell.mark_failed", jobs=len(sent))


def send_all(app: celery.Celery, jobs: Sequence[tuple[str, str]]) -> list[str]:
    """Sends messages until one fails, which says that the broker is down; the ids that went out."""
    sent: list[str] = []
    for job_id, queue_name in jobs:
        try:
            send_run(app, job_id, queue_name)
        except Exception as error:  # noqa: BLE001 - kombu raises its transports' own errors; the dispatcher repeats
            SENT.labels("failed").inc(len(jobs) - len(sent))
            log.warning("doorbell.send_failed", error=type(error).__name__, jobs=len(jobs) - len(sent))
            break
        SENT.labels("sent").inc()
        sent.append(job_id)
    return sent
