"""Takes a trace's body in: authorised before the first byte, counted and hashed as it comes, refused at the limit."""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import structlog
from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from api.context import ApiContext
from api.errors import BadRequestError, MediaTypeError
from models.blobs import StoredUpload, UploadWriter
from models.errors import InvalidError, TooLargeError, UnavailableError
from models.principal import Principal
from models.use_cases.limits import stored_bytes_error
from models.use_cases.traces import check_upload_allowed
from replay.errors import FieldError

log = structlog.get_logger(__name__)

_BUFFER_BYTES = 1024**2
_DIGEST = re.compile(r"^\s*([A-Za-z0-9-]+)\s*=\s*:([A-Za-z0-9+/=]+):\s*$")
_ENCODINGS = frozenset({"", "identity", "gzip", "x-gzip", "zstd"})


def declared_length(request: Request) -> int | None:
    """The Content-Length, where the client sends one. Raises BadRequestError for one that is no number."""
    text = request.headers.get("content-length")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise BadRequestError("Content-Length is not a number of bytes", code="upload.content_length")
    return int(text)


def declared_sha256(header: str | None) -> str | None:
    """The SHA-256 in hex that a Content-Digest header (RFC 9530) declares.

    Raises:
        InvalidError: a header without ``sha-256=:BASE64:``, the one algorithm that is checked here.
    """
    if header is None:
        return None
    members = (_DIGEST.match(member) for member in header.split(","))
    encoded = [match.group(2) for match in members if match is not None and match.group(1).lower() == "sha-256"]
    try:
        digest = base64.b64decode(encoded[0], validate=True)
    except (IndexError, binascii.Error):
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        cure = "write Content-Digest: sha-256=:BASE64 OF THE HASH:, or leave the header out"
        fault = FieldError(cure, "Content-Digest", cure=cure)
        raise InvalidError("Content-Digest has no readable sha-256", code="upload.digest", errors=[fault])
    return digest.hex()


@contextmanager
def storage_errors() -> Iterator[None]:
    """A disk that is full or gone is no fault of the request: UnavailableError, and the log says which."""
    try:
        yield
    except OSError as error:
        log.exception("an upload cannot be stored")
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "the storage does not answer"
        raise UnavailableError(f"{reason}: nothing was kept", code="upload.storage", retry_after_s=60) from error


async def receive_upload(
    request: Request, context: ApiContext, principal: Principal, writer: UploadWriter
) -> StoredUpload:
    """Reads the whole body into ``writer``.

    Raises:
        LimitError: the tenant's quota is used up. TooLargeError: by the declared length, or when the limit is passed.
        BadRequestError: the body ended early. DigestError: other bytes than declared. MediaTypeError: unknown encoding.
    """
    if request.headers.get("content-encoding", "").strip().lower() not in _ENCODINGS:
        raise MediaTypeError("send the file as it is; compressed ones may be gzip or zstd")
    left = await run_in_threadpool(_check_allowed, context, principal, declared_length(request))
    return await receive_body(request, context, writer, limit=context.settings.upload_max_bytes, left=left)


async def receive_body(
    request: Request, context: ApiContext, writer: UploadWriter, *, limit: int, left: int
) -> StoredUpload:
    """Reads the whole body into ``writer``: at most ``limit`` bytes, of which the tenant may store ``left``.

    Raises:
        LimitError, TooLargeError, BadRequestError, DigestError: as ``receive_upload``.
    """
    length, sha256 = declared_length(request), declared_sha256(request.headers.get("content-digest"))
    received, buffer = 0, bytearray()
    async for chunk in _chunks(request):
        received += len(chunk)
        if received > limit:
            raise TooLargeError(f"the body is larger than the limit of {limit} bytes", code="upload.too_large")
        if received > left:
            raise stored_bytes_error()
        buffer += chunk
        if len(buffer) >= _BUFFER_BYTES:
            await run_in_threadpool(writer.write, bytes(buffer))
            buffer.clear()
    if length is not None and received != length:
        raise _truncated()
    await run_in_threadpool(writer.write, bytes(buffer))
    context.metrics.upload_bytes.inc(received)
    return await run_in_threadpool(writer.finish, sha256)


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    try:
        async for chunk in request.stream():
            yield chunk
    except ClientDisconnect:
        raise _truncated() from None


def _truncated() -> BadRequestError:
    return BadRequestError("the body ended before its declared length; nothing was kept", code="upload.truncated")


def _check_allowed(context: ApiContext, principal: Principal, length: int | None) -> int:
    with context.services.database.read() as session:
        return check_upload_allowed(session, principal, context.services, length)
