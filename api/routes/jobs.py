"""Jobs: list, read, watch, cancel."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from api.auth import JobWriter, Reader
from api.deps import Context, CurrentServices, JobId, Paging, ReadSession, StreamSlot, WriteSession
from api.events import job_events
from api.job_views import job_out
from api.pagination import ListPage
from api.replies import PostReply, entity
from api.schemas.common import problems
from api.schemas.jobs import ChildJobOut, ChildJobs, JobKind, JobOut, JobStatus, JobSummary
from api.strict import StrictRoute
from models.use_cases import jobs as use_cases

router = APIRouter(prefix="/v1", tags=["jobs"], route_class=StrictRoute)


@router.get("/jobs", operation_id="list_jobs", responses=problems(), summary="Jobs, newest first")
def list_jobs(
    principal: Reader,
    session: ReadSession,
    paging: Paging,
    status: JobStatus | None = None,
    kind: JobKind | None = None,
    trace_id: Annotated[str | None, Query(pattern=r"^trc_[0-9a-f]{32}$")] = None,
    schedule_id: Annotated[str | None, Query(pattern=r"^sch_[0-9a-f]{32}$")] = None,
) -> ListPage[JobSummary]:
    """Ingests, replays and plans; a plan's candidates are at ``/v1/jobs/{job_id}/children``."""
    page = use_cases.list_jobs(
        session, principal, paging.request(), status=status, kind=kind, trace_id=trace_id, schedule_id=schedule_id
    )
    reports = use_cases.reports_of_jobs(session, principal, page.items)
    return paging.page(page, lambda row: JobSummary.of(row, reports.get(row.id)))


@router.get(
    "/jobs/{job_id}", operation_id="get_job", response_model=JobOut, responses=problems(404), summary="One job, to poll"
)
def get_job(request: Request, principal: Reader, session: ReadSession, job_id: JobId) -> Response:
    """While the job is live, ``Retry-After`` says when to ask again."""
    body = JobOut.of_detail(use_cases.get_job(session, principal, job_id))
    return entity(request, body, retry_after_s=body.retry_after_s)


@router.get(
    "/jobs/{job_id}/children",
    operation_id="list_job_children",
    response_model=ChildJobs,
    responses=problems(404),
    summary="The candidates of a plan",
)
def list_job_children(request: Request, principal: Reader, session: ReadSession, job_id: JobId) -> Response:
    """In candidate order; empty for a job that is no plan."""
    rows = use_cases.list_children(session, principal, job_id)
    return entity(request, ChildJobs(items=[ChildJobOut.of_child(row) for row in rows]))


@router.get(
    "/jobs/{job_id}/events",
    operation_id="watch_job",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}, **problems(404)},
    summary="Server-sent events of a job",
)
def watch_job(
    context: Context, principal: Reader, session: ReadSession, _slot: StreamSlot, job_id: JobId
) -> StreamingResponse:
    """An event ``job`` with the job's JSON at each change until it has ended; polling is the contract."""
    first = JobOut.of_detail(use_cases.get_job(session, principal, job_id))
    events: AsyncIterator[str] = job_events(context, principal, first)
    return StreamingResponse(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


@router.post(
    "/jobs/{job_id}/cancel",
    operation_id="cancel_job",
    status_code=202,
    response_model=JobOut,
    responses=problems(404, 409),
    summary="Ask a job to stop",
)
def cancel_job(
    principal: JobWriter, reply: PostReply, session: WriteSession, services: CurrentServices, job_id: JobId
) -> Response:
    """A queued job and a plan are cancelled at once, a running one within about a second."""
    use_cases.cancel_job(session, principal, services, job_id)
    body = job_out(session, principal, job_id)
    return reply.send(202, body, location=f"/v1/jobs/{job_id}", retry_after_s=body.retry_after_s)
