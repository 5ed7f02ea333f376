"""Reports: the document as JSON, one HTML file, or CSV."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from api.auth import JobWriter, Reader
from api.deps import CurrentServices, Paging, ReadSession, ReportId, WriteSession
from api.documents import FORMS, Form, negotiate, render, requests_table
from api.pagination import ListPage
from api.schemas.common import problems
from api.schemas.reports import ReportSummary
from api.strict import StrictRoute
from models.use_cases import reports as use_cases
from replay.planning.document import PlanReport, ReplayReport

router = APIRouter(prefix="/v1", tags=["reports"], route_class=StrictRoute)

_FILE = {form.media_type: {"schema": {"type": "string"}} for form in FORMS.values() if form.name != "json"}


@router.get("/reports", operation_id="list_reports", responses=problems(404), summary="Reports, newest first")
def list_reports(
    principal: Reader,
    session: ReadSession,
    paging: Paging,
    kind: Annotated[str | None, Query(pattern=r"^(plan|replay)$")] = None,
    trace_id: Annotated[str | None, Query(pattern=r"^trc_[0-9a-f]{32}$")] = None,
    calibration_id: Annotated[str | None, Query(pattern=r"^cal_[0-9a-f]{32}$")] = None,
) -> ListPage[ReportSummary]:
    """Rows; a document is at ``/v1/reports/{report_id}``. ``calibration_id``: of your own, those that rest on it."""
    page = use_cases.list_reports(
        session, principal, paging.request(), kind=kind, trace_id=trace_id, calibration_id=calibration_id
    )
    return paging.page(page, ReportSummary.of)


def _answer(
    request: Request, principal: Reader, session: ReadSession, services: CurrentServices, ids: tuple[str, Form]
) -> Response:
    report = use_cases.get_report(session, principal, ids[0])
    return render(request, services, report, ids[1])


@router.get(
    "/reports/{report_id}.html",
    operation_id="get_report_html",
    responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}, **problems(404)},
    response_class=Response,
    summary="A report as one HTML file that opens offline",
)
def get_report_html(
    request: Request, principal: Reader, session: ReadSession, services: CurrentServices, report_id: ReportId
) -> Response:
    """Charts, styles and scripts are inside; it comes as a download."""
    return _answer(request, principal, session, services, (report_id, FORMS["html"]))


@router.get(
    "/reports/{report_id}.csv",
    operation_id="get_report_csv",
    responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}, **problems(404)},
    response_class=Response,
    summary="A report's table as CSV",
)
def get_report_csv(
    request: Request, principal: Reader, session: ReadSession, services: CurrentServices, report_id: ReportId
) -> Response:
    """A row for each candidate of a plan, or one row for a replay."""
    return _answer(request, principal, session, services, (report_id, FORMS["csv"]))


@router.get(
    "/reports/{report_id}/requests.parquet",
    operation_id="get_report_requests",
    responses={
        200: {"content": {"application/vnd.apache.parquet": {"schema": {"type": "string", "format": "binary"}}}},
        **problems(404),
    },
    response_class=StreamingResponse,
    summary="The per-request table of a replay",
)
def get_report_requests(
    principal: Reader, session: ReadSession, services: CurrentServices, report_id: ReportId
) -> Response:
    """Parquet; a plan's report has none."""
    return requests_table(services, use_cases.get_report(session, principal, report_id))


@router.get(
    "/reports/{report_id}",
    operation_id="get_report",
    response_model=PlanReport | ReplayReport,
    responses={200: {"content": _FILE}, **problems(404, 406)},
    summary="A report",
)
def get_report(
    request: Request, principal: Reader, session: ReadSession, services: CurrentServices, report_id: ReportId
) -> Response:
    """JSON (``capreplay.report/1``), or HTML or CSV where ``Accept`` prefers them."""
    form = negotiate(request.headers.get("accept", "*/*"))
    return _answer(request, principal, session, services, (report_id, form))


@router.delete(
    "/reports/{report_id}",
    operation_id="delete_report",
    status_code=204,
    responses=problems(404),
    summary="Delete a report",
)
def delete_report(principal: JobWriter, session: WriteSession, services: CurrentServices, report_id: ReportId) -> None:
    """Its files follow after a grace time; the same request made again is computed again."""
    use_cases.delete_report(session, principal, services, report_id)
