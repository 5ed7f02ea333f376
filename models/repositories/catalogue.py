"""Tenants' own catalogue entries."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from models.dialect import upsert
from models.ids import new_id
from models.repositories.scope import of_tenant
from models.tables import CatalogueEntry


def list_entries(session: Session, tenant_id: str) -> list[CatalogueEntry]:
    """All entries of a tenant, by kind and key."""
    statement = of_tenant(CatalogueEntry, tenant_id).order_by(CatalogueEntry.kind, CatalogueEntry.key)
    return list(session.scalars(statement))


def find_entry(session: Session, tenant_id: str, kind: str, key: str) -> CatalogueEntry | None:
    """One entry."""
    statement = of_tenant(CatalogueEntry, tenant_id).where(CatalogueEntry.kind == kind, CatalogueEntry.key == key)
    return session.scalars(statement).one_or_none()


def put_entry(session: Session, tenant_id: str, kind: str, key: str, document: dict[str, Any], now: datetime) -> None:
    """Adds an entry or replaces the one of the same key."""
    values = {
        "id": new_id("cat"),
        "tenant_id": tenant_id,
        "kind": kind,
        "key": key,
        "document": document,
        "created_at": now,
    }
    upsert(session, CatalogueEntry, values, ["tenant_id", "kind", "key"])
