"""Traces: store an upload, read what became of it, delete it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from models.blobs import StoredUpload
from models.paging import Page, PageRequest
from models.principal import Principal
from models.services import Services
from models.tables import Job, Trace
from replay.traces.options import IngestOptions


@dataclass(frozen=True)
class CreatedTrace:
    """The trace, its ingest job, and whether this call created them (False: the same upload was here already)."""

    trace: Trace
    job: Job
    created: bool


def check_upload_allowed(session: Session, principal: Principal, services: Services, content_length: int | None) -> None:
    """Before a body is read: scope, stored bytes of the tenant, declared length against the limit.

    Raises ForbiddenError, LimitError (429) or TooLargeError (413).
    """
    raise NotImplementedError


def create_trace(
    session: Session,
    principal: Principal,
    services: Services,
    upload: StoredUpload,
    *,
    name: str,
    options: IngestOptions,
    stream: str | None = None,
    request_id: str | None = None,
) -> CreatedTrace:
    """Moves a finished upload (``models.blobs.UploadWriter``) into the blob store, inserts the trace and its ingest job.

    The same content, options and stream as a trace that did not fail gives that trace. Raises LimitError, InvalidError.
    """
    raise NotImplementedError


def list_traces(session: Session, principal: Principal, page: PageRequest, *, stream: str | None = None) -> Page[Trace]:
    """The tenant's traces, newest first."""
    raise NotImplementedError


def get_trace(session: Session, principal: Principal, trace_id: str) -> Trace:
    """One trace; ``trace.report`` has format, assumptions, cleaning report and profile once ``status`` is ``ready``.

    Raises NotFoundError.
    """
    raise NotImplementedError


def get_ready_trace(session: Session, principal: Principal, trace_id: str) -> Trace:
    """A trace that can be planned on. Raises NotFoundError; ConflictError ``trace.not_ready`` or ``trace.failed``."""
    raise NotImplementedError


def delete_trace(session: Session, principal: Principal, services: Services, trace_id: str) -> None:
    """Deletes a trace; its blobs follow after the grace time, reports made of it stay.

    Raises NotFoundError; ConflictError where a live job or a schedule still uses it.
    """
    raise NotImplementedError
