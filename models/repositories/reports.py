"""Reports."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.paging import Page, PageRequest
from models.repositories.scope import get_row, of_tenant, page_of
from models.tables import Report, ReportCalibration


def get_report(session: Session, tenant_id: str, report_id: str, *, lock: bool = False) -> Report:
    """One report. Raises NotFoundError."""
    return get_row(session, Report, tenant_id, report_id, lock=lock)


def find_of_job(session: Session, tenant_id: str, job_id: str) -> Report | None:
    """The report of a plan or replay, if it has one."""
    return session.scalars(of_tenant(Report, tenant_id).where(Report.job_id == job_id)).one_or_none()


def ids_of_jobs(session: Session, tenant_id: str, job_ids: Sequence[str]) -> dict[str, str]:
    """Job id -> report id, of the jobs that have one."""
    statement = of_tenant(Report, tenant_id).where(Report.job_id.in_(job_ids))
    return {report.job_id: report.id for report in session.scalars(statement) if report.job_id is not None}


def list_reports(
    session: Session,
    tenant_id: str,
    page: PageRequest,
    *,
    kind: str | None = None,
    trace_id: str | None = None,
    calibration: str | None = None,
) -> Page[Report]:
    """Reports, newest first; ``calibration`` is an id in reports."""
    statement = of_tenant(Report, tenant_id)
    if kind is not None:
        statement = statement.where(Report.kind == kind)
    if trace_id is not None:
        statement = statement.where(Report.trace_id == trace_id)
    if calibration is not None:
        used = select(ReportCalibration.report_id).where(ReportCalibration.calibration == calibration)
        statement = statement.where(Report.id.in_(used))
    return page_of(session, statement, Report, page)
