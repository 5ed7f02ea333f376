"""Keeps the embedded worker running beside the API: a subprocess, restarted when it dies."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import structlog

from models.settings import Settings, child_environment

log = structlog.get_logger(__name__)
COMMAND = [sys.executable, "-m", "worker", "embedded", "--watch-parent"]
LONGEST_WAIT_S = 30.0
HEALTHY_AFTER_S = 60.0


class WorkerSupervisor:
    """Starts ``python -m worker embedded`` with the same settings, restarts it with growing waits, and stops it.

    The worker ends by itself when this process is gone.
    """

    def __init__(self, settings: Settings, command: list[str] | None = None) -> None:
        self._environment = child_environment(settings)
        self._command = command or COMMAND
        self._grace_s = 2 * settings.worker_soft_shutdown_s + 10
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="worker-supervisor", daemon=True)
        self._lock = threading.Lock()

    def start(self) -> None:
        """Starts the worker; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Tells the worker to stop, waits for its soft shutdown, and kills it where it does not end."""
        self._stop.set()
        with self._lock:
            process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(self._grace_s)
            except subprocess.TimeoutExpired:
                log.warning("supervisor.kill", pid=process.pid)
                process.kill()
                process.wait()
        self._thread.join(timeout=5)

    @property
    def pid(self) -> int | None:
        """The worker's process id, while it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def _run(self) -> None:
        wait_s = 1.0
        while not self._stop.is_set():
            with self._lock:
                if self._stop.is_set():
                    return
                process = self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    self._command, env=self._environment, stdin=subprocess.DEVNULL, start_new_session=True
                )
            started = time.monotonic()
            code = process.wait()
            if self._stop.is_set():
                return
            wait_s = 1.0 if time.monotonic() - started > HEALTHY_AFTER_S else min(wait_s * 2, LONGEST_WAIT_S)
            log.warning("supervisor.worker_ended", code=code, restart_in_s=wait_s)
            self._stop.wait(wait_s)
