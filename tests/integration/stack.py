"""A deployment for tests: a database, a broker, real workers as subprocesses, and the use cases as a client."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from services.process import stop_process, wait_until
from sqlalchemy import func, select

from models.blobs import UploadWriter
from models.broker import make_celery
from models.migrate import upgrade_to_head
from models.principal import local_principal
from models.services import Services, build_services
from models.settings import Settings, child_environment
from models.tables import Job, Report
from models.use_cases import calibrations, jobs, plans, replays, reports, traces
from models.use_cases.jobs import JobDetail
from replay.calibration.request import MeasuredDeployment
from replay.specs import DeploymentSpec, EngineSpec, PlanSpec, ReplaySpec, Transform, parse_objective
from replay.traces.options import IngestOptions
from worker import ticks

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "examples" / "chat-hour.csv.gz"
MODEL, GPU = "meta-llama/Llama-3.1-8B", "H100-SXM"
SERVER = pytest.param("server", marks=[pytest.mark.postgres, pytest.mark.redis])
ENDED = ("succeeded", "failed", "cancelled")
PATIENCE_S = 100.0
QUICK: dict[str, Any] = {
    "job_heartbeat_s": 0.3,
    "job_stale_s": 5.0,
    "job_redispatch_s": 2.0,
    "dispatch_interval_s": 1.0,
    "reap_interval_s": 1.0,
    "schedule_interval_s": 1.0,
    "worker_warmup": False,
    "log_level": "INFO",
}


SLOW = EngineSpec(overrides={"long_prefill_token_threshold": 8192})
"""A threshold above every prompt changes no result, but only the general loop knows it: ten times the work."""


def plan_spec(name: str = "plan", growth: float = 1.0, **more: Any) -> PlanSpec:
    """A plan of two candidates."""
    return PlanSpec(
        name=name,
        model=MODEL,
        gpus=(GPU,),
        tp=(1, 2),
        objectives=(parse_objective("ttft_p99=5s"),),
        transform=Transform(growth=growth),
        **more,
    )


def quick_replay(seed: int = 0) -> ReplaySpec:
    """Done in a fraction of a second."""
    return ReplaySpec(deployment=DeploymentSpec(model=MODEL, gpu=GPU, replicas=2), seed=seed)


def long_replay(seed: int = 0) -> ReplaySpec:
    """Runs for several seconds: coupled replicas in the general loop under twenty times the load."""
    deployment = DeploymentSpec(model=MODEL, gpu=GPU, replicas=8, router="least_outstanding", engine=SLOW)
    return ReplaySpec(deployment=deployment, transform=Transform(growth=20), seed=seed)


@dataclass
class Stack:
    """One deployment."""

    settings: Settings
    services: Services = field(init=False)
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.settings.data_dir.mkdir(parents=True, exist_ok=True)
        self.log = self.settings.data_dir / "workers.log"
        upgrade_to_head(self.settings)
        self.services = build_services(self.settings)
        self.principal = local_principal()
        self.celery = make_celery(self.settings)

    @property
    def embedded(self) -> bool:
        return self.settings.embedded

    def start(self, entry: str | None = None, **settings: str) -> subprocess.Popen[bytes]:
        """Starts a worker (or ``beat``) as users do."""
        environment = child_environment(self.settings)
        environment |= {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
        environment |= {f"CAPREPLAY_{name.upper()}": value for name, value in settings.items()}
        command = [sys.executable, "-m", "worker", entry or ("embedded" if self.embedded else "worker")]
        with self.log.open("ab") as log:
            worker = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.settings.data_dir
            )
        self.workers.append(worker)
        return worker

    def job_process(self, worker: subprocess.Popen[bytes]) -> int:
        """Process id of the worker's (one) job process."""
        for pid in _children(worker.pid):
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes() and _children(pid) == []:
                return pid
        raise AssertionError(f"worker {worker.pid} has no job process")

    def close(self) -> None:
        for worker in self.workers:
            stop_process(worker, signal.SIGKILL)
        self.services.database.close()
        self.celery.close()

    # what a client does

    def upload(self, path: Path = SAMPLE, *, name: str | None = None, stream: str | None = None) -> traces.CreatedTrace:
        with UploadWriter(self.settings.tmp_path, 2**30) as writer:
            writer.write(path.read_bytes())
            stored = writer.finish()
            with self.services.database.write() as session:
                return traces.create_trace(
                    session,
                    self.principal,
                    self.services,
                    stored,
                    name=name or path.name,
                    options=IngestOptions(),
                    stream=stream,
                )

    def ready_trace(self) -> str:
        """Id of the sample, ingested by the worker that runs."""
        created = self.upload()
        detail = self.wait(created.job.id)
        assert detail.job.status == "succeeded", (detail.job.error_detail, self.tail())
        return created.trace.id

    def plan(self, trace_id: str, spec: PlanSpec | None = None) -> jobs.jobs.StartedJob:
        with self.services.database.write() as session:
            return plans.start_plan(session, self.principal, self.services, trace_id, spec or plan_spec())

    def replay(self, trace_id: str, spec: ReplaySpec) -> jobs.jobs.StartedJob:
        with self.services.database.write() as session:
            return replays.start_replay(session, self.principal, self.services, trace_id, spec)

    def calibrate(self, deployment: MeasuredDeployment, content: bytes) -> jobs.jobs.StartedJob:
        with UploadWriter(self.settings.tmp_path, 2**30) as writer:
            writer.write(content)
            files = [calibrations.Measurements("run.json", writer.finish())]
            with self.services.database.write() as session:
                return calibrations.start_calibration(session, self.principal, self.services, deployment, files)

    def cancel(self, job_id: str) -> Job:
        with self.services.database.write() as session:
            return jobs.cancel_job(session, self.principal, self.services, job_id)

    def detail(self, job_id: str) -> JobDetail:
        with self.services.database.read() as session:
            return jobs.get_job(session, self.principal, job_id)

    def children(self, job_id: str) -> list[Job]:
        with self.services.database.read() as session:
            return jobs.list_children(session, self.principal, job_id)

    def document(self, job_id: str) -> bytes:
        with self.services.database.read() as session:
            report = reports.get_report(
                session, self.principal, jobs.get_job(session, self.principal, job_id).report_id or ""
            )
        with reports.open_document(self.services, report) as file:
            return file.read()

    def count_reports(self) -> int:
        with self.services.database.read() as session:
            return session.scalars(select(func.count()).select_from(Report)).one()

    def tick(self) -> None:
        """What beat would have done; embedded workers do it by themselves."""
        if not self.embedded:
            ticks.reap(self.services)
            ticks.dispatch(self.services, self.celery)

    def wait(self, job_id: str, *statuses: str) -> JobDetail:
        """Waits until the job has one of ``statuses`` (default: has ended)."""
        wanted = statuses or ENDED

        def reached() -> bool:
            self.tick()
            return self.detail(job_id).job.status in wanted

        try:
            wait_until(reached, f"{job_id} to be {' or '.join(wanted)}", PATIENCE_S)
        except TimeoutError as error:
            job = self.detail(job_id).job
            raise AssertionError(f"{error}; it is {job.status}, attempt {job.attempt}\n{self.tail()}") from error
        return self.detail(job_id)

    def wait_running(self, job_id: str) -> None:
        """Waits until the job is in the hands of a runner that has beaten once since it began."""

        def beating() -> bool:
            job = self.detail(job_id).job
            assert job.status not in ENDED, f"{job_id} ended as {job.status} before the test could act"
            return job.status == "running" and job.heartbeat_at is not None and job.heartbeat_at > (job.started_at or 0)

        wait_until(beating, f"{job_id} to run", PATIENCE_S)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-6000:] if self.log.exists() else ""


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


@contextlib.contextmanager
def stack_of(data_dir: Path, **settings: Any) -> Iterator[Stack]:
    """A stack with quick timings; everything it started ends with it."""
    stack = Stack(Settings(data_dir=data_dir, **(QUICK | settings)))
    try:
        yield stack
    finally:
        stack.close()


def kill(pid: int) -> None:
    """kill -9"""
    os.kill(pid, signal.SIGKILL)
