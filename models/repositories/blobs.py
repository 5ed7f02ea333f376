"""Blob rows: what is stored, and what nothing refers to any more."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

from sqlalchemy import ColumnElement, CursorResult, and_, delete, func, or_, select
from sqlalchemy.orm import Session

from models.blobs import PROBE_SHA256
from models.dialect import upsert
from models.tables import Blob, Report, Trace


def note_blob(session: Session, sha256: str, size_bytes: int, now: datetime) -> None:
    """Records a blob as just used, so that no sweeper takes it. Call before the file is put in the store."""
    upsert(session, Blob, {"sha256": sha256, "bytes": size_bytes, "last_used_at": now}, ["sha256"])


def stored_bytes(session: Session, tenant_id: str) -> int:
    """Bytes of the tenant's uploads, their canonical forms, reports and tables of requests; shared blobs count each."""
    traces = select(func.sum(Trace.source_bytes + func.coalesce(Trace.canonical_bytes, 0)))
    reports = select(func.sum(Report.document_bytes + func.coalesce(Report.requests_bytes, 0)))
    totals = [traces.where(Trace.tenant_id == tenant_id), reports.where(Report.tenant_id == tenant_id)]
    return sum(int(session.scalars(total).one() or 0) for total in totals)


def _unreferenced() -> ColumnElement[bool]:
    references = (Trace.source_sha256, Trace.canonical_sha256, Report.document_sha256, Report.requests_sha256)
    referenced = or_(*(select(1).where(column == Blob.sha256).exists() for column in references))
    return and_(~referenced, Blob.sha256 != PROBE_SHA256)


def list_unused(session: Session, before: datetime, limit: int = 1000) -> list[str]:
    """Blobs that nothing refers to and nobody stored since ``before``."""
    return list(session.scalars(select(Blob.sha256).where(Blob.last_used_at < before, _unreferenced()).limit(limit)))


def delete_if_unused(session: Session, sha256: str, before: datetime) -> bool:
    """Deletes the row if that is still so; the caller deletes the file before this transaction ends."""
    statement = delete(Blob).where(Blob.sha256 == sha256, Blob.last_used_at < before, _unreferenced())
    result = session.execute(statement, execution_options={"synchronize_session": False})
    return cast("CursorResult[Any]", result).rowcount == 1


def exists(session: Session, sha256: str) -> bool:
    """Whether the database knows the blob."""
    return session.get(Blob, sha256) is not None
