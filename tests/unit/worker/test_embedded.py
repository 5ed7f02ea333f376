"""What an embedded worker does before it takes jobs, and where a worker shows its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from servicetools import made_job

from models import jobs
from models.services import Services
from models.settings import Settings
from models.tables import Job
from worker import main, ticks
from worker.embedded import worker_name


def running(services: Services, worker: str) -> Job:
    with services.database.write() as session:
        job = jobs.create(session, made_job(services)).job
        assert jobs.claim(session, job.id, worker, services.clock())
    return job


def test_a_start_takes_jobs_back_only_from_its_own_past(services: Services, tmp_path: Path, clock: Any) -> None:
    """Embedded workers of several data folders may share one database."""
    mine, other = (worker_name(Settings(data_dir=tmp_path / name)) for name in ("mine", "other"))
    assert mine != other
    assert mine.split("@")[1] == other.split("@")[1], "the health check looks for the host"
    lost, alive = running(services, mine), running(services, other)
    clock.advance(seconds=1)
    assert ticks.reap(services, dead_worker=mine) == 1
    with services.database.read() as session:
        assert session.get_one(Job, lost.id).status == "queued"
        assert session.get_one(Job, alive.id).status == "running"


def test_metrics_are_bound_to_the_host_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[tuple[int, str]] = []
    monkeypatch.setattr(
        prometheus_client, "start_http_server", lambda port, addr="0.0.0.0", **_: bound.append((port, addr))
    )
    main._serve_metrics("127.0.0.1", 9001, tmp_path)
    assert bound == [(9001, "127.0.0.1")]
