"""Idempotency-Key: a repeated POST gets the first one's answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.orm import Session

from models.errors import ConflictError, IdempotencyError, InvalidError
from models.principal import Principal
from models.repositories import tenancy
from models.services import Services


@dataclass(frozen=True)
class StoredResponse:
    """An answer as it was given: status, the headers that matter (Location, ETag ...), the body's text."""

    status: int
    headers: dict[str, str]
    body: str


def begin(
    session: Session, principal: Principal, services: Services, key: str, request_sha256: str
) -> StoredResponse | None:
    """Call first, in the request's write session. The stored answer of an earlier equal request, or ``None``: go on.

    ``request_sha256`` covers method, path and body. A concurrent repeat waits for the first one's transaction.
    Raises IdempotencyError (422) where the key was used with another request, InvalidError for an impossible key.
    """
    if not 0 < len(key) <= 200 or not key.isprintable():
        raise InvalidError("Idempotency-Key must have 1 to 200 printable characters", code="idempotency_key.form")
    now = services.clock()
    expired_before = now - timedelta(seconds=services.settings.idempotency_ttl_s)
    row = tenancy.reserve_idempotency_key(session, principal.tenant_id, key, request_sha256, now, expired_before)
    if row is None:
        return None
    if row.request_sha256 != request_sha256:
        raise IdempotencyError("this Idempotency-Key was used with another request: use a fresh one")
    if row.status is None:
        raise ConflictError(
            "the first request with this Idempotency-Key is not answered yet",
            code="idempotency_key.busy",
            retry_after_s=1,
        )
    return StoredResponse(row.status, {name: str(value) for name, value in row.headers.items()}, row.body)


def finish(session: Session, principal: Principal, key: str, response: StoredResponse) -> None:
    """Call last, in the same session: remembers the answer (24 h). A rolled-back request leaves nothing behind."""
    tenancy.complete_idempotency_key(
        session, principal.tenant_id, key, response.status, response.headers, response.body
    )
