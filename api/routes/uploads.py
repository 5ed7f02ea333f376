"""Uploads that a broken line does not start anew: the tus protocol 1.0.0, core, creation, expiration, termination.

A complete upload becomes a trace, as the body of ``PUT /v1/traces`` does. Our own, see docs/adr/0006.
"""

from __future__ import annotations

import base64
import binascii
import re
from email.utils import format_datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from api.auth import TraceWriter
from api.context import ApiContext
from api.deps import Context, RequestId
from api.errors import TUS_VERSION, BadRequestError, MediaTypeError, TusVersionError
from api.ingest_options import UploadParameters, upload_parameters
from api.schemas.common import problems
from api.stored_traces import store_trace
from api.strict import StrictRoute
from api.uploads import storage_errors
from models.errors import LimitError
from models.partial_uploads import Appender, PartialUpload, PartialUploads
from models.principal import Principal
from models.use_cases.limits import stored_bytes_error
from models.use_cases.traces import check_upload_allowed
from replay.traces.options import IngestOptions

router = APIRouter(prefix="/v1", tags=["uploads"], route_class=StrictRoute)

_BUFFER_BYTES = 1024**2
_MEDIA_TYPE = "application/offset+octet-stream"
_NUMBER = re.compile(r"\d{1,18}")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
MAX_OPEN = 20
"""Unfinished uploads of one tenant."""

UploadId = Annotated[str, Path(pattern=r"^upl_[0-9a-f]{32}$", description="Id of an upload")]
_BINARY = {"schema": {"type": "string", "format": "binary"}}


def _tus_version(
    tus_resumable: Annotated[str | None, Header(max_length=20, description="Version of tus: 1.0.0")] = None,
) -> None:
    if tus_resumable != TUS_VERSION:
        raise TusVersionError(f"this route speaks tus {TUS_VERSION}: send the header Tus-Resumable: {TUS_VERSION}")


SpeaksTus = Depends(_tus_version)


def _number(name: str, text: str | None) -> int:
    if text is None or not _NUMBER.fullmatch(text):
        raise BadRequestError(f"{name} must be a number of bytes", code="upload.header")
    return int(text)


def _uploads(context: ApiContext) -> PartialUploads:
    return PartialUploads(context.settings.partial_path, context.settings.partial_upload_ttl_s)


def _metadata(text: str) -> dict[str, str]:
    """``Upload-Metadata`` of tus: keys, each with its value in base64, by commas."""
    values: dict[str, str] = {}
    for pair in filter(None, (pair.strip() for pair in text.split(","))):
        key, _, encoded = pair.partition(" ")
        try:
            values[key] = base64.b64decode(encoded, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise BadRequestError(
                f"Upload-Metadata: the value of {key[:40]!r} is not base64 of UTF-8", code="upload.header"
            ) from None
    return values


def _headers(uploads: PartialUploads, upload: PartialUpload) -> dict[str, str]:
    headers = {
        "Tus-Resumable": TUS_VERSION,
        "Upload-Offset": str(upload.offset),
        "Upload-Expires": format_datetime(uploads.expires_at(upload), usegmt=True),
        "Cache-Control": "no-store",
    }
    if upload.trace_id is not None:
        headers["Content-Location"] = f"/v1/traces/{upload.trace_id}"
    return headers


@router.options("/uploads", operation_id="get_upload_options", status_code=204, summary="What of tus is spoken here")
def get_upload_options(context: Context) -> Response:
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
    length, metadata = _number("Upload-Length", upload_length), _metadata(upload_metadata)
    if length == 0:
        raise BadRequestError("Upload-Length is 0: an empty file holds no trace", code="upload.empty")
    sha256 = metadata.get("sha256")
    if sha256 is not None and not _SHA256.fullmatch(sha256):
        raise BadRequestError("Upload-Metadata: sha256 is not a SHA-256 in hex", code="upload.header")
    known: dict[str, Any] = {
        "name": parameters.name or metadata.get("filename", "")[:200],
        "stream": parameters.stream,
        "options": parameters.options.model_dump(mode="json"),
    }
    if not known["name"].isprintable():
        raise BadRequestError("Upload-Metadata: the filename holds control characters", code="upload.header")
    digest = sha256.lower() if sha256 else None
    with storage_errors():
        upload = await run_in_threadpool(_create, context, principal, length, known, upload_metadata, digest)
    headers = _headers(_uploads(context), upload) | {"Location": f"/v1/uploads/{upload.id}"}
    return Response(status_code=201, headers=headers)


def _create(
    context: ApiContext,
    principal: Principal,
    length: int,
    known: dict[str, Any],
    metadata: str,
    sha256: str | None,
) -> PartialUpload:
    with context.services.database.read() as session:
        left = check_upload_allowed(session, principal, context.services, length)
    uploads = _uploads(context)
    unfinished = uploads.list_open(principal.tenant_id)
    if len(unfinished) >= MAX_OPEN:
        raise LimitError(
            f"{MAX_OPEN} uploads are unfinished already: finish or delete some", code="limit.uploads", retry_after_s=60
        )
    if length + sum(upload.length for upload in unfinished) > left:
        raise stored_bytes_error()
    return uploads.create(principal.tenant_id, length, known, metadata, sha256)


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
    uploads = _uploads(context)
    upload = uploads.get(principal.tenant_id, upload_id)
    headers = _headers(uploads, upload) | {"Upload-Length": str(upload.length)}
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
    offset, uploads = _number("Upload-Offset", upload_offset), _uploads(context)
    upload = await run_in_threadpool(uploads.get, principal.tenant_id, upload_id)
    if upload.trace_id is not None:
        return Response(status_code=204, headers=_headers(uploads, upload))
    stored = None
    with storage_errors():
        appender = await run_in_threadpool(uploads.open, upload, offset)
        try:
            await _take(request, context, appender)
            if appender.complete:
                stored = await run_in_threadpool(_store, context, principal, upload, request_id)
        finally:
            await run_in_threadpool(appender.close)
    upload = await run_in_threadpool(uploads.get, principal.tenant_id, upload_id)
    headers = _headers(uploads, upload)
    if stored is not None:
        headers["Location"] = f"/v1/jobs/{stored}"
    return Response(status_code=204, headers=headers)


async def _take(request: Request, context: ApiContext, appender: Appender) -> None:
    buffer, taken = bytearray(), 0
    try:
        async for chunk in request.stream():
            buffer += chunk
            taken += len(chunk)
            if len(buffer) >= _BUFFER_BYTES:
                await run_in_threadpool(appender.write, bytes(buffer))
                buffer.clear()
    except ClientDisconnect:
        await run_in_threadpool(appender.write, bytes(buffer))
        raise BadRequestError(
            "the piece ended early; what came is kept: ask where to go on", code="upload.truncated"
        ) from None
    await run_in_threadpool(appender.write, bytes(buffer))
    context.metrics.upload_bytes.inc(taken)


def _store(context: ApiContext, principal: Principal, upload: PartialUpload, request_id: str) -> str:
    """Makes the trace; the id of its ingest job."""
    uploads = _uploads(context)
    known = upload.parameters
    parameters = UploadParameters(
        name=known["name"], stream=known["stream"], options=IngestOptions.model_validate(known["options"])
    )
    stored = store_trace(context, principal, uploads.finish(upload), parameters, request_id)
    uploads.complete(upload, stored.body.id)
    return stored.body.ingest_job_id


@router.delete(
    "/uploads/{upload_id}",
    operation_id="delete_upload",
    status_code=204,
    responses=problems(404, 412),
    dependencies=[SpeaksTus],
    summary="Give an upload up",
)
def delete_upload(context: Context, principal: TraceWriter, upload_id: UploadId) -> Response:
    """Its bytes are gone; a trace that it became stays."""
    uploads = _uploads(context)
    uploads.delete(uploads.get(principal.tenant_id, upload_id))
    return Response(status_code=204, headers={"Tus-Resumable": TUS_VERSION})
