"""Blob rows: what is stored, and what nothing refers to any more."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

from sqlalchemy import ColumnElement, CursorResult, and_, case, delete, func, or_, select
from sqlalchemy.orm import Session

from models.blobs import PROBE_SHA256
from models.dialect import upsert
from models.repositories.jobs import LIVE
from models.tables import Blob, Job, JobFile, Report, Trace


def note_blob(session: Session, sha256: str, size_bytes: int, now: datetime) -> None:
    """Records a blob as just used, so that no sweeper takes it. Call before the file is put in the store."""
    upsert(session, Blob, {"sha256": sha256, "bytes": size_bytes, "last_used_at": now}, ["sha256"])


def stored_bytes(session: Session, tenant_id: str) -> int:
    """Bytes of the tenant's uploads while they are kept, their canonical forms, reports, tables of requests and files
    of live jobs; shared blobs count each."""
    upload = case((Blob.bytes > 0, Trace.source_bytes), else_=0)
    traces = select(func.sum(upload + func.coalesce(Trace.canonical_bytes, 0))).join(
        Blob, Blob.sha256 == Trace.source_sha256
    )
    reports = select(func.sum(Report.document_bytes + func.coalesce(Report.requests_bytes, 0)))
    files = select(func.sum(JobFile.bytes)).join(Job, Job.id == JobFile.job_id).where(Job.status.in_(LIVE))
    totals = [
        traces.where(Trace.tenant_id == tenant_id),
        reports.where(Report.tenant_id == tenant_id),
        files.where(Job.tenant_id == tenant_id),
    ]
    return sum(int(session.scalars(total).one() or 0) for total in totals)


def _unreferenced() -> ColumnElement[bool]:
    references = (Trace.source_sha256, Trace.canonical_sha256, Report.document_sha256, Report.requests_sha256)
    referenced = or_(*(select(1).where(column == Blob.sha256).exists() for column in references), _awaited())
    return and_(~referenced, Blob.sha256 != PROBE_SHA256)


def _awaited() -> ColumnElement[bool]:
    """Whether a live job reads the blob."""
    live = and_(JobFile.sha256 == Blob.sha256, Job.id == JobFile.job_id, Job.status.in_(LIVE))
    return select(1).where(live).exists()


def list_unused(session: Session, before: datetime, limit: int = 1000) -> list[str]:
    """Blobs that nothing refers to and nobody stored since ``before``."""
    return list(session.scalars(select(Blob.sha256).where(Blob.last_used_at < before, _unreferenced()).limit(limit)))


def delete_if_unused(session: Session, sha256: str, before: datetime) -> bool:
    """Deletes the row if that is still so; the caller deletes the file before this transaction ends."""
    statement = delete(Blob).where(Blob.sha256 == sha256, Blob.last_used_at < before, _unreferenced())
    result = session.execute(statement, execution_options={"synchronize_session": False})
    return cast("CursorResult[Any]", result).rowcount == 1


def _is_upload(*, waiting: bool) -> ColumnElement[bool]:
    """Whether the blob is a trace's upload; ``waiting``: of one that is still to be read."""
    source = select(1).where(Trace.source_sha256 == Blob.sha256)
    return (source.where(Trace.status == "ingesting") if waiting else source).exists()


def _is_read_upload() -> ColumnElement[bool]:
    others = (Trace.canonical_sha256, Report.document_sha256, Report.requests_sha256)
    needed = or_(*(select(1).where(column == Blob.sha256).exists() for column in others), _awaited())
    return and_(Blob.bytes > 0, _is_upload(waiting=False), ~_is_upload(waiting=True), ~needed)


def list_read_uploads(session: Session, before: datetime, limit: int = 1000) -> list[str]:
    """Uploads stored before ``before`` that no ingest waits for any more, their files still there."""
    return list(session.scalars(select(Blob.sha256).where(Blob.last_used_at < before, _is_read_upload()).limit(limit)))


def let_go_of_upload(session: Session, sha256: str) -> bool:
    """Marks an upload's file as gone if no ingest waits for it; the caller deletes it before this transaction ends."""
    blob = session.get(Blob, sha256, with_for_update=True)  # first: who stores it again holds the row until the end
    if blob is None or session.scalar(select(1).where(Blob.sha256 == sha256, _is_read_upload())) is None:
        return False
    blob.bytes = 0
    session.flush()
    return True


def exists(session: Session, sha256: str) -> bool:
    """Whether the database knows the blob."""
    return session.get(Blob, sha256) is not None
