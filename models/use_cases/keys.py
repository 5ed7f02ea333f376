"""API keys: ``crp_<id>_<secret>``. The text is shown once; only the hash of the secret is kept."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.orm import Session

from models.paging import Page, PageRequest
from models.principal import Principal
from models.services import Services
from models.tables import ApiKey, Tenant


@dataclass(frozen=True)
class IssuedKey:
    """A new key's row and its full text, which nobody can read again."""

    key: ApiKey
    text: str


def create_tenant(session: Session, services: Services, name: str) -> Tenant:
    """A new tenant (command line only: there is no principal above tenants)."""
    raise NotImplementedError


def list_tenants(session: Session) -> list[Tenant]:
    """All tenants (command line only)."""
    raise NotImplementedError


def create_key(
    session: Session,
    principal: Principal,
    services: Services,
    *,
    name: str,
    scopes: frozenset[str],
    expires_in: timedelta | None = None,
) -> IssuedKey:
    """A new key of the principal's tenant. Raises InvalidError for an unknown scope, ForbiddenError without ``admin``."""
    raise NotImplementedError


def list_keys(session: Session, principal: Principal, page: PageRequest) -> Page[ApiKey]:
    """The tenant's keys, newest first, revoked ones too."""
    raise NotImplementedError


def get_key(session: Session, principal: Principal, key_id: str) -> ApiKey:
    """One key. Raises NotFoundError."""
    raise NotImplementedError


def rotate_key(
    session: Session, principal: Principal, services: Services, key_id: str, *, grace: timedelta = timedelta(hours=24)
) -> IssuedKey:
    """A new key with the same name and scopes; the old one expires after ``grace``. Raises NotFoundError, ConflictError."""
    raise NotImplementedError


def revoke_key(session: Session, principal: Principal, services: Services, key_id: str) -> None:
    """Ends a key at once. Repeating it is harmless. Raises NotFoundError."""
    raise NotImplementedError


def authenticate(services: Services, text: str) -> Principal:
    """The principal of a key's text. Opens its own short sessions; notes the last use at most once a minute.

    Raises UnauthorizedError, the same for every cause.
    """
    raise NotImplementedError
