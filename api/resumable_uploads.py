"""Uploads in pieces: what their headers say, how a piece is taken in, and the trace that a whole one becomes."""

from __future__ import annotations

import base64
import binascii
import re
from email.utils import format_datetime
from typing import Any

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from api.context import ApiContext
from api.errors import TUS_VERSION, BadRequestError
from api.ingest_options import UploadParameters
from api.stored_traces import store_trace
from api.uploads import storage_errors
from models.errors import LimitError
from models.partial_uploads import Appender, PartialUpload, PartialUploads
from models.principal import Principal
from models.use_cases.limits import stored_bytes_error
from models.use_cases.traces import check_upload_allowed
from replay.traces.options import IngestOptions

MAX_OPEN = 20
"""Unfinished uploads of one tenant."""
_BUFFER_BYTES = 1024**2
_NUMBER = re.compile(r"\d{1,18}")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


def uploads_of(context: ApiContext) -> PartialUploads:
    """This service's uploads in pieces."""
    return PartialUploads(context.settings.partial_path, context.settings.partial_upload_ttl_s)


def byte_count(name: str, text: str | None) -> int:
    """The header ``name``. Raises BadRequestError where it is missing or no number."""
    if text is None or not _NUMBER.fullmatch(text):
        raise BadRequestError(f"{name} must be a number of bytes", code="upload.header")
    return int(text)


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


def tus_headers(uploads: PartialUploads, upload: PartialUpload) -> dict[str, str]:
    """How far the upload is; once it is complete, its trace."""
    headers = {
        "Tus-Resumable": TUS_VERSION,
        "Upload-Offset": str(upload.offset),
        "Upload-Expires": format_datetime(uploads.expires_at(upload), usegmt=True),
        "Cache-Control": "no-store",
    }
    if upload.trace_id is not None:
        headers["Content-Location"] = f"/v1/traces/{upload.trace_id}"
    return headers


async def begin(
    context: ApiContext, principal: Principal, parameters: UploadParameters, length: int, metadata_text: str
) -> PartialUpload:
    """Awaits a file of ``length`` bytes.

    Raises:
        BadRequestError: metadata that cannot be read. TooLargeError. LimitError: of storage, or of unfinished uploads.
    """
    metadata = _metadata(metadata_text)
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
        return await run_in_threadpool(_create, context, principal, length, known, metadata_text, digest)


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
    uploads = uploads_of(context)
    unfinished = uploads.list_open(principal.tenant_id)
    if len(unfinished) >= MAX_OPEN:
        raise LimitError(
            f"{MAX_OPEN} uploads are unfinished already: finish or delete some", code="limit.uploads", retry_after_s=60
        )
    if length + sum(upload.length for upload in unfinished) > left:
        raise stored_bytes_error()
    return uploads.create(principal.tenant_id, length, known, metadata, sha256)


async def append(
    request: Request, context: ApiContext, principal: Principal, upload: PartialUpload, offset: int, request_id: str
) -> str | None:
    """Takes the body in as the piece at ``offset``; the id of the ingest job, once all has come.

    Raises:
        ConflictError: another place, or another writer. InvalidError: too much. BadRequestError: it ended early.
    """
    with storage_errors():
        appender = await run_in_threadpool(uploads_of(context).open, upload, offset)
        try:
            await _take(request, context, appender)
            if not appender.complete:
                return None
            return await run_in_threadpool(_store, context, principal, upload, request_id)
        finally:
            await run_in_threadpool(appender.close)


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
    uploads = uploads_of(context)
    known = upload.parameters
    parameters = UploadParameters(
        name=known["name"], stream=known["stream"], options=IngestOptions.model_validate(known["options"])
    )
    stored = store_trace(context, principal, uploads.finish(upload), parameters, request_id)
    uploads.complete(upload, stored.body.id)
    return stored.body.ingest_job_id
