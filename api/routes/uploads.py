"""Uploads that a broken line does not start anew: the tus protocol 1.0.0, core, creation, expiration, termination.

A complete upload becomes a trace, as the body of ``PUT /v1/traces`` does. Our own, see docs/adr/0006.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth import TraceWriter
from api.deps import Context, RequestId
from api.errors import TUS_VERSION, MediaTypeError, TusVersionError
from api.ingest_options import UploadParameters, upload_parameters
from api.resumable_uploads import append, begin, byte_count, tus_headers, uploads_of
from api.schemas.common import problems
from api.strict import StrictRoute

router = APIRouter(prefix="/v1", tags=["uploads"], route_class=StrictRoute)

_MEDIA_TYPE = "application/offset+octet-stream"
_BINARY = {"schema": {"type": "string", "format": "binary"}}
UploadId = Annotated[str, Path(pattern=r"^upl_[0-9a-f]{32}$", description="Id of an upload")]


def _tus_version(
    _principal: TraceWriter,  # who asks comes first
    tus_resumable: Annotated[str | None, Header(max_length=20, description="Version of tus: 1.0.0")] = None,
) -> None:
    if tus_resumable != TUS_VERSION:
        raise TusVersionError(f"this route speaks tus {TUS_VERSION}: send the header Tus-Resumable: {TUS_VERSION}")


SpeaksTus = Depends(_tus_version)


@router.options(
    "/uploads",
    operation_id="get_upload_options",
    status_code=204,
    response_class=Response,
    responses=problems(),
    summary="What of tus is spoken here",
)
def get_upload_options(context: Context, _principal: TraceWriter) -> Response:
    """Version, extensions and the largest upload."""
    return Response(
        status_code=204,
        headers={
            "Tus-Resumable": TUS_VERSION,
            "Tus-Version": TUS_VERSION,
            "Tus-Extension": "creation,expiration,termination",
            "Tus-Max-Size": str(context.settings.upload_max_bytes),
        },
    )


@router.post(
    "/uploads",
    operation_id="create_upload",
    status_code=201,
    response_class=Response,
    responses=problems(400, 412, 413),
    dependencies=[SpeaksTus],
    summary="Begin an upload in pieces",
)
async def create_upload(
    context: Context,
    principal: TraceWriter,
    parameters: Annotated[UploadParameters, Depends(upload_parameters)],
    upload_length: Annotated[str | None, Header(max_length=20, description="Bytes of the whole file")] = None,
    upload_metadata: Annotated[
        str, Header(max_length=4000, description="filename and sha256 (in hex) are read; values in base64")
    ] = "",
) -> Response:
    """tus creation. The query parameters are those of ``PUT /v1/traces``. ``Location`` is where the pieces go."""
    length = byte_count("Upload-Length", upload_length)
    upload = await begin(context, principal, parameters, length, upload_metadata)
    headers = tus_headers(uploads_of(context), upload) | {"Location": f"/v1/uploads/{upload.id}"}
    return Response(status_code=201, headers=headers)


@router.head(
    "/uploads/{upload_id}",
    operation_id="get_upload",
    response_class=Response,
    responses=problems(404, 412),
    dependencies=[SpeaksTus],
    summary="How far an upload is",
)
def get_upload(context: Context, principal: TraceWriter, upload_id: UploadId) -> Response:
    """``Upload-Offset`` is where to go on; ``Content-Location`` is the trace, once all has come."""
    uploads = uploads_of(context)
    upload = uploads.get(principal.tenant_id, upload_id)
    headers = tus_headers(uploads, upload) | {"Upload-Length": str(upload.length)}
    if upload.metadata:
        headers["Upload-Metadata"] = upload.metadata
    return Response(status_code=200, headers=headers)


@router.patch(
    "/uploads/{upload_id}",
    operation_id="append_upload",
    status_code=204,
    response_class=Response,
    responses=problems(400, 404, 409, 412, 415, 503),
    openapi_extra={"requestBody": {"required": True, "content": {_MEDIA_TYPE: _BINARY}}},
    dependencies=[SpeaksTus],
    summary="Send a piece of an upload",
)
async def append_upload(
    request: Request,
    context: Context,
    principal: TraceWriter,
    upload_id: UploadId,
    request_id: RequestId,
    upload_offset: Annotated[str | None, Header(max_length=20, description="Where this piece begins")] = None,
) -> Response:
    """What came of a broken piece is kept. The last makes the trace: ``Content-Location``, its job: ``Location``."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _MEDIA_TYPE:
        raise MediaTypeError(f"send a piece as Content-Type: {_MEDIA_TYPE}")
    offset, uploads = byte_count("Upload-Offset", upload_offset), uploads_of(context)
    upload = await run_in_threadpool(uploads.get, principal.tenant_id, upload_id)
    if upload.trace_id is not None:
        return Response(status_code=204, headers=tus_headers(uploads, upload))
    job_id = await append(request, context, principal, upload, offset, request_id)
    upload = await run_in_threadpool(uploads.get, principal.tenant_id, upload_id)
    headers = tus_headers(uploads, upload)
    if job_id is not None:
        headers["Location"] = f"/v1/jobs/{job_id}"
    return Response(status_code=204, headers=headers)


@router.delete(
    "/uploads/{upload_id}",
    operation_id="delete_upload",
    status_code=204,
    response_class=Response,
    responses=problems(404, 412),
    dependencies=[SpeaksTus],
    summary="Give an upload up",
)
def delete_upload(context: Context, principal: TraceWriter, upload_id: UploadId) -> Response:
    """Its bytes are gone; a trace that it became stays."""
    uploads = uploads_of(context)
    uploads.delete(uploads.get(principal.tenant_id, upload_id))
    return Response(status_code=204, headers={"Tus-Resumable": TUS_VERSION})
