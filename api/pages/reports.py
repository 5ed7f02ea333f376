"""Reports: the list, one report as a page, and its files."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from sqlalchemy.orm import Session

from api.auth import JobWriter, Reader
from api.deps import CurrentServices, ReadSession, ReportId, WriteSession
from api.pages.paging import CurrentPage
from api.pages.render import CheckedForm, PageRoute, page, see_other
from api.reports import render_csv, render_html
from api.reports.html import context
from models.principal import Principal
from models.services import Services
from models.tables import Report
from models.use_cases import reports, traces

router = APIRouter(route_class=PageRoute)

_MEDIA = {"html": "text/html; charset=utf-8", "csv": "text/csv; charset=utf-8", "json": "application/json"}


@router.get("/reports")
def list_reports(request: Request, session: ReadSession, principal: Reader, where: CurrentPage) -> Response:
    """All reports, newest first."""
    found = reports.list_reports(session, principal, where.request)
    asked = reports.jobs_of_reports(session, principal, found.items)
    older = where.next_href(found)
    return page(request, "reports.html", title="Reports", reports=found.items, asked=asked, next_href=older)


@router.get("/reports/{report_id}")
def show_report(
    request: Request, session: ReadSession, services: CurrentServices, principal: Reader, report_id: ReportId
) -> Response:
    """One report."""
    row, document = _load(session, services, principal, report_id)
    has_trace = traces.has_trace(session, principal, row.trace_id)
    return page(request, "report.html", row=row, has_trace=has_trace, **context(document))


@router.post("/reports/{report_id}/delete")
def delete_report(
    _form: CheckedForm, session: WriteSession, services: CurrentServices, principal: JobWriter, report_id: ReportId
) -> Response:
    """Deletes a report."""
    reports.delete_report(session, principal, services, report_id)
    return see_other("/reports")


@router.get("/reports/{report_id}/file.{kind}")
def download_report(
    session: ReadSession,
    services: CurrentServices,
    principal: Reader,
    report_id: ReportId,
    kind: Literal["html", "csv", "json"],
) -> Response:
    """One report as a file: HTML that opens offline, CSV, or the JSON document."""
    row, document = _load(session, services, principal, report_id)
    if kind == "html":
        body = render_html(document, standalone=True)
    else:
        body = render_csv(document) if kind == "csv" else json.dumps(document, indent=2)
    name = re.sub(r"[^A-Za-z0-9]+", "-", row.name or row.kind).strip("-").lower()[:60] or row.kind
    disposition = f'attachment; filename="capreplay-{name}.{kind}"'
    return Response(body, media_type=_MEDIA[kind], headers={"Content-Disposition": disposition})


def _load(session: Session, services: Services, principal: Principal, report_id: str) -> tuple[Report, dict[str, Any]]:
    row = reports.get_report(session, principal, report_id)
    with reports.open_document(services, row) as file:
        return row, json.load(file)
