"""Reports: rows, and their documents from the blob store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

from sqlalchemy.orm import Session

from models import jobs
from models.errors import NotFoundError
from models.paging import Page, PageRequest
from models.principal import Principal
from models.repositories import blobs as blob_rows
from models.repositories import jobs as job_rows
from models.repositories import reports as report_rows
from models.services import Services
from models.tables import Job, Report
from models.use_cases import calibrations


def list_reports(
    session: Session,
    principal: Principal,
    page: PageRequest,
    *,
    kind: str | None = None,
    trace_id: str | None = None,
    calibration_id: str | None = None,
) -> Page[Report]:
    """The tenant's reports, newest first; of a trace, or resting on a calibration. Raises NotFoundError for a
    calibration that is not kept."""
    principal.require("reports:read")
    used = None
    if calibration_id is not None:
        used = calibrations.get_calibration(session, principal, calibration_id).calibration.id
    return report_rows.list_reports(session, principal.tenant_id, page, kind=kind, trace_id=trace_id, calibration=used)


def jobs_of_reports(session: Session, principal: Principal, reports: Sequence[Report]) -> dict[str, Job]:
    """Report id -> the job that it answers."""
    principal.require("reports:read")
    found = job_rows.list_by_ids(session, principal.tenant_id, [report.job_id for report in reports])
    return {report.id: found[report.job_id] for report in reports if report.job_id in found}


def get_report(session: Session, principal: Principal, report_id: str) -> Report:
    """One report's row. Raises NotFoundError."""
    principal.require("reports:read")
    return report_rows.get_report(session, principal.tenant_id, report_id)


def delete_report(session: Session, principal: Principal, services: Services, report_id: str) -> None:
    """Deletes a report; its files follow after the grace time. The same request made again is computed again.

    Raises NotFoundError.
    """
    principal.require("jobs:write")
    report = report_rows.get_report(session, principal.tenant_id, report_id, lock=True)
    for sha256, size in (
        (report.document_sha256, report.document_bytes),
        (report.requests_sha256, report.requests_bytes),
    ):
        if sha256 is not None:
            blob_rows.note_blob(session, sha256, size or 0, services.clock())
    jobs.forget_input(session, report.job_id)
    session.delete(report)
    session.flush()


def open_document(services: Services, report: Report) -> BinaryIO:
    """The report's JSON (``replay.planning.document``), canonical bytes. The caller closes it."""
    return services.blobs.open(report.document_sha256)


def open_requests(services: Services, report: Report) -> BinaryIO:
    """The per-request table of a replay, Parquet. Raises NotFoundError for a plan's report."""
    if report.requests_sha256 is None:
        raise NotFoundError("only the report of a replay has a table of requests", code="report.no_requests")
    return services.blobs.open(report.requests_sha256)
