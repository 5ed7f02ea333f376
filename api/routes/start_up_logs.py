"""KV capacity and settings read from a pasted start-up log. Nothing is stored."""

from __future__ import annotations

from contextlib import suppress

from fastapi import APIRouter
from starlette.responses import Response

from api.auth import Reader
from api.catalogue_views import CatalogueView
from api.deps import WriteSession
from api.replies import PostReply
from api.schemas.common import problems
from api.schemas.start_up_logs import StartUpLogOut, StartUpLogRequest
from api.strict import StrictRoute
from models.errors import NotFoundError
from replay.hardware.start_up_log import read_start_up_log

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
    log = read_start_up_log(body.log)
    name = log.value("model")
    if name is not None:
        # A path, or a model that nobody described, is no fault of the log: the answer says what is then assumed.
        with suppress(NotFoundError):
            log = read_start_up_log(body.log, CatalogueView.of(session, principal).model(str(name)))
    return reply.send(200, StartUpLogOut.model_validate(log.document()))
