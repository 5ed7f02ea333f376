"""Start a plan or a replay."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from api.auth import JobWriter
from api.deps import CurrentServices, RequestId, WriteSession
from api.job_views import job_out
from api.replies import PostReply, Reply
from api.schemas.common import problems
from api.schemas.jobs import JobOut, PlanRequest, ReplayRequest
from api.strict import StrictRoute
from models.jobs import StartedJob
from models.use_cases.plans import start_plan
from models.use_cases.replays import start_replay

router = APIRouter(prefix="/v1", tags=["plans"], route_class=StrictRoute)


def _started(reply: Reply, started: StartedJob) -> Response:
    body = job_out(reply.session, reply.principal, started.job.id)
    return reply.send(202, body, location=f"/v1/jobs/{body.id}", retry_after_s=body.retry_after_s)


@router.post(
    "/plans",
    operation_id="create_plan",
    status_code=202,
    response_model=JobOut,
    responses=problems(400, 404, 409, 413, 415),
    summary="Size a trace: how many GPUs, of which type, at what cost",
)
def create_plan(
    principal: JobWriter,
    reply: PostReply,
    session: WriteSession,
    services: CurrentServices,
    request_id: RequestId,
    body: PlanRequest,
) -> Response:
    """Answers at once with the plan's job; an equal plan that is live or has succeeded is answered with its job."""
    started = start_plan(session, principal, services, body.trace_id, body.spec(), request_id=request_id)
    return _started(reply, started)


@router.post(
    "/replays",
    operation_id="create_replay",
    status_code=202,
    response_model=JobOut,
    responses=problems(400, 404, 409, 413, 415),
    summary="Replay a trace on one deployment",
)
def create_replay(
    principal: JobWriter,
    reply: PostReply,
    session: WriteSession,
    services: CurrentServices,
    request_id: RequestId,
    body: ReplayRequest,
) -> Response:
    """Answers at once with the replay's job; an equal replay that is live or has succeeded is answered with its job."""
    spec = body.spec()
    started = start_replay(session, principal, services, body.trace_id, spec, name=body.name, request_id=request_id)
    return _started(reply, started)
