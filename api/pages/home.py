"""The first page: upload a trace, and what was done last."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from api.auth import Reader
from api.context import context_of
from api.deps import ReadSession
from api.pages.render import PageRoute, page
from models.paging import PageRequest
from models.use_cases import jobs, reports, traces

router = APIRouter(route_class=PageRoute)

_RECENT = PageRequest(limit=8)


@router.get("/")
def show_home(request: Request, session: ReadSession, principal: Reader) -> Response:
    """Upload form, recent traces, jobs and reports."""
    made = reports.list_reports(session, principal, _RECENT).items
    return page(
        request,
        "home.html",
        title="How many GPUs?",
        base=context_of(request).settings.public_url or str(request.base_url).rstrip("/"),
        traces=traces.list_traces(session, principal, _RECENT).items,
        jobs=jobs.list_jobs(session, principal, _RECENT).items,
        reports=made,
        asked=reports.jobs_of_reports(session, principal, made),
    )
