"""Jobs as users see them: ingests, replays and plans; a plan's children only through their plan."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from models.paging import Page, PageRequest
from models.principal import Principal
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


def get_job(session: Session, principal: Principal, job_id: str) -> JobDetail:
    """One job. Its ``job.version`` changes with each write but not with children's progress. Raises NotFoundError."""
    raise NotImplementedError


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
    """The tenant's top-level jobs (kinds ingest, replay, plan), newest first."""
    raise NotImplementedError


def list_children(session: Session, principal: Principal, job_id: str) -> list[Job]:
    """The children of a plan, in candidate order. Raises NotFoundError."""
    raise NotImplementedError


def cancel_job(session: Session, principal: Principal, services: Services, job_id: str) -> Job:
    """Asks a job to stop. A queued job and a plan are cancelled at once, a running one at its next heartbeat.

    Repeating it is harmless. Raises NotFoundError; ConflictError ``job.finished`` where it has succeeded or failed.
    """
    raise NotImplementedError
