"""The worker of embedded mode: one process group beside the API, a folder as its queue, ticks in a thread."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from hashlib import sha256

import structlog

from models.folder_lock import FolderTakenError, hold
from models.logs import configure_logging
from models.settings import Settings, load_settings

log = structlog.get_logger(__name__)


def main(argv: list[str] | None = None) -> int:
    """Runs until it is told to stop; the exit code (3: another worker has this data folder)."""
    parser = argparse.ArgumentParser(prog="python -m worker embedded", description=__doc__)
    parser.add_argument(
        "--watch-parent", action="store_true", help="stop when the process that started this one is gone"
    )
    arguments = parser.parse_args(argv)
    settings = load_settings()
    configure_logging(settings)
    try:
        with hold(settings.data_dir / "worker.lock"):
            _clear_queue(settings)
            name = worker_name(settings)
            _start_ticks(settings, name, watch_parent=arguments.watch_parent)
            from worker.main import run_worker

            run_worker(settings, name=name)
    except FolderTakenError as taken:
        log.error("embedded.locked", data_dir=str(settings.data_dir), held_by_process=taken.holder)  # noqa: TRY400
        return 3
    return 0


def _clear_queue(settings: Settings) -> None:
    """Old messages are only doorbells of jobs that the database knows; the dispatcher rings anew."""
    for name in ("queue", "control"):
        folder = settings.data_dir / name
        for path in folder.iterdir() if folder.is_dir() else ():
            path.unlink(missing_ok=True)


def worker_name(settings: Settings) -> str:
    """The same at each start, and another for each data folder: embedded workers may share a database."""
    folder = sha256(str(settings.data_dir.absolute()).encode()).hexdigest()[:8]
    return f"embedded-{folder}@{socket.gethostname()}"


def _start_ticks(settings: Settings, name: str, *, watch_parent: bool) -> None:
    from models.repositories import jobs as job_rows
    from models.services import build_services
    from worker import ticks
    from worker.app import app

    services = build_services(settings)
    # This process alone holds the lock, so whatever runs under its name belongs to a worker that has died.
    ticks.reap(services, dead_worker=name)
    with services.database.write() as session:
        job_rows.forget_dispatches(session)
    parent = os.getppid() if watch_parent else None
    jobs: list[tuple[float, Callable[[], object]]] = [
        (settings.dispatch_interval_s, lambda: ticks.dispatch(services, app)),
        (settings.reap_interval_s, lambda: ticks.reap(services)),
        (settings.schedule_interval_s, lambda: ticks.run_schedules(services)),
        (settings.sweep_interval_s, lambda: ticks.sweep(services)),
    ]
    threading.Thread(target=_tick, args=(jobs, parent), name="ticks", daemon=True).start()


def _tick(jobs: list[tuple[float, Callable[[], object]]], parent: int | None) -> None:
    due = [time.monotonic() for _ in jobs]
    while True:
        for index, (interval_s, job) in enumerate(jobs):
            if time.monotonic() < due[index]:
                continue
            due[index] = time.monotonic() + interval_s
            try:
                job()
            except Exception:
                log.exception("embedded.tick_failed")
        if parent is not None and os.getppid() != parent:
            log.warning("embedded.orphaned")
            os.kill(os.getpid(), signal.SIGTERM)
            return
        time.sleep(0.5)
