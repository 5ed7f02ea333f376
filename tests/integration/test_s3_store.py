"""Blobs in an S3-compatible store: a real server, and a worker that shares nothing else with the API's disk."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from services.s3_server import ACCESS_KEY, SECRET, S3Server
from stack import quick_replay, stack_of

from models.blobs import build_blob_store
from models.errors import NotFoundError
from models.s3_blobs import BlobStoreError, S3BlobStore
from models.settings import Settings

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    made = S3Server(tmp_path / "s3")
    made.start()
    yield made
    made.stop()


def _settings(server: S3Server, **more: Any) -> dict[str, Any]:
    return {
        "blob_url": f"s3://{server.bucket}/some/prefix",
        "s3_endpoint": server.endpoint,
        "s3_access_key_id": ACCESS_KEY,
        "s3_secret_access_key": SECRET,
    } | more


def _store(folder: Path, server: S3Server, **more: Any) -> S3BlobStore:
    made = build_blob_store(Settings(data_dir=folder, **_settings(server, **more)))
    assert isinstance(made, S3BlobStore)
    return made


def _put(store: S3BlobStore, folder: Path, content: bytes) -> str:
    sha256 = hashlib.sha256(content).hexdigest()
    path = folder / "upload.part"
    path.write_bytes(content)
    store.put_file(path, sha256)
    assert not path.exists()
    return sha256


def test_a_blob_is_an_object_that_any_host_reads(tmp_path: Path, server: S3Server) -> None:
    here, there = _store(tmp_path / "here", server), _store(tmp_path / "there", server)
    content = b"a blob of more than one part " * 1_000_000
    sha256 = _put(here, tmp_path, content)
    assert [path.name for path in server.objects()] == [sha256]
    assert "some/prefix/sha256" in str(server.objects()[0])
    assert there.exists(sha256)
    with there.open(sha256) as file:
        assert file.read() == content
    assert there.local_path(sha256).read_bytes() == content
    assert _put(here, tmp_path, content) == sha256, "equal content again is harmless"
    here.delete(sha256)
    here.delete(sha256)
    assert server.objects() == []
    assert not there.exists(sha256)
    with pytest.raises(NotFoundError, match="not in the store"):
        here.local_path(sha256)
    with pytest.raises(ValueError, match="not a SHA-256"):
        here.exists("../../etc/passwd")


def test_old_objects_are_listed_for_the_sweeper(tmp_path: Path, server: S3Server) -> None:
    store = _store(tmp_path / "here", server)
    hashes = {_put(store, tmp_path, bytes([n])) for n in range(3)}
    assert list(store.list_older(60)) == []
    time.sleep(1.1)  # an object's age is known to the second
    assert set(store.list_older(0.5)) == hashes


def test_local_copies_stay_within_their_limit_and_the_latest_stays(tmp_path: Path, server: S3Server) -> None:
    store = _store(tmp_path / "here", server, blob_cache_bytes=2500)
    hashes = [_put(store, tmp_path, bytes([n]) * 1000) for n in range(4)]
    cache = tmp_path / "here" / "blobs" / "cache"
    assert {path.name for path in cache.iterdir()} == set(hashes[2:])
    assert store.local_path(hashes[0]).read_bytes() == b"\0" * 1000, "fetched again"
    big = _put(store, tmp_path, b"larger than the limit" * 1000)
    assert [path.name for path in cache.iterdir()] == [big]


def test_other_bytes_than_were_stored_are_refused(tmp_path: Path, server: S3Server) -> None:
    store = _store(tmp_path / "here", server)
    sha256 = _put(store, tmp_path, b"as stored")
    server.objects()[0].write_bytes(b"rotted!!!")
    shutil.rmtree(tmp_path / "here" / "blobs" / "cache")
    with pytest.raises(BlobStoreError, match="other bytes"):
        _store(tmp_path / "here", server).local_path(sha256)
    assert list((tmp_path / "here" / "blobs" / "cache").iterdir()) == []


def test_a_wrong_key_is_a_fault_of_storage_that_says_so(tmp_path: Path, server: S3Server) -> None:
    store = _store(tmp_path / "here", server, s3_secret_access_key="wrong")
    with pytest.raises(OSError, match="blob store refused"):
        _put(store, tmp_path, b"content")


def test_a_worker_with_a_disk_of_its_own_serves_the_api(
    tmp_path: Path, server: S3Server, compiled_kernels: None
) -> None:
    """Upload, ingest and replay where API and worker share the database and the bucket, and no folder of blobs."""
    with stack_of(tmp_path / "data", **_settings(server)) as stack:
        stack.start(blob_dir=str(tmp_path / "worker-disk"))
        trace_id = stack.ready_trace()
        job = stack.replay(trace_id, quick_replay()).job
        detail = stack.wait(job.id)
        assert detail.job.status == "succeeded", stack.tail()
        assert b"ttft" in stack.document(job.id)
        assert (tmp_path / "worker-disk" / "cache").is_dir()
        assert len(server.objects()) >= 3, "upload, canonical table, document"


def test_a_store_that_is_down_fails_the_upload_and_keeps_nothing(tmp_path: Path, server: S3Server) -> None:
    with stack_of(tmp_path / "data", **_settings(server)) as stack:
        server.stop()
        with pytest.raises(OSError, match="blob store"):
            stack.upload()
        assert list(stack.settings.tmp_path.iterdir()) == []
        server.start()
        assert stack.upload().created
