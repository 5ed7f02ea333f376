"""Traces."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.paging import Page, PageRequest
from models.repositories.scope import get_row, has_row, of_tenant, page_of
from models.tables import Trace


def get_trace(session: Session, tenant_id: str, trace_id: str, *, lock: bool = False) -> Trace:
    """One trace. Raises NotFoundError."""
    return get_row(session, Trace, tenant_id, trace_id, lock=lock)


def has_trace(session: Session, tenant_id: str, trace_id: str | None) -> bool:
    """Whether the trace is (still) there."""
    return has_row(session, Trace, tenant_id, trace_id)


def list_traces(session: Session, tenant_id: str, page: PageRequest, stream: str | None) -> Page[Trace]:
    """Traces, newest first."""
    statement = of_tenant(Trace, tenant_id)
    if stream is not None:
        statement = statement.where(Trace.stream == stream)
    return page_of(session, statement, Trace, page)


def find_by_content(session: Session, tenant_id: str, content_key: str) -> Trace | None:
    """The trace of an equal upload that did not fail."""
    return session.scalars(
        of_tenant(Trace, tenant_id).where(Trace.content_key == content_key, Trace.status != "failed")
    ).one_or_none()


def list_of_stream(session: Session, tenant_id: str, stream: str, limit: int = 500) -> list[Trace]:
    """The newest traces of a stream, newest first, whatever became of them."""
    statement = of_tenant(Trace, tenant_id).where(Trace.stream == stream)
    return list(session.scalars(statement.order_by(Trace.created_at.desc(), Trace.id.desc()).limit(limit)))


def find_newest_ready(session: Session, tenant_id: str, stream: str) -> Trace | None:
    """The newest ready trace of a stream."""
    statement = of_tenant(Trace, tenant_id).where(Trace.stream == stream, Trace.status == "ready")
    return session.scalars(statement.order_by(Trace.created_at.desc(), Trace.id.desc()).limit(1)).one_or_none()


def list_of_ingest_job(session: Session, job_id: str) -> list[Trace]:
    """The traces that one ingest job makes ready: uploads of equal content share it."""
    statement = select(Trace).where(Trace.ingest_job_id == job_id).order_by(Trace.created_at, Trace.id)
    return list(session.scalars(statement.execution_options(populate_existing=True)))


def fail_of_ingest_job(session: Session, job_id: str, now: datetime) -> None:
    """Marks the traces that wait for this job as failed."""
    _settle(session, job_id, {"status": "failed", "updated_at": now})


def make_ready(
    session: Session, job_id: str, canonical_sha256: str, canonical_bytes: int, report: dict[str, Any], now: datetime
) -> None:
    """Gives the traces that wait for this job its outcome."""
    values = {
        "status": "ready",
        "canonical_sha256": canonical_sha256,
        "canonical_bytes": canonical_bytes,
        "report": report,
        "updated_at": now,
    }
    _settle(session, job_id, values)


def _settle(session: Session, job_id: str, values: dict[str, Any]) -> None:
    statement = select(Trace).where(Trace.ingest_job_id == job_id, Trace.status == "ingesting").order_by(Trace.id)
    for trace in session.scalars(statement.with_for_update().execution_options(populate_existing=True)):
        for name, value in values.items():
            setattr(trace, name, value)
        trace.version += 1
    session.flush()
