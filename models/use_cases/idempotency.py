"""Idempotency-Key: a repeated POST gets the first one's answer."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from models.principal import Principal
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
    raise NotImplementedError


def finish(session: Session, principal: Principal, key: str, response: StoredResponse) -> None:
    """Call last, in the same session: remembers the answer (24 h). A rolled-back request leaves nothing behind."""
    raise NotImplementedError
