"""Tenants, keys, audit, Idempotency-Keys."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from models.dialect import insert_or_ignore
from models.errors import NotFoundError
from models.ids import new_id
from models.paging import Page, PageRequest
from models.repositories.scope import get_row, of_tenant, page_of
from models.tables import ApiKey, AuditEvent, IdempotencyKey, Tenant


def get_tenant(session: Session, tenant_id: str) -> Tenant:
    """The tenant's row. Raises NotFoundError; only a command line can name one that does not exist."""
    tenant = session.get(Tenant, tenant_id)
    if tenant is None:
        raise NotFoundError(f"there is no tenant {tenant_id[:60]!r}", code="tenant.not_found")
    return tenant


def list_tenants(session: Session) -> list[Tenant]:
    """All tenants, oldest first."""
    return list(session.scalars(select(Tenant).order_by(Tenant.created_at, Tenant.id)))


def find_key_of_any_tenant(session: Session, key_id: str) -> ApiKey | None:
    """For authentication only: there is no tenant yet."""
    return session.get(ApiKey, key_id)


def get_key(session: Session, tenant_id: str, key_id: str, *, lock: bool = False) -> ApiKey:
    """One key. Raises NotFoundError."""
    return get_row(session, ApiKey, tenant_id, key_id, lock=lock)


def list_keys(session: Session, tenant_id: str, page: PageRequest) -> Page[ApiKey]:
    """Keys, newest first."""
    return page_of(session, of_tenant(ApiKey, tenant_id), ApiKey, page)


def note_key_use(session: Session, key_id: str, now: datetime) -> None:
    """Writes the time of last use."""
    session.execute(update(ApiKey).where(ApiKey.id == key_id).values(last_used_at=now))


def add_audit(
    session: Session,
    tenant_id: str,
    key_id: str | None,
    action: str,
    subject_id: str,
    detail: dict[str, Any],
    now: datetime,
) -> None:
    """Adds an audit row."""
    session.add(
        AuditEvent(
            id=new_id("aud"),
            tenant_id=tenant_id,
            key_id=key_id,
            action=action,
            subject_id=subject_id,
            detail=detail,
            created_at=now,
        )
    )


def reserve_idempotency_key(
    session: Session, tenant_id: str, key: str, request_sha256: str, now: datetime, expired_before: datetime
) -> IdempotencyKey | None:
    """Takes the key for this request (``None``), or gives the row of the request that has it."""
    session.execute(
        delete(IdempotencyKey).where(
            IdempotencyKey.tenant_id == tenant_id, IdempotencyKey.key == key, IdempotencyKey.created_at < expired_before
        )
    )
    values = {
        "tenant_id": tenant_id,
        "key": key,
        "request_sha256": request_sha256,
        "headers": {},
        "body": "",
        "created_at": now,
    }
    if insert_or_ignore(session, IdempotencyKey, values):
        return None
    return session.get_one(IdempotencyKey, (tenant_id, key), populate_existing=True)


def complete_idempotency_key(
    session: Session, tenant_id: str, key: str, status: int, headers: dict[str, str], body: str
) -> None:
    """Stores the answer under a key taken before."""
    session.execute(
        update(IdempotencyKey)
        .where(IdempotencyKey.tenant_id == tenant_id, IdempotencyKey.key == key)
        .values(status=status, headers=headers, body=body)
    )


def delete_old_idempotency_keys(session: Session, before: datetime) -> None:
    """Forgets answers older than ``before``."""
    session.execute(delete(IdempotencyKey).where(IdempotencyKey.created_at < before))
