"""How routes answer: an entity with its ETag, or the outcome of a POST, remembered under its Idempotency-Key."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Request
from pydantic import BaseModel
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.auth import principal_of
from api.conditional import etag, matches
from api.deps import CurrentServices, WriteSession
from models.principal import Principal
from models.use_cases.idempotency import StoredResponse, begin, finish

JSON_TYPE = "application/json"
_REMEMBERED_HEADERS = ("location", "retry-after", "etag")


def entity(
    request: Request, body: BaseModel, *, version: int | None = None, retry_after_s: int | None = None
) -> Response:
    """200 with the body and its ETag (the row's version, else the content's hash), or 304 where the client has it."""
    text = body.model_dump_json()
    tag = etag(version if version is not None else hashlib.sha256(text.encode()).hexdigest()[:32])
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if retry_after_s is not None:
        headers["Retry-After"] = str(retry_after_s)
    if matches(request.headers.get("if-none-match"), tag):
        return Response(status_code=304, headers=headers)
    return Response(text, media_type=JSON_TYPE, headers=headers)


class RepeatedRequest(Exception):  # noqa: N818 - no error: it carries the first request's answer out of a dependency
    """A POST whose Idempotency-Key was answered before."""

    def __init__(self, stored: StoredResponse) -> None:
        super().__init__("answered before")
        self.stored = stored


@dataclass(frozen=True)
class Reply:
    """Answers a POST and, where the client gave an Idempotency-Key, remembers the answer in the same transaction."""

    session: Session
    principal: Principal
    key: str | None

    def send(
        self,
        status: int,
        body: BaseModel,
        *,
        location: str | None = None,
        version: int | None = None,
        retry_after_s: int | None = None,
        remembered: BaseModel | None = None,
    ) -> Response:
        """The response. ``remembered`` replaces the body that a repeat gets, where the first one holds a secret."""
        headers: dict[str, str] = {}
        if location is not None:
            headers["location"] = location
        if version is not None:
            headers["etag"] = etag(version)
        if retry_after_s is not None:
            headers["retry-after"] = str(retry_after_s)
        if self.key is not None:
            kept = (remembered or body).model_dump_json()
            finish(self.session, self.principal, self.key, StoredResponse(status, headers, kept))
        return Response(body.model_dump_json(), status_code=status, media_type=JSON_TYPE, headers=headers)


def reply_of(
    request: Request,
    session: WriteSession,
    principal: Annotated[Principal, Depends(principal_of)],
    services: CurrentServices,
    key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            min_length=1,
            max_length=200,
            pattern=r"^[\x21-\x7e]+$",
            description="A repeat within 24 h gets the first answer; with another body it is refused",
        ),
    ] = None,
) -> Reply:
    """The reply of a POST. Raises RepeatedRequest where the same request was answered before."""
    if key is not None:
        stored = begin(session, principal, services, key, _digest(request))
        if stored is not None:
            raise RepeatedRequest(stored)
    return Reply(session, principal, key)


def _digest(request: Request) -> str:
    body: str = getattr(request.state, "body_sha256", "")
    text = f"{request.method} {request.url.path}?{request.url.query} {body}"
    return hashlib.sha256(text.encode()).hexdigest()


PostReply = Annotated[Reply, Depends(reply_of, scope="function")]


async def _on_repeated(request: Request, repeated: Any) -> Response:
    stored: StoredResponse = repeated.stored
    headers = {name: value for name, value in stored.headers.items() if name in _REMEMBERED_HEADERS}
    headers["idempotency-replayed"] = "true"
    return Response(stored.body, status_code=stored.status, media_type=JSON_TYPE, headers=headers)


def install_replay_handler(app: FastAPI) -> None:
    """Answers a repeated POST with what was remembered."""
    app.add_exception_handler(RepeatedRequest, _on_repeated)
