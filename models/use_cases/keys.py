"""API keys: ``crp_<id>_<secret>``. The text is shown once; only the hash of the secret is kept."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from models.errors import ConflictError, InvalidError, UnauthorizedError
from models.ids import new_id
from models.paging import Page, PageRequest
from models.principal import SCOPES, Principal
from models.repositories import tenancy
from models.services import Services
from models.tables import ApiKey, Tenant
from models.use_cases import audit
from replay.errors import FieldError

_FORM = re.compile(r"^crp_([0-9a-f]{32})_([A-Za-z0-9_-]{43})\Z")
_UNKNOWN_HASH = "0" * 64
MAX_LIFE = timedelta(days=36_500)
USE_NOTED_EVERY = timedelta(minutes=1)


@dataclass(frozen=True)
class IssuedKey:
    """A new key's row and its full text, which nobody can read again."""

    key: ApiKey
    text: str


def create_tenant(session: Session, services: Services, name: str) -> Tenant:
    """A new tenant (command line only: there is no principal above tenants)."""
    if not 0 < len(name) <= 200 or not name.isprintable():
        raise InvalidError("a tenant's name has 1 to 200 printable characters", code="tenant.name")
    tenant = Tenant(id=new_id("tnt"), name=name, created_at=services.clock())
    session.add(tenant)
    session.flush()
    return tenant


def list_tenants(session: Session) -> list[Tenant]:
    """All tenants (command line only)."""
    return tenancy.list_tenants(session)


def create_key(
    session: Session,
    principal: Principal,
    services: Services,
    *,
    name: str,
    scopes: frozenset[str],
    expires_in: timedelta | None = None,
) -> IssuedKey:
    """A new key of the principal's tenant. Raises InvalidError, ForbiddenError (without ``admin``)."""
    principal.require("admin")
    unknown = sorted(scopes - SCOPES)
    if unknown or not scopes:
        cure = f"choose from {', '.join(sorted(SCOPES))}"
        detail = f"unknown scopes: {', '.join(unknown)}" if unknown else "a key needs at least one scope"
        raise InvalidError(detail, code="key.scopes", errors=[FieldError(detail, field="scopes", cure=cure)])
    if len(name) > 200 or not name.isprintable():
        raise InvalidError("a key's name has at most 200 printable characters", code="key.name")
    if expires_in is not None and not timedelta(0) < expires_in <= MAX_LIFE:
        raise InvalidError("a key's life must be positive, at most 100 years", code="key.expires_in")
    issued = _issue(session, services, principal.tenant_id, name, scopes, expires_in)
    audit.note(session, principal, services, "key.create", issued.key.id, name=name, scopes=sorted(scopes))
    return issued


def list_keys(session: Session, principal: Principal, page: PageRequest) -> Page[ApiKey]:
    """The tenant's keys, newest first, revoked ones too."""
    principal.require("admin")
    return tenancy.list_keys(session, principal.tenant_id, page)


def get_key(session: Session, principal: Principal, key_id: str) -> ApiKey:
    """One key. Raises NotFoundError."""
    principal.require("admin")
    return tenancy.get_key(session, principal.tenant_id, key_id)


def rotate_key(
    session: Session, principal: Principal, services: Services, key_id: str, *, grace: timedelta = timedelta(hours=24)
) -> IssuedKey:
    """A new key of the same name and scopes; the old expires after ``grace``. Raises NotFoundError, ConflictError."""
    principal.require("admin")
    if not timedelta(0) <= grace <= timedelta(days=30):
        raise InvalidError("the grace time is 0 to 30 days", code="key.grace")
    old = tenancy.get_key(session, principal.tenant_id, key_id, lock=True)
    now = services.clock()
    if not _is_valid(old, now) or old.replaced_by is not None:
        raise ConflictError("this key is revoked, expired or rotated already", code="key.not_active")
    life = None if old.expires_at is None else old.expires_at - old.created_at
    issued = _issue(session, services, principal.tenant_id, old.name, frozenset(old.scopes), life)
    old.replaced_by = issued.key.id
    old.expires_at = min(now + grace, old.expires_at or now + grace)
    audit.note(session, principal, services, "key.rotate", old.id, replaced_by=issued.key.id)
    session.flush()
    return issued


def revoke_key(session: Session, principal: Principal, services: Services, key_id: str) -> None:
    """Ends a key at once. Repeating it is harmless. Raises NotFoundError."""
    principal.require("admin")
    key = tenancy.get_key(session, principal.tenant_id, key_id, lock=True)
    if key.revoked_at is None:
        key.revoked_at = services.clock()
        audit.note(session, principal, services, "key.revoke", key.id)
        session.flush()


def authenticate(services: Services, text: str) -> Principal:
    """The principal of a key's text. Opens its own short sessions; notes the last use at most once a minute.

    Raises UnauthorizedError, the same for every cause.
    """
    match = _FORM.match(text)
    now = services.clock()
    key = None
    if match is not None:
        with services.database.read() as session:
            key = tenancy.find_key_of_any_tenant(session, f"key_{match.group(1)}")
    secret = match.group(2) if match else ""
    # An unknown id costs the same comparison as a wrong secret.
    same = hmac.compare_digest(_hash(secret), key.secret_sha256 if key else _UNKNOWN_HASH)
    if key is None or not same or not _is_valid(key, now):
        raise UnauthorizedError("a valid API key is needed: Authorization: Bearer crp_...")
    if key.last_used_at is None or now - key.last_used_at >= USE_NOTED_EVERY:
        with services.database.write() as session:
            tenancy.note_key_use(session, key.id, now)
    return Principal(tenant_id=key.tenant_id, scopes=frozenset(key.scopes), key_id=key.id)


def _issue(
    session: Session, services: Services, tenant_id: str, name: str, scopes: frozenset[str], life: timedelta | None
) -> IssuedKey:
    now = services.clock()
    tenancy.get_tenant(session, tenant_id)
    secret = secrets.token_urlsafe(32)
    key = ApiKey(
        id=new_id("key"),
        tenant_id=tenant_id,
        name=name,
        secret_sha256=_hash(secret),
        scopes=sorted(scopes),
        created_at=now,
        expires_at=None if life is None else now + life,
    )
    session.add(key)
    session.flush()
    return IssuedKey(key, f"crp_{key.id.removeprefix('key_')}_{secret}")


def _is_valid(key: ApiKey, now: datetime) -> bool:
    return key.revoked_at is None and (key.expires_at is None or now < key.expires_at)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
