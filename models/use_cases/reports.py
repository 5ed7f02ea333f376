"""Reports: rows, and their documents from the blob store."""

from __future__ import annotations

from typing import BinaryIO

from sqlalchemy.orm import Session

from models.paging import Page, PageRequest
from models.principal import Principal
from models.services import Services
from models.tables import Report


def list_reports(
    session: Session, principal: Principal, page: PageRequest, *, kind: str | None = None, trace_id: str | None = None
) -> Page[Report]:
    """The tenant's reports, newest first."""
    raise NotImplementedError


def get_report(session: Session, principal: Principal, report_id: str) -> Report:
    """One report's row. Raises NotFoundError."""
    raise NotImplementedError


def get_report_of_job(session: Session, principal: Principal, job_id: str) -> Report:
    """The report of a succeeded plan or replay. Raises NotFoundError, also while there is none yet."""
    raise NotImplementedError


def open_document(services: Services, report: Report) -> BinaryIO:
    """The report's JSON (``replay.planning.document``), canonical bytes. The caller closes it."""
    raise NotImplementedError


def open_requests(services: Services, report: Report) -> BinaryIO:
    """The per-request table of a replay, Parquet. Raises NotFoundError for a plan's report."""
    raise NotImplementedError
