"""A tenant's own catalogue entries."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from models.tables.base import ID_LENGTH, Base


class CatalogueEntry(Base):
    """A GPU type, model spec or price that a tenant added; it hides a shipped one of the same key."""

    __tablename__ = "catalogue_entries"

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(ID_LENGTH), ForeignKey("tenants.id"))
    kind: Mapped[str] = mapped_column(String(20))
    key: Mapped[str] = mapped_column(String(300))
    document: Mapped[dict[str, Any]]
    """The entry as JSON (``replay.hardware.entries``), with a ``schema_version``."""
    created_at: Mapped[datetime]

    __table_args__ = (
        CheckConstraint("kind IN ('gpu', 'model', 'price')", name="kind"),
        UniqueConstraint("tenant_id", "kind", "key"),
    )
