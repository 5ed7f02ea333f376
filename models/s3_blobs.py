"""Blobs in a bucket of an S3-compatible store, with copies of the latest on the local disk for readers of paths."""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from models.blob_cache import BlobCache
from models.errors import NotFoundError
from models.settings import Settings

_CHUNK_BYTES = 8 * 1024**2
T = TypeVar("T")


class BlobStoreError(OSError):
    """The bucket does not answer, or not as it should. An ``OSError``, as a disk's faults are."""


class S3BlobStore:
    """Blobs as objects ``PREFIX/sha256/ab/cd/<hash>`` of one bucket; every host needs only the bucket's address."""

    def __init__(self, store: Any, cache: BlobCache) -> None:
        """``store``: an ``obstore`` store at the prefix."""
        self._store = store
        self._cache = cache

    def put_file(self, path: Path, sha256: str) -> None:
        # Again where the object is there already: its age then starts anew, so that no sweeper takes it.
        _answered(lambda: obstore.put(self._store, _key(sha256), path))
        self._cache.keep(path, sha256)

    def open(self, sha256: str) -> BinaryIO:
        return self.local_path(sha256).open("rb")

    def local_path(self, sha256: str) -> Path:
        cached = self._cache.find(sha256)
        return cached if cached is not None else self._fetch(sha256)

    def _fetch(self, sha256: str) -> Path:
        part = self._cache.new_part(secrets.token_hex(8))
        digest = hashlib.sha256()
        try:
            with part.open("wb") as file:
                try:
                    found = _answered(lambda: obstore.get(self._store, _key(sha256)))
                except FileNotFoundError:
                    raise NotFoundError(f"the blob {sha256[:12]}... is not in the store", code="blob.missing") from None
                for chunk in _chunks(found):
                    digest.update(chunk)
                    file.write(chunk)
            if digest.hexdigest() != sha256:
                raise BlobStoreError(f"the object of the blob {sha256[:12]}... holds other bytes than were stored")
            return self._cache.keep(part, sha256)
        finally:
            part.unlink(missing_ok=True)

    def exists(self, sha256: str) -> bool:
        try:
            _answered(lambda: obstore.head(self._store, _key(sha256)))
        except FileNotFoundError:
            return False
        return True

    def delete(self, sha256: str) -> None:
        self._cache.forget(sha256)
        _answered(lambda: obstore.delete(self._store, _key(sha256)))

    def list_older(self, age_s: float) -> Iterator[str]:
        newest = datetime.now(UTC) - timedelta(seconds=age_s)
        pages = iter(obstore.list(self._store, "sha256"))
        while (page := _answered(lambda: next(pages, None))) is not None:
            for found in page:
                if found["last_modified"] < newest:
                    yield found["path"].rsplit("/", 1)[-1]

    def free_bytes(self) -> int:
        """Room of the local disk: uploads and copies pass through it. A bucket has no end that it tells."""
        return shutil.disk_usage(self._cache.folder).free


def _key(sha256: str) -> str:
    if len(sha256) != 64 or not all(c in "0123456789abcdef" for c in sha256):
        raise ValueError("not a SHA-256 in lower-case hex")
    return f"sha256/{sha256[:2]}/{sha256[2:4]}/{sha256}"


def _chunks(found: Any) -> Iterator[bytes]:
    stream = iter(found.stream(min_chunk_size=_CHUNK_BYTES))
    while (chunk := _answered(lambda: next(stream, None))) is not None:
        yield bytes(chunk)


def _answered(ask: Callable[[], T]) -> T:
    """What ``ask`` gives. Raises FileNotFoundError for a missing object, BlobStoreError for all other faults."""
    try:
        return ask()
    except FileNotFoundError:
        raise
    except BaseError as error:
        raise BlobStoreError(f"the blob store refused or did not answer: {str(error).splitlines()[0]}") from error


def build_s3_blob_store(settings: Settings) -> S3BlobStore:
    """The store at ``settings.blob_url``. Connects to nothing yet."""
    address = urlsplit(settings.blob_url)
    options: dict[str, Any] = {"region": settings.s3_region}
    if settings.s3_endpoint:
        options["endpoint"] = settings.s3_endpoint
        options["client_options"] = {"allow_http": settings.s3_endpoint.startswith("http://")}
    if settings.s3_access_key_id and settings.s3_secret_access_key is not None:
        options["access_key_id"] = settings.s3_access_key_id
        options["secret_access_key"] = settings.s3_secret_access_key.get_secret_value()
    store = S3Store(
        address.netloc,
        prefix=address.path.strip("/") or None,
        retry_config={"max_retries": 4, "retry_timeout": timedelta(seconds=30)},
        **options,
    )
    return S3BlobStore(store, BlobCache(settings.blobs_path, settings.blob_cache_bytes))
