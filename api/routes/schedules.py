"""Schedules: a plan repeated by cron in a time zone."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.auth import JobWriter, Reader
from api.conditional import required_version
from api.deps import CurrentServices, IfMatch, Paging, ReadSession, RequestId, ScheduleId, WriteSession
from api.pagination import ListPage
from api.replies import PostReply, entity
from api.schemas.common import problems
from api.schemas.schedules import ScheduleOut, SchedulePatch, ScheduleRequest, ScheduleRunOut
from api.strict import StrictRoute
from models.use_cases import schedules as use_cases
from models.use_cases.schedule_notes import source_note

router = APIRouter(prefix="/v1", tags=["schedules"], route_class=StrictRoute)


@router.post(
    "/schedules",
    operation_id="create_schedule",
    status_code=201,
    response_model=ScheduleOut,
    responses=problems(400, 404, 409, 413, 415),
    summary="Repeat a plan",
)
def create_schedule(
    principal: JobWriter, reply: PostReply, session: WriteSession, services: CurrentServices, body: ScheduleRequest
) -> Response:
    """Runs at each time of ``cron`` in ``zone``: a time that the clock skips runs at the next valid one.

    The plan is checked as ``POST /v1/plans`` checks it, against the trace or the newest ready one of the stream.
    """
    values = {name: getattr(body, name) for name in ScheduleRequest.model_fields}
    row = use_cases.create_schedule(session, principal, services, **values)
    body_out = ScheduleOut.of(row, source_note(session, row))
    return reply.send(201, body_out, location=f"/v1/schedules/{row.id}", version=row.version)


@router.get("/schedules", operation_id="list_schedules", responses=problems(), summary="Schedules, newest first")
def list_schedules(principal: Reader, session: ReadSession, paging: Paging) -> ListPage[ScheduleOut]:
    """Active and paused ones."""
    return paging.page(use_cases.list_schedules(session, principal, paging.request()), ScheduleOut.of)


@router.get(
    "/schedules/{schedule_id}",
    operation_id="get_schedule",
    response_model=ScheduleOut,
    responses=problems(404),
    summary="One schedule",
)
def get_schedule(request: Request, principal: Reader, session: ReadSession, schedule_id: ScheduleId) -> Response:
    """Its ETag is its version; a change needs it as If-Match."""
    row = use_cases.get_schedule(session, principal, schedule_id)
    return entity(request, ScheduleOut.of(row), version=row.version)


@router.patch(
    "/schedules/{schedule_id}",
    operation_id="update_schedule",
    response_model=ScheduleOut,
    responses=problems(400, 404, 409, 412, 413, 415, 428),
    summary="Change, pause or resume a schedule",
)
def update_schedule(
    request: Request,
    principal: JobWriter,
    session: WriteSession,
    services: CurrentServices,
    schedule_id: ScheduleId,
    body: SchedulePatch,
    if_match: IfMatch = None,
) -> Response:
    """``{"status": "paused"}`` pauses, ``{"status": "active"}`` resumes; runs missed while paused are not caught up."""
    version = required_version(if_match)
    row = use_cases.update_schedule(session, principal, services, schedule_id, body.change(), version=version)
    return entity(request, ScheduleOut.of(row), version=row.version)


@router.delete(
    "/schedules/{schedule_id}",
    operation_id="delete_schedule",
    status_code=204,
    responses=problems(404),
    summary="Delete a schedule",
)
def delete_schedule(
    principal: JobWriter, session: WriteSession, services: CurrentServices, schedule_id: ScheduleId
) -> None:
    """Its runs go with it; jobs and reports stay."""
    use_cases.delete_schedule(session, principal, services, schedule_id)


@router.post(
    "/schedules/{schedule_id}/run",
    operation_id="run_schedule",
    status_code=202,
    response_model=ScheduleRunOut,
    responses=problems(404, 409),
    summary="Run a schedule now",
)
def run_schedule(
    principal: JobWriter,
    reply: PostReply,
    session: WriteSession,
    services: CurrentServices,
    request_id: RequestId,
    schedule_id: ScheduleId,
) -> Response:
    """One run beside the timetable; works while paused."""
    run = ScheduleRunOut.of(use_cases.run_now(session, principal, services, schedule_id, request_id=request_id))
    location = f"/v1/jobs/{run.job_id}" if run.job_id else f"/v1/schedules/{schedule_id}/runs"
    return reply.send(202, run, location=location, retry_after_s=1)


@router.get(
    "/schedules/{schedule_id}/runs",
    operation_id="list_schedule_runs",
    responses=problems(404),
    summary="Runs of a schedule, newest first",
)
def list_schedule_runs(
    principal: Reader, session: ReadSession, paging: Paging, schedule_id: ScheduleId
) -> ListPage[ScheduleRunOut]:
    """Each with its job, or with the reason why there is none."""
    page = use_cases.list_runs(session, principal, schedule_id, paging.request())
    return paging.page(page, ScheduleRunOut.of)
