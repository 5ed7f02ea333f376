"""Blobs and traces."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from models.tables.base import HASH_LENGTH, ID_LENGTH, Base

TRACE_STATUSES = ("ingesting", "ready", "failed")


class Blob(Base):
    """A file of the blob store, named by the SHA-256 of its content. Deleted when nothing refers to it any more."""

    __tablename__ = "blobs"

    sha256: Mapped[str] = mapped_column(String(HASH_LENGTH), primary_key=True)
    bytes: Mapped[int]
    """0 where the file is gone: an upload that was read and is not kept (``CAPREPLAY_KEEP_UPLOADS``)."""
    last_used_at: Mapped[datetime] = mapped_column(index=True)
    """When it was last stored; the grace time before deletion starts here."""


class Trace(Base):
    """An uploaded request log. Immutable but for its name and the outcome of its ingest job."""

    __tablename__ = "traces"

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(ID_LENGTH), ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(200))
    stream: Mapped[str | None] = mapped_column(String(100))
    """Label under which later uploads continue this one; a schedule may use a stream's newest trace."""
    status: Mapped[str] = mapped_column(String(20))
    source_sha256: Mapped[str] = mapped_column(String(HASH_LENGTH), ForeignKey("blobs.sha256"))
    """The upload as it came; its file may be gone once it is read."""
    source_bytes: Mapped[int]
    options: Mapped[dict[str, Any]]
    """``IngestOptions`` as JSON."""
    content_key: Mapped[str] = mapped_column(String(HASH_LENGTH))
    """Hash of source, options and stream: equal uploads are one trace."""
    ingest_job_id: Mapped[str] = mapped_column(String(ID_LENGTH))
    canonical_sha256: Mapped[str | None] = mapped_column(String(HASH_LENGTH), ForeignKey("blobs.sha256"))
    canonical_bytes: Mapped[int | None]
    report: Mapped[dict[str, Any] | None]
    """``IngestReport`` as JSON: format, assumptions, cleaning report, profile. Null until ready."""
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    version: Mapped[int] = mapped_column(default=1)

    __table_args__ = (
        CheckConstraint(f"status IN {TRACE_STATUSES}", name="status"),
        Index(None, "tenant_id", "created_at", "id"),
        Index(None, "tenant_id", "stream", "created_at"),
        Index(None, "source_sha256"),
        Index(None, "ingest_job_id"),
        Index(None, "canonical_sha256"),
        Index(
            "uq_traces_tenant_id_content_key",
            "tenant_id",
            "content_key",
            unique=True,
            sqlite_where=text("status <> 'failed'"),
            postgresql_where=text("status <> 'failed'"),
        ),
    )
