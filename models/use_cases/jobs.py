"""Jobs as users see them: ingests, replays, plans and calibrations; a plan's children only through their plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from models import jobs
from models.errors import ConflictError, NotFoundError
from models.paging import Page, PageRequest
from models.principal import Principal
from models.repositories import calibrations as calibration_rows
from models.repositories import jobs as job_rows
from models.repositories import reports as report_rows
from models.services import Services
from models.tables import Job


@dataclass(frozen=True)
class JobDetail:
    """A job with what belongs to it. ``progress`` 0 to 1, of a plan the mean over its children."""

    job: Job
    progress: float
    children: dict[str, int]
    """Children by status; empty but for plans."""
    report_id: str | None
    calibration_id: str | None = None
    """What a calibrate job fitted, while it is kept."""


def get_job(session: Session, principal: Principal, job_id: str) -> JobDetail:
    """One job. Its ``job.version`` changes with each write but not with children's progress. Raises NotFoundError."""
    principal.require("reports:read")
    job = _get_top_level(session, principal, job_id)
    report = report_rows.find_of_job(session, principal.tenant_id, job.id)
    if job.kind == "calibrate":
        fitted = calibration_rows.find_of_job(session, principal.tenant_id, job.id)
        return JobDetail(job, job.progress, {}, None, fitted.id if fitted else None)
    if job.kind != "plan":
        return JobDetail(job, job.progress, {}, report.id if report else None)
    children, done = job_rows.children_summary(session, job.id)
    progress = 1.0 if job.status == "succeeded" else min(0.99, max(job.progress, done))
    return JobDetail(job, progress, children, report.id if report else None)


def list_jobs(
    session: Session,
    principal: Principal,
    page: PageRequest,
    *,
    status: str | None = None,
    kind: str | None = None,
    trace_id: str | None = None,
    schedule_id: str | None = None,
) -> Page[Job]:
    """The tenant's top-level jobs (kinds ingest, replay, plan, calibrate), newest first."""
    principal.require("reports:read")
    filters = {"status": status, "kind": kind, "trace_id": trace_id, "schedule_id": schedule_id}
    return job_rows.list_jobs(session, principal.tenant_id, page, filters)


def reports_of_jobs(session: Session, principal: Principal, rows: Sequence[Job]) -> dict[str, str]:
    """Job id -> id of its report, of the jobs that have one."""
    principal.require("reports:read")
    return report_rows.ids_of_jobs(session, principal.tenant_id, [row.id for row in rows])


def list_children(session: Session, principal: Principal, job_id: str) -> list[Job]:
    """The children of a plan, in candidate order. Raises NotFoundError."""
    principal.require("reports:read")
    return job_rows.list_children(session, _get_top_level(session, principal, job_id).id)


def cancel_job(session: Session, principal: Principal, services: Services, job_id: str) -> Job:
    """Asks a job to stop. A queued job and a plan are cancelled at once, a running one at its next heartbeat.

    Repeating it is harmless. Raises NotFoundError; ConflictError ``job.finished`` where it has succeeded or failed.
    """
    principal.require("jobs:write")
    job = _get_top_level(session, principal, job_id)
    jobs.cancel(session, job, services.clock())
    if job.status in ("succeeded", "failed"):
        raise ConflictError(f"the job has {job.status} already", code="job.finished")
    return job


def _get_top_level(session: Session, principal: Principal, job_id: str) -> Job:
    job = job_rows.get_job(session, principal.tenant_id, job_id)
    if job.kind not in job_rows.TOP_LEVEL_KINDS:
        raise NotFoundError(f"there is no job {job_id[:60]!r}", code="job.not_found")
    return job
