"""Tenants, API keys, audit, and remembered Idempotency-Keys."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from models.tables.base import HASH_LENGTH, ID_LENGTH, Base


class Tenant(Base):
    """An organisation. Limits that are null are the settings' defaults."""

    __tablename__ = "tenants"

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    requests_per_minute: Mapped[int | None]
    max_live_jobs: Mapped[int | None]
    max_stored_bytes: Mapped[int | None]
    created_at: Mapped[datetime]


class ApiKey(Base):
    """An API key; of its secret only the SHA-256 is kept."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(ID_LENGTH), ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(200))
    secret_sha256: Mapped[str] = mapped_column(String(HASH_LENGTH))
    scopes: Mapped[list[Any]]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    replaced_by: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    """The key that a rotation put in its place."""

    __table_args__ = (Index(None, "tenant_id", "created_at", "id"),)


class AuditEvent(Base):
    """Who changed a key, a schedule or the catalogue, and when."""

    __tablename__ = "audit_events"

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(ID_LENGTH), ForeignKey("tenants.id"))
    key_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    """The API key that acted; null: local mode or the service itself."""
    action: Mapped[str] = mapped_column(String(60))
    subject_id: Mapped[str] = mapped_column(String(300))
    detail: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]

    __table_args__ = (Index(None, "tenant_id", "created_at", "id"),)


class IdempotencyKey(Base):
    """The answer that was given to a POST, so that a repeat of it gets the same one."""

    __tablename__ = "idempotency_keys"

    tenant_id: Mapped[str] = mapped_column(String(ID_LENGTH), ForeignKey("tenants.id"), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    request_sha256: Mapped[str] = mapped_column(String(HASH_LENGTH))
    status: Mapped[int | None]
    """Null while the first request is still being answered."""
    headers: Mapped[dict[str, Any]]
    body: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(index=True)
