"""API keys of a tenant; for its administrators."""

from __future__ import annotations

from datetime import timedelta

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.auth import Admin
from api.deps import CurrentServices, KeyId, Paging, ReadSession, WriteSession
from api.pagination import ListPage
from api.replies import PostReply, entity
from api.schemas.common import problems
from api.schemas.keys import IssuedKeyOut, KeyOut, KeyRequest, RotateRequest
from api.strict import StrictRoute
from models.use_cases import keys as use_cases

router = APIRouter(prefix="/v1", tags=["keys"], route_class=StrictRoute)


@router.post(
    "/keys",
    operation_id="create_key",
    status_code=201,
    response_model=IssuedKeyOut,
    responses=problems(400, 413, 415),
    summary="Make an API key",
)
def create_key(
    principal: Admin, reply: PostReply, session: WriteSession, services: CurrentServices, body: KeyRequest
) -> Response:
    """The key's text is in this answer only; of the secret the service keeps a hash."""
    expires_in = None if body.expires_in_days is None else timedelta(days=body.expires_in_days)
    issued = use_cases.create_key(
        session, principal, services, name=body.name, scopes=frozenset(body.scopes), expires_in=expires_in
    )
    answer = IssuedKeyOut.of_issued(issued)
    return reply.send(201, answer, location=f"/v1/keys/{answer.id}", remembered=answer.without_secret())


@router.get("/keys", operation_id="list_keys", responses=problems(), summary="API keys, newest first")
def list_keys(principal: Admin, session: ReadSession, paging: Paging) -> ListPage[KeyOut]:
    """Revoked and expired ones too; never their secrets."""
    return paging.page(use_cases.list_keys(session, principal, paging.request()), KeyOut.of)


@router.get(
    "/keys/{key_id}", operation_id="get_key", response_model=KeyOut, responses=problems(404), summary="One API key"
)
def get_key(request: Request, principal: Admin, session: ReadSession, key_id: KeyId) -> Response:
    """Without its secret."""
    return entity(request, KeyOut.of(use_cases.get_key(session, principal, key_id)))


@router.post(
    "/keys/{key_id}/rotate",
    operation_id="rotate_key",
    status_code=201,
    response_model=IssuedKeyOut,
    responses=problems(400, 404, 409, 413, 415),
    summary="Replace an API key",
)
def rotate_key(
    principal: Admin,
    reply: PostReply,
    session: WriteSession,
    services: CurrentServices,
    key_id: KeyId,
    body: RotateRequest,
) -> Response:
    """A new key with the same name and scopes; the old one works on for ``grace_hours``."""
    issued = use_cases.rotate_key(session, principal, services, key_id, grace=timedelta(hours=body.grace_hours))
    answer = IssuedKeyOut.of_issued(issued)
    return reply.send(201, answer, location=f"/v1/keys/{answer.id}", remembered=answer.without_secret())


@router.delete(
    "/keys/{key_id}", operation_id="revoke_key", status_code=204, responses=problems(404), summary="Revoke an API key"
)
def revoke_key(principal: Admin, session: WriteSession, services: CurrentServices, key_id: KeyId) -> None:
    """At once and for good."""
    use_cases.revoke_key(session, principal, services, key_id)
