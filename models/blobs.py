"""Blob store: immutable files named by the SHA-256 of their content, and the writer that takes an upload in."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol

from models.errors import DigestError, InvalidError, NotFoundError, TooLargeError
from models.settings import Settings
from replay.errors import FieldError

PROBE = b"capreplay probe blob: what the API writes, a worker must be able to read\n"
PROBE_SHA256 = hashlib.sha256(PROBE).hexdigest()


@dataclass(frozen=True)
class StoredUpload:
    """A complete, synced temporary file and what is known of it."""

    path: Path
    sha256: str
    bytes: int


class BlobStore(Protocol):
    """Where large content lives. Content is immutable: the same hash is the same bytes."""

    def put_file(self, path: Path, sha256: str) -> None:
        """Takes a finished file over; it is gone from ``path`` afterwards. Storing equal content again is harmless."""
        ...

    def open(self, sha256: str) -> BinaryIO:
        """Opens a blob for reading. Raises NotFoundError."""
        ...

    def local_path(self, sha256: str) -> Path:
        """A local file with the blob's content, for readers that need a path. Raises NotFoundError."""
        ...

    def exists(self, sha256: str) -> bool:
        """Whether the blob is here."""
        ...

    def delete(self, sha256: str) -> None:
        """Removes a blob; one that is not here is no error."""
        ...

    def free_bytes(self) -> int:
        """Room left."""
        ...

    def list_older(self, age_s: float) -> Iterator[str]:
        """Hashes of the blobs stored longer ago than ``age_s``, as the store itself sees them."""
        ...


class UploadWriter:
    """Takes a body in, chunk by chunk: counts, hashes, stops at the limit. A context manager that leaves
    no file behind.

    ``with UploadWriter(folder, limit) as writer: writer.write(chunk); upload = writer.finish()``; once the file is
    finished and moved by ``BlobStore.put_file`` nothing is left to delete. Blocking: call it from a thread.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{secrets.token_hex(16)}.part"
        self.bytes = 0
        self._limit_bytes = limit_bytes
        self._hash = hashlib.sha256()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(descriptor, "wb")

    def __enter__(self) -> UploadWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)

    def write(self, chunk: bytes) -> None:
        """Appends. Raises TooLargeError the moment the limit is passed."""
        self.bytes += len(chunk)
        if self.bytes > self._limit_bytes:
            raise TooLargeError(
                f"the body is larger than the limit of {self._limit_bytes} bytes", code="upload.too_large"
            )
        self._hash.update(chunk)
        self._file.write(chunk)

    def finish(self, expected_sha256: str | None = None) -> StoredUpload:
        """Syncs the file to disk. Raises InvalidError for an empty body, DigestError for another hash than expected."""
        if self.bytes == 0:
            raise InvalidError("the body is empty: send the trace file as the request body", code="upload.empty")
        sha256 = self._hash.hexdigest()
        if expected_sha256 is not None and expected_sha256.lower() != sha256:
            cure = "send the file again, or correct the header"
            detail = f"the body's SHA-256 is {sha256}, the request declared {expected_sha256}: {cure}"
            raise DigestError(detail, errors=[FieldError(detail, "Content-Digest", cure=cure)])
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return StoredUpload(self.path, sha256, self.bytes)


class FilesystemBlobStore:
    """Blobs in a folder: ``sha256/ab/cd/<hash>``. Several hosts need it on a shared mount."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def _path(self, sha256: str) -> Path:
        if len(sha256) != 64 or not all(c in "0123456789abcdef" for c in sha256):
            raise ValueError("not a SHA-256 in lower-case hex")
        return self._root / "sha256" / sha256[:2] / sha256[2:4] / sha256

    def put_file(self, path: Path, sha256: str) -> None:
        target = self._path(sha256)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and target.stat().st_size == path.stat().st_size:  # else a crash cut it short
            path.unlink()
            target.touch()
            return
        _sync(path)
        path.replace(target)
        _sync(target.parent)

    def open(self, sha256: str) -> BinaryIO:
        return self.local_path(sha256).open("rb")

    def local_path(self, sha256: str) -> Path:
        path = self._path(sha256)
        if not path.is_file():
            raise NotFoundError(f"the blob {sha256[:12]}... is not in the store", code="blob.missing")
        return path

    def exists(self, sha256: str) -> bool:
        return self._path(sha256).is_file()

    def delete(self, sha256: str) -> None:
        self._path(sha256).unlink(missing_ok=True)

    def list_older(self, age_s: float) -> Iterator[str]:
        newest = time.time() - age_s
        for path in (self._root / "sha256").glob("??/??/*"):
            try:
                if path.stat().st_mtime < newest:
                    yield path.name
            except FileNotFoundError:
                continue

    def free_bytes(self) -> int:
        self._root.mkdir(parents=True, exist_ok=True)
        return shutil.disk_usage(self._root).free


def _sync(path: Path) -> None:
    """Has a file's content, or a folder's names, written to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def build_blob_store(settings: Settings) -> BlobStore:
    """The blob store that the settings name."""
    if settings.blob_url:
        from models.s3_blobs import build_s3_blob_store  # here, since its client is large and a folder needs none

        return build_s3_blob_store(settings)
    return FilesystemBlobStore(settings.blobs_path)
