"""One job from claim to end: load, compute (``worker.runner``), store. Never a transaction over a computation."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import Counter, Histogram
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

from models import jobs
from models.blobs import UploadWriter
from models.errors import AppError
from models.hashing import canonical_json, code_version, sha256_text
from models.ids import new_id
from models.jobs import Failure, LostJobError
from models.repositories import blobs as blob_rows
from models.repositories import jobs as job_rows
from models.repositories import traces as trace_rows
from models.services import Services
from models.tables import Job, Report, ReportCalibration
from models.use_cases import calibrations, traces
from replay.calibration.request import MAX_BYTES, ResolvedCalibration
from replay.errors import ReplayError
from replay.planning.document import CandidateResult
from replay.planning.resolve import Candidate, ResolvedPlan, ResolvedReplay
from replay.traces.options import IngestOptions, Limits
from worker import runner
from worker.heartbeat import CancelledError, Heartbeat, StoppingError
from worker.workloads import WorkloadCache

log = structlog.get_logger(__name__)
ENDED = Counter("capreplay_jobs_ended_total", "Attempts of jobs that ended here", ["kind", "outcome"])
SECONDS = Histogram(
    "capreplay_job_seconds", "Time of one attempt", ["kind"], buckets=(0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600)
)
MAX_DOCUMENT_BYTES = 256 * 1024**2
_workloads = WorkloadCache()


@dataclass(frozen=True)
class Run:
    """One attempt: what the functions below need."""

    services: Services
    job: Job
    attempt: int
    folder: Path
    """Empty, for this attempt alone; removed afterwards."""
    checkpoint: runner.Checkpoint

    def write(self, finish: Callable[[Session], None]) -> None:
        """The one transaction that stores an outcome."""
        with self.services.database.write() as session:
            finish(session)


def execute(services: Services, job_id: str, worker: str, *, escalate: Callable[[], None] | None = None) -> str:
    """Claims and runs a job. The outcome: dropped, succeeded, failed, cancelled, requeued or lost."""
    with services.database.write() as session:
        job = jobs.claim(session, job_id, worker, services.clock())
    if job is None:
        log.info("job.dropped", job_id=job_id)
        return "dropped"
    with structlog.contextvars.bound_contextvars(job_id=job.id, kind=job.kind, request_id=job.request_id):
        started = time.monotonic()
        log.info("job.started", attempt=job.attempt, worker=worker)
        outcome = _attempt(services, job, escalate)
        seconds = time.monotonic() - started
        ENDED.labels(job.kind, outcome).inc()
        SECONDS.labels(job.kind).observe(seconds)
        log.info("job.ended", outcome=outcome, seconds=round(seconds, 3))
    return outcome


def _attempt(services: Services, job: Job, escalate: Callable[[], None] | None) -> str:
    attempt = job.attempt
    folder = services.settings.tmp_path / f"{job.id}-{attempt}"
    try:
        with Heartbeat(services, job, escalate=escalate) as heartbeat:
            folder.mkdir(parents=True, exist_ok=True)
            _KINDS[job.kind](Run(services, job, attempt, folder, heartbeat.checkpoint))
    except LostJobError:
        with services.database.write() as session:
            return "cancelled" if jobs.end_lost(session, job, attempt, services.clock()) else "lost"
    except CancelledError:
        with services.database.write() as session:
            return "cancelled" if jobs.end_cancelled(session, job, attempt, services.clock()) else "lost"
    except StoppingError:
        with services.database.write() as session:
            status = jobs.requeue(session, job, attempt, services.clock())
            return "requeued" if status == "queued" else status or "lost"
    except (OperationalError, InterfaceError) as error:
        # The database went away: the row cannot be written now. The reaper finds it silent and has it tried again.
        log.warning("job.database_failed", error=type(error).__name__)
        return "lost"
    except Exception as error:  # noqa: BLE001 - whatever a computation raises must end in the job's row
        return _fail(services, job, attempt, error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return "succeeded"


def _fail(services: Services, job: Job, attempt: int, error: Exception) -> str:
    failure = failure_of(error, job.id)
    if failure.code == "internal":
        log.exception("job.internal_error", error=type(error).__name__)
    with services.database.write() as session:
        return "failed" if jobs.fail(session, job, attempt, failure, services.clock()) else "lost"


def failure_of(error: Exception, job_id: str) -> Failure:
    """What the user is told. Faults of the input in full; of ours the traceback is only in the log, under the id."""
    if isinstance(error, ReplayError):
        return Failure(error.code, error.detail, tuple(error.errors))
    if isinstance(error, AppError):
        return Failure(error.code, error.detail, tuple(error.errors))
    if isinstance(error, MemoryError):
        return Failure("out_of_memory", "the worker has not enough memory for this job: ask for less, or give it more")
    if isinstance(error, OSError):
        return Failure("storage", f"the worker could not read or write a file ({error.strerror}): is the disk full?")
    return Failure("internal", f"an internal error ended the job; the worker's log tells more under {job_id}")


def _ingest(run: Run) -> None:
    spec, services = run.job.spec, run.services
    source = services.blobs.local_path(spec["source_sha256"])
    out = run.folder / "canonical.parquet"
    options = IngestOptions.model_validate(spec["options"])
    id_key = services.settings.id_key() if options.ids == "hash" else None
    report = runner.ingest_file(source, out, options, run.checkpoint, id_key=id_key)
    with out.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    size = out.stat().st_size

    def finish(session: Session) -> None:
        now = services.clock()
        blob_rows.note_blob(session, sha256, size, now)
        services.blobs.put_file(out, sha256)
        _finish(run, session, run.job)  # before the traces: whoever else locks both, locks the job first
        trace_rows.make_ready(session, run.job.id, sha256, size, report, now)

    run.write(finish)
    try:
        traces.delete_upload(services, spec["source_sha256"])
    except (OSError, SQLAlchemyError) as error:  # the trace is ready; a later sweep deletes the file
        log.warning("upload.not_deleted", error=type(error).__name__)


def _replay(run: Run) -> None:
    spec = run.job.spec
    resolved = ResolvedReplay.model_validate(spec["replay"])
    report = _ingest_report(run.services, run.job)
    workload = _workloads.get(run.services, resolved)
    run.checkpoint(0.01)
    document, result = runner.replay(
        resolved, workload, report, run.checkpoint, threads=run.services.settings.worker_threads
    )
    document["name"] = spec["name"]
    requests = run.folder / "requests.parquet"
    runner.write_requests(result.requests, requests)
    run.checkpoint(0.99)
    with requests.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    size = requests.stat().st_size

    def finish(session: Session) -> None:
        blob_rows.note_blob(session, sha256, size, run.services.clock())
        run.services.blobs.put_file(requests, sha256)
        _add_report(run, session, run.job, "replay", document, requests_sha256=sha256, requests_bytes=size)
        _finish(run, session, run.job)

    run.write(finish)


def _plan_candidate(run: Run) -> None:
    services, spec = run.services, run.job.spec
    parent = _parent(services, run.job)
    plan = ResolvedPlan.model_validate(parent.spec["plan"])
    workload = _workloads.get(services, plan)
    run.checkpoint(0.0)
    candidate = Candidate(spec["gpu_key"], spec["tp"])
    result = runner.evaluate(workload, plan, candidate, run.checkpoint, threads=services.settings.worker_threads)
    body = canonical_json(result.model_dump(mode="json"))
    run.write(
        lambda session: jobs.finish_child(
            session, run.job, run.attempt, body, code_version(), services.settings, services.clock()
        )
    )


def _plan_report(run: Run) -> None:
    services = run.services
    parent = _parent(services, run.job)
    plan = ResolvedPlan.model_validate(parent.spec["plan"])
    report = _ingest_report(services, parent)
    with services.database.read() as session:
        rows = job_rows.list_results(session, parent.id)
    workload = _workloads.get(services, plan)
    results = [CandidateResult.model_validate_json(row.body) for row in rows]
    versions = [row.code_version for row in rows]
    document = runner.plan_document(plan, results, workload, report, versions)
    run.checkpoint(0.9)

    def finish(session: Session) -> None:
        finished = jobs.finish_plan(session, run.job, run.attempt, services.clock())
        _add_report(run, session, finished, "plan", document)
        if {*versions, code_version()} != {finished.code_version}:
            jobs.forget_input(session, finished.id)

    run.write(finish)


def _calibrate(run: Run) -> None:
    services, job = run.services, run.job
    resolved = ResolvedCalibration.model_validate(job.spec["calibrate"])
    paths = []
    for number, file in enumerate(resolved.files, 1):
        path = run.folder / str(number) / file.name  # under its own name, which refusals and the calibration say
        path.parent.mkdir()
        path.symlink_to(services.blobs.local_path(file.sha256).absolute())
        paths.append(path)
    limits = IngestOptions(limits=Limits(max_decompressed_bytes=MAX_BYTES))
    options = traces.within_limits(limits, services.settings)
    found = runner.fit(paths, resolved, options, services.clock().date(), run.checkpoint)

    def finish(session: Session) -> None:
        _finish(run, session, job)
        calibrations.keep_calibration(session, job.tenant_id, services, found, job_id=job.id)

    run.write(finish)
    try:
        calibrations.delete_measurements(services, job)
    except (OSError, SQLAlchemyError) as error:  # the calibration is kept; a later sweep deletes the files
        log.warning("measurements.not_deleted", error=type(error).__name__)


def _finish(run: Run, session: Session, job: Job) -> None:
    """Success of a job that stands alone. Code other than the one asked must not answer later requests for that one."""
    jobs.finish(session, job, run.attempt, run.services.clock())
    if job.code_version != code_version():
        jobs.forget_input(session, job.id)


def _parent(services: Services, job: Job) -> Job:
    with services.database.read() as session:
        parent = job_rows.find_of_any_tenant(session, job.parent_id or "")
    if parent is None or parent.status != "running":
        raise LostJobError(job.id)
    return parent


def _ingest_report(services: Services, job: Job) -> dict[str, Any]:
    """The cleaning report and profile of the job's trace, the same ones that its input hash speaks of."""
    with services.database.read() as session:
        trace = trace_rows.get_trace(session, job.tenant_id, job.trace_id or "")
    if trace.report is None or sha256_text(canonical_json(trace.report)) != job.spec["ingest_report_sha256"]:
        raise AppError("the trace's ingest report is not the one that the job was made for", code="trace.changed")
    return trace.report


def _add_report(
    run: Run, session: Session, job: Job, kind: str, document: dict[str, Any], **requests: str | int
) -> None:
    """Stores the document under its hash, and the row that names it."""
    services, now = run.services, run.services.clock()
    with UploadWriter(services.settings.tmp_path, MAX_DOCUMENT_BYTES) as writer:
        writer.write(canonical_json(document).encode())
        upload = writer.finish()
        blob_rows.note_blob(session, upload.sha256, upload.bytes, now)
        services.blobs.put_file(upload.path, upload.sha256)
    report_id = new_id("rep")
    session.add(
        Report(
            id=report_id,
            tenant_id=job.tenant_id,
            job_id=job.id,
            kind=kind,
            name=job.name,
            trace_id=job.trace_id,
            document_sha256=upload.sha256,
            document_bytes=upload.bytes,
            created_at=now,
            **requests,
        )
    )
    session.flush()
    used = {one["calibration_id"] for one in document["provenance"]["calibrations"] if one["provenance"] == "measured"}
    session.add_all(ReportCalibration(report_id=report_id, calibration=one) for one in sorted(used))
    session.flush()


_KINDS: dict[str, Callable[[Run], None]] = {
    "ingest": _ingest,
    "replay": _replay,
    "plan_candidate": _plan_candidate,
    "plan_report": _plan_report,
    "calibrate": _calibrate,
}
