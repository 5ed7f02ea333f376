"""A form with files (``multipart/form-data``, RFC 7578): taken in as it comes, then split on disk within bounds."""

from __future__ import annotations

import mmap
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from api.context import ApiContext
from api.errors import BadRequestError
from api.uploads import declared_length, receive_body, storage_errors
from models.blobs import StoredUpload, UploadWriter
from models.errors import InvalidError, TooLargeError
from models.principal import Principal
from models.use_cases.limits import check_stored_bytes
from replay.errors import FieldError

MAX_PARTS = 100
MAX_TEXT_BYTES = 1024**2
"""Of one field."""
_MAX_HEAD_BYTES = 4096
_BLOCK_BYTES = 1024**2
_TYPE = re.compile(r'^multipart/form-data\s*;.*\bboundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_NAME = re.compile(r'\bname="((?:[^"\\]|\\.)*)"')
_FILE_NAME = re.compile(r'\bfilename="((?:[^"\\]|\\.)*)"')


@dataclass
class FileForm:
    """The fields of a form as names and texts, and its files, in order."""

    texts: list[tuple[str, str]]
    files: list[tuple[str, str, StoredUpload]] = field(default_factory=list)
    """Name of the field, of the file, and what was received."""


def boundary_of(request: Request) -> bytes | None:
    """What separates the parts; ``None``: the body is no such form."""
    found = _TYPE.match(request.headers.get("content-type", ""))
    return None if found is None else (found[1] or found[2]).encode("latin-1")


@asynccontextmanager
async def receive_form(
    request: Request, context: ApiContext, principal: Principal, *, limit: int
) -> AsyncIterator[FileForm]:
    """The form of a request of at most ``limit`` bytes; files that nobody takes are gone afterwards.

    Raises:
        BadRequestError: ``upload.form``: no such form. TooLargeError, LimitError: beyond a bound.
    """
    boundary = boundary_of(request)
    if boundary is None:
        raise _damaged("the content type names no boundary")
    folder = context.settings.tmp_path
    limit = min(limit, context.settings.upload_max_bytes)
    with storage_errors(), ExitStack() as stack:
        left = await run_in_threadpool(_room, context, principal, min(declared_length(request) or 1, limit))
        body = await receive_body(
            request, context, stack.enter_context(UploadWriter(folder, limit)), limit=limit, left=left
        )
        yield await run_in_threadpool(split_form, body.path, boundary, folder, stack)


def _room(context: ApiContext, principal: Principal, more: int) -> int:
    with context.services.database.read() as session:
        return check_stored_bytes(session, principal, context.services, more)


def split_form(path: Path, boundary: bytes, folder: Path, stack: ExitStack) -> FileForm:
    """The parts of a received body; files are written to ``folder`` and are gone when ``stack`` ends.

    Raises:
        BadRequestError: ``upload.form``. TooLargeError: too many parts, a field too long. InvalidError: an empty file.
    """
    pairs: list[tuple[str, str]] = []
    files: list[tuple[str, str, StoredUpload]] = []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for name, file_name, start, end in _parts(data, boundary):
            if file_name is None:
                pairs.append((name, _text(name, data, start, end)))
            elif end > start or file_name:  # a browser sends an empty part where no file was chosen
                writer = stack.enter_context(UploadWriter(folder, end - start))
                for at in range(start, end, _BLOCK_BYTES):
                    writer.write(data[at : min(at + _BLOCK_BYTES, end)])
                if end == start:
                    raise _empty(file_name)
                files.append((name, file_name, writer.finish()))
    return FileForm(pairs, files)


def _parts(data: mmap.mmap, boundary: bytes) -> Iterator[tuple[str, str | None, int, int]]:
    """Name, file name, start and end of each part's content."""
    mark = b"--" + boundary
    at = 0 if data[: len(mark)] == mark else data.find(b"\r\n" + mark) + 2
    if at == 1:
        raise _damaged("the boundary of the content type is not in the body")
    count = 0
    while data[at + len(mark) : at + len(mark) + 2] != b"--":
        count += 1
        if count > MAX_PARTS:
            raise TooLargeError(f"a form may have {MAX_PARTS} parts")
        head = data.find(b"\r\n", at + len(mark)) + 2
        start = data.find(b"\r\n\r\n", head - 2, head + _MAX_HEAD_BYTES)
        end = data.find(b"\r\n" + mark, start + 2)
        if head < 2 or start < 0 or end < 0:
            raise _damaged("a part has no head or no end")
        words = data[head:start].decode("utf-8", "replace")
        name, file_name = _NAME.search(_without_file_name(words)), _FILE_NAME.search(words)
        if name is None:
            raise _damaged("a part has no name")
        yield name[1][:100], None if file_name is None else file_name[1], min(start + 4, end), end
        at = end + 2


def _without_file_name(head: str) -> str:
    return _FILE_NAME.sub("", head)


def _text(name: str, data: mmap.mmap, start: int, end: int) -> str:
    if end - start > MAX_TEXT_BYTES:
        raise TooLargeError(f"the field {name} is longer than {MAX_TEXT_BYTES:,} bytes")
    text = data[start:end].decode("utf-8", "replace")
    if "\0" in text:
        raise InvalidError("a field holds a NUL character: remove it", code="form.text")
    return text


def _empty(name: str) -> InvalidError:
    detail = f"the file {name[-60:]} is empty"
    fault = FieldError(detail, field="measurements", cure="send the file that the load generator wrote")
    return InvalidError(detail, code="upload.empty", errors=[fault])


def _damaged(why: str) -> BadRequestError:
    return BadRequestError(f"the body is no form with files: {why}", code="upload.form")
