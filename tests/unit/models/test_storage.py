"""Blobs, uploads, traces and the sweeper."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from dataclasses import replace

import pytest
from sqlalchemy import event, select

from models import jobs as machine
from models.blobs import FilesystemBlobStore, StoredUpload, UploadWriter
from models.errors import ConflictError, DigestError, InvalidError, LimitError, NotFoundError, TooLargeError
from models.ids import new_id
from models.principal import Principal
from models.repositories import blobs as blob_rows
from models.repositories import traces as trace_rows
from models.services import Services
from models.tables import Blob, Job, Report, Tenant, Trace
from models.use_cases import health, reports, traces
from models.use_cases.health import queue_figures, readiness
from models.use_cases.limits import check_stored_bytes
from replay.traces.options import IngestOptions
from worker import ticks

CONTENT = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"


def store(services: Services, content: bytes = CONTENT) -> StoredUpload:
    """A finished upload; ``create_trace`` moves it away or the next sweep would find it."""
    writer = UploadWriter(services.settings.tmp_path, 1000)
    writer.write(content)
    return writer.finish()


def create(
    services: Services, principal: Principal, content: bytes = CONTENT, stream: str | None = None
) -> traces.CreatedTrace:
    with services.database.write() as session:
        return traces.create_trace(
            session, principal, services, store(services, content), name="t", options=IngestOptions(), stream=stream
        )


def make_ready(services: Services, created: traces.CreatedTrace, sha256: str = "b" * 64) -> None:
    """What a worker does at the end of an ingest."""
    now = services.clock()
    with services.database.write() as session:
        job = machine.claim(session, created.job.id, "w", now)
        assert job is not None
        blob_rows.note_blob(session, sha256, 1, now)
        trace_rows.make_ready(session, job.id, sha256, 1, {"requests": 1}, now)
        machine.finish(session, job, 1, now)


def test_a_writer_counts_hashes_and_leaves_nothing_behind(services: Services) -> None:
    folder = services.settings.tmp_path
    with UploadWriter(folder, 10) as writer:
        writer.write(b"12345")
        assert len(list(folder.iterdir())) == 1
        upload = writer.finish(hashlib.sha256(b"12345").hexdigest().upper())
        assert (upload.bytes, upload.path.read_bytes()) == (5, b"12345")
    with pytest.raises(TooLargeError), UploadWriter(folder, 10) as writer:
        writer.write(b"x" * 11)
    with UploadWriter(folder, 10) as writer:
        with pytest.raises(InvalidError):
            writer.finish()
        writer.write(b"x")
        with pytest.raises(DigestError):
            writer.finish("0" * 64)
    assert list(folder.iterdir()) == []


def test_blobs_are_named_by_their_content(services: Services) -> None:
    upload = store(services)
    services.blobs.put_file(upload.path, upload.sha256)
    assert not upload.path.exists()
    again = store(services)
    services.blobs.put_file(again.path, again.sha256)
    with services.blobs.open(upload.sha256) as file:
        assert file.read() == CONTENT
    services.blobs.delete(upload.sha256)
    services.blobs.delete(upload.sha256)
    with pytest.raises(NotFoundError):
        services.blobs.open(upload.sha256)


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "A" * 64, "g" * 64, "a" * 63, "a" * 62 + "/."])
def test_only_hashes_make_paths(services: Services, name: str) -> None:
    assert isinstance(services.blobs, FilesystemBlobStore)
    with pytest.raises(ValueError, match="SHA-256"):
        services.blobs.exists(name)


def test_the_same_upload_is_one_trace_and_another_stream_shares_the_ingest(
    services: Services, principal: Principal
) -> None:
    first = create(services, principal)
    second = create(services, principal)
    assert (first.created, second.created) == (True, False)
    assert second.trace.id == first.trace.id
    weekly = create(services, principal, stream="weekly")
    assert weekly.trace.id != first.trace.id
    assert weekly.job.id == first.job.id
    make_ready(services, first)
    late = create(services, principal, stream="late")
    with services.database.read() as session:
        rows = session.scalars(select(Trace)).all()
        assert len(session.scalars(select(Job)).all()) == 1
    assert {row.status for row in rows} == {"ready"}
    assert {row.canonical_sha256 for row in rows} == {"b" * 64}
    assert late.trace.report == {"requests": 1}


def test_a_deleted_trace_is_read_again_when_uploaded_again(services: Services, principal: Principal) -> None:
    created = create(services, principal)
    with services.database.write() as session, pytest.raises(ConflictError):
        traces.delete_trace(session, principal, services, created.trace.id)
    make_ready(services, created)
    with services.database.write() as session:
        traces.delete_trace(session, principal, services, created.trace.id)
    again = create(services, principal)
    assert again.created
    assert again.job.id != created.job.id


def test_limits_of_the_tenant_bind(services: Services, principal: Principal) -> None:
    with services.database.write() as session:
        tenant = session.get_one(Tenant, principal.tenant_id)
        tenant.max_stored_bytes, tenant.max_live_jobs = 100, 1
    create(services, principal)
    with pytest.raises(LimitError) as refused:
        create(services, principal, b"x" * 99)
    assert refused.value.code == "limit.stored_bytes"
    with pytest.raises(LimitError) as refused:
        create(services, principal, b"other")
    assert refused.value.code == "limit.live_jobs"
    with services.database.read() as session:
        traces.check_upload_allowed(session, principal, services, 10)
        with pytest.raises(TooLargeError):
            traces.check_upload_allowed(session, principal, services, services.settings.upload_max_bytes + 1)
        with pytest.raises(LimitError):
            traces.check_upload_allowed(session, principal, services, 101)


def test_the_services_limits_bind_whatever_an_upload_asks(services: Services, principal: Principal) -> None:
    strict = replace(services, settings=services.settings.model_copy(update={"ingest_max_rows": 7}))
    created = create(strict, principal)
    assert created.trace.options["limits"]["max_rows"] == 7
    assert created.job.spec["options"]["limits"]["max_rows"] == 7


def test_the_sweeper_deletes_only_what_nothing_refers_to(
    services: Services, principal: Principal, clock: object
) -> None:
    readiness(services)  # writes the probe blob, which stays
    created = create(services, principal)
    make_ready(services, created)
    clock.advance(days=2)
    assert ticks.sweep(kept(services)) == 0
    with services.database.write() as session:
        traces.delete_trace(session, principal, services, created.trace.id)
    assert ticks.sweep(services) == 0, "the grace time starts with the deletion"
    clock.advance(days=2)
    assert ticks.sweep(services) == 2
    assert not services.blobs.exists(created.trace.source_sha256)
    with services.database.read() as session:
        assert len(session.scalars(select(Blob)).all()) == 1


def kept(services: Services) -> Services:
    """An installation that keeps uploads."""
    return replace(services, settings=services.settings.model_copy(update={"keep_uploads": True}))


def size_of(services: Services, sha256: str) -> int:
    with services.database.read() as session:
        return session.get_one(Blob, sha256).bytes


def test_the_file_of_an_upload_goes_once_it_is_read(services: Services, principal: Principal, clock: object) -> None:
    created = create(services, principal)
    sha256 = created.trace.source_sha256
    assert not traces.delete_upload(services, sha256), "its ingest waits for it"
    clock.advance(days=2)
    assert ticks.sweep(services) == 0
    make_ready(services, created)
    assert not traces.delete_upload(kept(services), sha256)
    with services.database.read() as session:
        both = blob_rows.stored_bytes(session, principal.tenant_id)
    assert traces.delete_upload(services, sha256)
    assert not services.blobs.exists(sha256)
    assert size_of(services, sha256) == 0
    with services.database.read() as session:
        assert blob_rows.stored_bytes(session, principal.tenant_id) == both - len(CONTENT)
    assert not traces.delete_upload(services, sha256)
    assert create(services, principal).created is False, "the same upload is the same trace still"


def test_an_upload_that_another_ingest_waits_for_stays(services: Services, principal: Principal) -> None:
    first = create(services, principal)
    make_ready(services, first)
    assert traces.delete_upload(services, first.trace.source_sha256)
    with services.database.write() as session:
        second = traces.create_trace(
            session, principal, services, store(services), name="t", options=IngestOptions(block_size=16)
        )
    assert second.created
    assert services.blobs.exists(first.trace.source_sha256), "stored again"
    assert size_of(services, first.trace.source_sha256) == len(CONTENT)
    assert not traces.delete_upload(services, first.trace.source_sha256)
    make_ready(services, second, "c" * 64)
    assert traces.delete_upload(services, first.trace.source_sha256)


def test_a_sweep_deletes_uploads_that_nobody_will_read(services: Services, principal: Principal, clock: object) -> None:
    failed, read = create(services, principal), create(services, principal, CONTENT + b"x")
    make_ready(services, read)
    with services.database.write() as session:
        job = machine.claim(session, failed.job.id, "w", services.clock())
        assert job is not None
        machine.fail(session, job, 1, machine.Failure("trace.empty", "no", ()), services.clock())
    assert ticks.sweep(services) == 0, "within the grace time"
    clock.advance(days=2)
    assert ticks.sweep(services) == 2
    assert ticks.sweep(services) == 0
    for created in (failed, read):
        assert not services.blobs.exists(created.trace.source_sha256)
    with services.database.write() as session:
        traces.delete_trace(session, principal, services, read.trace.id)
    clock.advance(days=2)
    assert ticks.sweep(services) >= 1
    with services.database.read() as session:
        assert not blob_rows.exists(session, read.trace.source_sha256)


def test_the_sweeper_deletes_abandoned_files(services: Services) -> None:
    old, new = store(services), store(services)
    orphan = store(services, b"no row names this")
    services.blobs.put_file(orphan.path, orphan.sha256)
    two_days_ago = time.time() - 2 * 86_400
    os.utime(old.path, (two_days_ago, two_days_ago))
    os.utime(services.blobs.local_path(orphan.sha256), (two_days_ago, two_days_ago))
    assert ticks.sweep(services) == 1
    assert (old.path.exists(), new.path.exists()) == (False, True)
    assert not services.blobs.exists(orphan.sha256)


def test_readiness_and_figures(services: Services, principal: Principal, clock: object) -> None:
    assert {check.name: check.ok for check in readiness(services)} == {
        "database": True,
        "migrations": True,
        "broker": True,
        "blobs": True,
        "workers": True,
    }
    create(services, principal)
    clock.advance(seconds=30)
    figures = queue_figures(services)
    assert (figures.jobs_by_status, figures.oldest_queued_s) == ({"queued": 1}, 30.0)


def test_a_blob_is_on_the_disk_before_it_has_its_name(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    path = services.settings.tmp_path / "canonical.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    synced: list[tuple[bool, bool]] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        sync(descriptor)
        synced.append((stat.S_ISREG(os.fstat(descriptor).st_mode), services.blobs.exists(sha256)))

    monkeypatch.setattr(os, "fsync", note)
    services.blobs.put_file(path, sha256)
    assert synced == [(True, False), (False, True)], "the file, then its name in the folder"


def test_a_blob_that_a_crash_cut_short_is_replaced(services: Services) -> None:
    upload = store(services)
    services.blobs.put_file(upload.path, upload.sha256)
    services.blobs.local_path(upload.sha256).write_bytes(b"")
    again = store(services)
    services.blobs.put_file(again.path, again.sha256)
    with services.blobs.open(upload.sha256) as file:
        assert file.read() == CONTENT


def add_report(services: Services, principal: Principal) -> Report:
    now = services.clock()
    with services.database.write() as session:
        job = machine.new_job(
            tenant_id=principal.tenant_id,
            kind="replay",
            spec={"schema_version": 1},
            code_version="v",
            settings=services.settings,
            now=now,
            input_hash="h" * 64,
        )
        machine.create(session, job)
        for sha256, size in (("d" * 64, 30), ("e" * 64, 50)):
            blob_rows.note_blob(session, sha256, size, now)
        report = Report(
            id=new_id("rep"),
            tenant_id=principal.tenant_id,
            job_id=job.id,
            kind="replay",
            name="",
            document_sha256="d" * 64,
            document_bytes=30,
            requests_sha256="e" * 64,
            requests_bytes=50,
            created_at=now,
        )
        session.add(report)
    return report


def test_reports_count_until_they_are_deleted(services: Services, principal: Principal, clock: object) -> None:
    report = add_report(services, principal)
    with services.database.write() as session:
        session.get_one(Tenant, principal.tenant_id).max_stored_bytes = 80
        assert blob_rows.stored_bytes(session, principal.tenant_id) == 80
        with pytest.raises(LimitError):
            check_stored_bytes(session, principal, services)
    clock.advance(days=2)
    assert ticks.sweep(services) == 0
    with services.database.write() as session:
        reports.delete_report(session, principal, services, report.id)
        assert check_stored_bytes(session, principal, services) == 80
        assert session.get_one(Job, report.job_id).input_hash is None, "the same request is computed again"
        with pytest.raises(NotFoundError):
            reports.delete_report(session, principal, services, report.id)
    clock.advance(days=2)
    assert ticks.sweep(services) == 2


def test_without_the_database_nothing_else_is_asked(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Services) -> None:
        raise OSError

    monkeypatch.setattr(health, "_database", fail)
    monkeypatch.setattr(health, "_migrations", lambda _: pytest.fail("asked"))
    assert [check.ok for check in readiness(services)] == [False]


def test_a_sweep_writes_nothing_for_blobs_that_stay(
    services: Services, principal: Principal, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = create(services, principal)
    two_days_ago = time.time() - 2 * 86_400
    os.utime(services.blobs.local_path(created.trace.source_sha256), (two_days_ago, two_days_ago))
    monkeypatch.setattr(services.database, "write", lambda: pytest.fail("a write transaction"))
    assert ticks._sweep_orphans(services) == 0


def test_reading_a_trace_locks_nothing(services: Services, principal: Principal) -> None:
    created = create(services, principal)
    make_ready(services, created)
    locked = []
    for lock in (False, True):
        with services.database.read() as session:
            event.listen(session, "do_orm_execute", lambda state: locked.append(state.statement._for_update_arg))
            traces.get_ready_trace(session, principal, created.trace.id, lock=lock)
    assert [one is not None for one in locked] == [False, True]
