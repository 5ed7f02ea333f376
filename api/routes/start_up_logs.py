"""KV capacity and settings read from a pasted start-up log. Nothing is stored."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from api.auth import Reader
from api.deps import WriteSession
from api.replies import PostReply
from api.schemas.common import problems
from api.schemas.start_up_logs import StartUpLogOut, StartUpLogRequest
from api.strict import StrictRoute
from models.use_cases.start_up_logs import read_log

router = APIRouter(prefix="/v1", tags=["calibrations"], route_class=StrictRoute)


@router.post(
    "/start-up-logs",
    operation_id="read_start_up_log",
    response_model=StartUpLogOut,
    responses=problems(400, 413, 415),
    summary="Read KV blocks and settings from a server's start-up log",
)
def post_start_up_log(principal: Reader, reply: PostReply, session: WriteSession, body: StartUpLogRequest) -> Response:
    """Each setting with its line; what the log does not say is named. Nothing is stored."""
    log = read_log(session, principal, body.log)
    return reply.send(200, StartUpLogOut.model_validate(log.document()))
