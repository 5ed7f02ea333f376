"""Turns a received upload into a trace and the answer about it."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.responses import Response

from api.conditional import etag
from api.context import ApiContext
from api.ingest_options import UploadParameters
from api.schemas.traces import TraceOut
from models.blobs import StoredUpload
from models.principal import Principal
from models.use_cases.traces import create_trace


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


def accepted(stored: StoredTrace) -> Response:
    """202 with the ingest job's address; 200 where there is nothing left to do."""
    trace = stored.body
    headers = {"Content-Location": f"/v1/traces/{trace.id}", "ETag": etag(stored.version)}
    if not stored.created and trace.status == "ready":
        return Response(trace.model_dump_json(), status_code=200, media_type="application/json", headers=headers)
    headers.update({"Location": f"/v1/jobs/{trace.ingest_job_id}", "Retry-After": "1"})
    return Response(trace.model_dump_json(), status_code=202, media_type="application/json", headers=headers)
