"""``capreplay worker``: a worker of a deployment with PostgreSQL and Redis; without a broker, the embedded one."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

from models.settings import Settings, export_environment, load_settings


def main(argv: list[str] | None = None) -> int:
    """Runs until it is told to stop (SIGTERM: gives its jobs back within the soft shutdown time); the exit code."""
    parser = argparse.ArgumentParser(prog="capreplay worker", description="Take jobs from the queue and run them.")
    parser.add_argument(
        "--check", action="store_true", help="only say whether a worker of this host is alive; exit 1 if not"
    )
    arguments = parser.parse_args(argv)
    settings = load_settings()
    if arguments.check:
        return check(settings)
    if settings.embedded:
        from worker.embedded import main as embedded

        return embedded([])
    run_worker(settings, name=f"worker-{os.getpid()}@{socket.gethostname()}")
    return 0


def run_worker(settings: Settings, *, name: str) -> None:
    """Runs the Celery worker in this process."""
    port = settings.worker_metrics_port
    with ExitStack() as at_exit:
        if port is not None:
            metrics = at_exit.enter_context(tempfile.TemporaryDirectory(prefix="capreplay-metrics-"))
            export_environment({"PROMETHEUS_MULTIPROC_DIR": metrics})  # read by prometheus_client at import
        from worker.app import app

        if port is not None:
            _serve_metrics(settings.host, port, Path(metrics))
        argv = ["worker", "--hostname", name, "--queues", ",".join(settings.worker_queues)]
        argv += ["--concurrency", str(settings.job_processes), "--loglevel", settings.log_level]
        app.worker_main(["--quiet", *argv, "--without-gossip", "--without-mingle", "--without-heartbeat"])


def check(settings: Settings, silent_s: float = 60.0) -> int:
    """The container's health check: 0 where a worker of this host has beaten within ``silent_s`` seconds."""
    from sqlalchemy.exc import SQLAlchemyError

    from models.clock import utc_now
    from models.database import Database, sqlite_file
    from models.repositories import workers

    file = sqlite_file(settings)
    if file is not None and not file.exists():
        sys.stderr.write(f"no worker has run here: there is no {file}\n")
        return 1
    database = Database(settings)
    try:
        with database.read() as session:
            live = workers.list_live(session, utc_now() - timedelta(seconds=silent_s))
    except SQLAlchemyError as error:
        sys.stderr.write(
            f"the database does not answer ({type(error).__name__}), or lacks its schema: capreplay migrate\n"
        )
        return 1
    finally:
        database.close()
    host = socket.gethostname()
    alive = any(worker.name.endswith(f"@{host}") for worker in live)
    sys.stderr.write("alive\n" if alive else f"no worker of {host} has beaten for {silent_s:g} s\n")
    return 0 if alive else 1


def _serve_metrics(host: str, port: int, folder: Path) -> None:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    collector: Any = MultiProcessCollector  # untyped
    collector(registry, path=str(folder))
    start_http_server(port, addr=host, registry=registry)
