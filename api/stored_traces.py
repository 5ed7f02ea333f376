"""Turns a received upload into a trace and the answer about it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from sqlalchemy.orm import Session
from starlette.responses import Response

from api.conditional import etag
from api.context import ApiContext
from api.ingest_options import UploadParameters
from api.schemas.traces import TraceOut
from models.blobs import StoredUpload
from models.errors import InvalidError
from models.principal import Principal
from models.tables import Trace
from models.use_cases.jobs import get_job
from models.use_cases.traces import create_trace, get_ready_trace, get_trace
from replay.errors import FieldError


@dataclass(frozen=True)
class StoredTrace:
    """The trace as it is answered; ``created`` is False where the same upload was here already."""

    body: TraceOut
    version: int
    created: bool


def store_trace(
    context: ApiContext, principal: Principal, upload: StoredUpload, parameters: UploadParameters, request_id: str
) -> StoredTrace:
    """Commits the trace with its ingest job. Blocking."""
    with context.services.database.write() as session:
        made = create_trace(
            session,
            principal,
            context.services,
            upload,
            name=parameters.name,
            options=parameters.options,
            stream=parameters.stream,
            request_id=request_id,
        )
        return StoredTrace(TraceOut.of(made.trace), made.trace.version, made.created)


def readable_trace(session: Session, principal: Principal, trace_id: str) -> Trace:
    """A trace that is ready.

    Raises:
        InvalidError: its file could not be read; with the ingest's own code, sentence, lines, columns, rules and cures.
        NotFoundError. ConflictError: it is still being read.
    """
    trace = get_trace(session, principal, trace_id)
    job = get_job(session, principal, trace.ingest_job_id).job if trace.status == "failed" else None
    if job is not None and job.error_code is not None:
        known = {field.name for field in fields(FieldError)}
        faults = [FieldError(**{"detail": "", **{k: v for k, v in e.items() if k in known}}) for e in job.errors or ()]
        raise InvalidError(job.error_detail or "this file could not be read", code=job.error_code, errors=faults)
    return get_ready_trace(session, principal, trace_id)


def accepted(stored: StoredTrace) -> Response:
    """202 with the ingest job's address; 200 where there is nothing left to do."""
    trace = stored.body
    headers = {"Content-Location": f"/v1/traces/{trace.id}", "ETag": etag(stored.version)}
    if not stored.created and trace.status == "ready":
        return Response(trace.model_dump_json(), status_code=200, media_type="application/json", headers=headers)
    headers.update({"Location": f"/v1/jobs/{trace.ingest_job_id}", "Retry-After": "1"})
    return Response(trace.model_dump_json(), status_code=202, media_type="application/json", headers=headers)
