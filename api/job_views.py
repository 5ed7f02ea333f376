"""A job as it is answered to whom started or cancelled it."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy.orm import Session

from api.schemas.jobs import JobOut
from models.principal import Principal
from models.use_cases.jobs import get_job


def job_out(session: Session, principal: Principal, job_id: str) -> JobOut:
    """The job of a request that was carried out: who may start or cancel a job may see it, without ``reports:read``."""
    return JobOut.of_detail(get_job(session, seeing(principal), job_id))


def seeing(principal: Principal) -> Principal:
    """The principal with ``reports:read``, to be shown what it has just made."""
    return replace(principal, scopes=principal.scopes | {"reports:read"})
