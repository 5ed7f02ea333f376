"""Uploads that come in pieces: a file of what has come and a note of what is awaited, both gone after a time."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from io import FileIO
from pathlib import Path
from typing import Any

from models.blobs import StoredUpload
from models.errors import ConflictError, DigestError, InvalidError, NotFoundError
from models.ids import new_id

_READ_BYTES = 8 * 1024**2


@dataclass(frozen=True)
class PartialUpload:
    """One upload in pieces. ``parameters`` and ``metadata`` are the client's own; ``trace_id`` once it is complete."""

    id: str
    tenant_id: str
    length: int
    parameters: dict[str, Any]
    metadata: str
    sha256: str | None = None
    trace_id: str | None = None
    offset: int = 0
    """Bytes that have come and are on the disk's way: what a client goes on from."""


class PartialUploads:
    """A folder of them, shared by the processes of one host, or of several on a shared mount."""

    def __init__(self, folder: Path, keep_s: float) -> None:
        self._folder = folder
        self._keep = timedelta(seconds=keep_s)

    def create(
        self, tenant_id: str, length: int, parameters: dict[str, Any], metadata: str, sha256: str | None
    ) -> PartialUpload:
        """Awaits ``length`` bytes; ``sha256``: their hash, where the client knows it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        upload = PartialUpload(new_id("upl"), tenant_id, length, parameters, metadata, sha256)
        descriptor = os.open(self._data(upload.id), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.close(descriptor)
        self._write(upload)
        return upload

    def get(self, tenant_id: str, upload_id: str) -> PartialUpload:
        """How far an upload is. Raises NotFoundError: unknown, another tenant's, expired or deleted."""
        try:
            noted = json.loads(self._note(upload_id).read_bytes())
            upload = PartialUpload(**noted)
            if upload.trace_id is None:
                upload = replace(upload, offset=self._data(upload_id).stat().st_size)
        except FileNotFoundError:
            upload = None
        if upload is None or upload.tenant_id != tenant_id or self.expires_at(upload) <= datetime.now(UTC):
            raise NotFoundError("no such upload: it was deleted, or expired; start again", code="not_found")
        return upload

    def list_open(self, tenant_id: str) -> list[PartialUpload]:
        """The tenant's uploads that are not complete."""
        found = []
        for note in self._folder.glob("*.json") if self._folder.is_dir() else ():
            try:
                upload = self.get(tenant_id, note.stem)
            except NotFoundError:
                continue
            if upload.trace_id is None:
                found.append(upload)
        return found

    def expires_at(self, upload: PartialUpload) -> datetime:
        """When it is forgotten unless more comes."""
        try:
            last = self._note(upload.id).stat().st_mtime
        except FileNotFoundError:
            return datetime.fromtimestamp(0, UTC)
        return datetime.fromtimestamp(last, UTC) + self._keep

    def open(self, upload: PartialUpload, offset: int) -> Appender:
        """Opens the upload to go on at ``offset``, for one writer at a time. Close it: what was written stays.

        Raises:
            ConflictError: another request writes, or ``offset`` is not where the upload stands.
        """
        file = self._data(upload.id).open("r+b", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise ConflictError(
                "another request writes to this upload: wait until it has ended", code="upload.busy", retry_after_s=1
            ) from None
        stands = file.seek(0, os.SEEK_END)
        if offset != stands:
            file.close()
            raise ConflictError(f"the upload stands at {stands}, not at {offset}: go on there", code="upload.offset")
        return Appender(file, self._note(upload.id), upload.length - stands)

    def finish(self, upload: PartialUpload) -> StoredUpload:
        """The whole file with its hash. Blocking: reads it once.

        Raises:
            DigestError: other bytes than the client declared; the upload is deleted.
        """
        path, digest = self._data(upload.id), hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(_READ_BYTES):
                digest.update(chunk)
        found = digest.hexdigest()
        if upload.sha256 is not None and found != upload.sha256:
            self.delete(upload)
            raise DigestError(f"the upload's SHA-256 is {found}, its creation declared {upload.sha256}: start again")
        return StoredUpload(path, found, upload.length)

    def complete(self, upload: PartialUpload, trace_id: str) -> None:
        """Remembers what became of it, for a client that lost the answer."""
        self._write(replace(upload, offset=upload.length, trace_id=trace_id))
        self._data(upload.id).unlink(missing_ok=True)  # still here where the store had the same content already

    def delete(self, upload: PartialUpload) -> None:
        """Forgets it and its bytes."""
        self._data(upload.id).unlink(missing_ok=True)
        self._note(upload.id).unlink(missing_ok=True)

    def _write(self, upload: PartialUpload) -> None:
        part = self._folder / f"{upload.id}.part"
        part.write_text(json.dumps(asdict(upload)))
        part.replace(self._note(upload.id))

    def _data(self, upload_id: str) -> Path:
        return self._folder / f"{upload_id}.data"

    def _note(self, upload_id: str) -> Path:
        return self._folder / f"{upload_id}.json"


class Appender:
    """Takes pieces in, up to the length that was declared."""

    def __init__(self, file: FileIO, note: Path, room: int) -> None:
        self._file = file
        self._note = note
        self._room = room

    def write(self, piece: bytes) -> None:
        """Raises InvalidError for more bytes than were declared; none of that piece is kept."""
        if len(piece) > self._room:
            raise InvalidError("more bytes than the declared Upload-Length", code="upload.too_long")
        view = memoryview(piece)
        while view:
            view = view[self._file.write(view) :]
        self._room -= len(piece)

    @property
    def complete(self) -> bool:
        """Whether all has come."""
        return self._room == 0

    def close(self) -> None:
        """Has what came written to the disk, puts the expiry off, and lets the next writer in."""
        try:
            os.fsync(self._file.fileno())
            with contextlib.suppress(FileNotFoundError):  # given up meanwhile
                os.utime(self._note)
        finally:
            self._file.close()
