"""Traces: store an upload, read what became of it, delete it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from models import jobs
from models.blobs import StoredUpload
from models.errors import ConflictError, InvalidError, TooLargeError
from models.hashing import canonical_json, code_version, input_hash, sha256_text
from models.ids import new_id
from models.paging import Page, PageRequest
from models.principal import Principal
from models.repositories import blobs as blob_rows
from models.repositories import jobs as job_rows
from models.repositories import schedules as schedule_rows
from models.repositories import traces as trace_rows
from models.services import Services
from models.settings import Settings
from models.tables import Job, Trace
from models.use_cases.limits import check_live_jobs, check_stored_bytes
from replay.traces.options import IngestOptions


@dataclass(frozen=True)
class CreatedTrace:
    """The trace, its ingest job, and whether this call created them (False: the same upload was here already)."""

    trace: Trace
    job: Job
    created: bool


def check_upload_allowed(session: Session, principal: Principal, services: Services, content_length: int | None) -> int:
    """Before a body is read: scope, stored bytes of the tenant, declared length against the limit.

    The bytes that the tenant has left. Raises ForbiddenError, LimitError (429) or TooLargeError (413).
    """
    principal.require("traces:write")
    limit = services.settings.upload_max_bytes
    if content_length is not None and content_length > limit:
        raise TooLargeError(f"the body is larger than the limit of {limit} bytes", code="upload.too_large")
    return check_stored_bytes(session, principal, services, content_length or 1)


def create_trace(
    session: Session,
    principal: Principal,
    services: Services,
    upload: StoredUpload,
    *,
    name: str,
    options: IngestOptions,
    stream: str | None = None,
    request_id: str | None = None,
) -> CreatedTrace:
    """Moves a finished upload (``models.blobs.UploadWriter``) into the blob store, inserts trace and ingest job.

    The same content, options and stream as a trace that did not fail gives that trace; equal content under another
    stream shares the ingest job. Raises LimitError, InvalidError.
    """
    principal.require("traces:write")
    _check_labels(name, stream)
    spec = {
        "schema_version": 1,
        "source_sha256": upload.sha256,
        "options": within_limits(options, services.settings).model_dump(mode="json"),
    }
    content_key = sha256_text(canonical_json({**spec, "stream": stream}))
    if (found := trace_rows.find_by_content(session, principal.tenant_id, content_key)) is not None:
        return CreatedTrace(found, job_rows.get_job(session, principal.tenant_id, found.ingest_job_id), created=False)
    check_stored_bytes(session, principal, services, upload.bytes)
    check_live_jobs(session, principal, services)
    now = services.clock()
    trace = Trace(
        id=new_id("trc"),
        tenant_id=principal.tenant_id,
        name=name,
        stream=stream,
        status="ingesting",
        source_sha256=upload.sha256,
        source_bytes=upload.bytes,
        options=spec["options"],
        content_key=content_key,
        created_at=now,
        updated_at=now,
    )
    job = jobs.new_job(
        tenant_id=principal.tenant_id,
        kind="ingest",
        name=name,
        spec=spec,
        input_hash=input_hash("ingest", spec, code_version()),
        code_version=code_version(),
        settings=services.settings,
        now=now,
        trace_id=trace.id,
        request_id=request_id,
    )
    # The row first: its lock keeps a sweeper from taking the file between here and the commit.
    blob_rows.note_blob(session, upload.sha256, upload.bytes, now)
    services.blobs.put_file(upload.path, upload.sha256)
    ingest = _start_ingest(session, job)
    trace.ingest_job_id = ingest.id
    if ingest.status == "succeeded":
        _copy_outcome(session, ingest, trace)
    try:
        with session.begin_nested():
            session.add(trace)
    except IntegrityError:  # another transaction inserted the same upload since we looked
        found = trace_rows.find_by_content(session, principal.tenant_id, content_key)
        if found is None:
            raise
        return CreatedTrace(found, job_rows.get_job(session, principal.tenant_id, found.ingest_job_id), created=False)
    return CreatedTrace(trace, ingest, created=True)


def _start_ingest(session: Session, job: Job) -> Job:
    """The new ingest job, or the one that it equals: locked, so that it cannot end before the trace is there."""
    while True:
        started = jobs.create(session, job)
        if started.created or job_rows.lock(session, started.job.id).status in job_rows.SHARED:
            return started.job


def list_traces(session: Session, principal: Principal, page: PageRequest, *, stream: str | None = None) -> Page[Trace]:
    """The tenant's traces, newest first."""
    principal.require("reports:read")
    return trace_rows.list_traces(session, principal.tenant_id, page, stream)


def get_trace(session: Session, principal: Principal, trace_id: str) -> Trace:
    """One trace; ``trace.report`` has format, assumptions, cleaning report and profile once ``status`` is ``ready``.

    Raises NotFoundError.
    """
    principal.require("reports:read")
    return trace_rows.get_trace(session, principal.tenant_id, trace_id)


def has_trace(session: Session, principal: Principal, trace_id: str | None) -> bool:
    """Whether the trace is there: jobs and reports outlive the one they name."""
    principal.require("reports:read")
    return trace_rows.has_trace(session, principal.tenant_id, trace_id)


def get_ready_trace(session: Session, principal: Principal, trace_id: str, *, lock: bool = False) -> Trace:
    """A trace that can be planned on; ``lock`` where a job is about to use it, so that nobody deletes it meanwhile.

    Raises NotFoundError; ConflictError ``trace.not_ready`` or ``trace.failed``.
    """
    trace = trace_rows.get_trace(session, principal.tenant_id, trace_id, lock=lock)
    if trace.status == "ingesting":
        raise ConflictError(
            f"the trace {trace.id} is still being read: wait for the job {trace.ingest_job_id}",
            code="trace.not_ready",
            retry_after_s=2,
        )
    if trace.status == "failed":
        raise ConflictError(
            f"the trace {trace.id} could not be read: the job {trace.ingest_job_id} says why", code="trace.failed"
        )
    return trace


def delete_trace(session: Session, principal: Principal, services: Services, trace_id: str) -> None:
    """Deletes a trace; its blobs follow after the grace time, reports made of it stay.

    Raises NotFoundError; ConflictError where a live job or a schedule still uses it.
    """
    principal.require("traces:write")
    trace = trace_rows.get_trace(session, principal.tenant_id, trace_id, lock=True)
    if job_rows.count_live_using_trace(session, principal.tenant_id, trace.id):
        raise ConflictError("a job still uses this trace: wait for it or cancel it", code="trace.in_use")
    if schedule_rows.count_using_trace(session, principal.tenant_id, trace.id):
        raise ConflictError("a schedule repeats its plan on this trace: delete it first", code="trace.in_use")
    sharing = [other for other in trace_rows.list_of_ingest_job(session, trace.ingest_job_id) if other.id != trace.id]
    if trace.status == "ingesting" and sharing:
        raise ConflictError("the trace is still being read: wait for its job", code="trace.in_use")
    for sha256, size in ((trace.source_sha256, trace.source_bytes), (trace.canonical_sha256, trace.canonical_bytes)):
        if sha256 is not None:
            blob_rows.note_blob(session, sha256, size or 0, services.clock())
    if not sharing:
        # Nothing holds the outcome any more: the same upload made again must be read again.
        jobs.forget_input(session, trace.ingest_job_id)  # after the blobs, in the order of create_trace
    session.delete(trace)
    session.flush()


def delete_upload(services: Services, sha256: str) -> bool:
    """Deletes the file of an upload that no ingest waits for, unless uploads are kept; whether it did."""
    if services.settings.keep_uploads:
        return False
    with services.database.write() as session:
        gone = blob_rows.let_go_of_upload(session, sha256)
        if gone:
            services.blobs.delete(sha256)  # within the transaction: who stores it again waits for the row
    return gone


def _check_labels(name: str, stream: str | None) -> None:
    for field, text, limit in (("name", name, 200), ("stream", stream or "", 100)):
        if len(text) > limit or not text.isprintable():
            raise InvalidError(f"the {field} must be at most {limit} printable characters", code=f"trace.{field}")


def within_limits(options: IngestOptions, settings: Settings) -> IngestOptions:
    """The service's limits bind, whatever the upload asked for."""
    asked = options.limits
    limits = asked.model_copy(
        update={
            "max_decompressed_bytes": min(asked.max_decompressed_bytes, settings.ingest_max_decompressed_bytes),
            "max_ratio": min(asked.max_ratio, settings.ingest_max_ratio),
            "max_rows": min(asked.max_rows, settings.ingest_max_rows),
            "max_line_bytes": min(asked.max_line_bytes, settings.ingest_max_line_bytes),
            "max_columns": min(asked.max_columns, settings.ingest_max_columns),
        }
    )
    return options.model_copy(update={"limits": limits})


def _copy_outcome(session: Session, job: Job, trace: Trace) -> None:
    """Equal content was read before: its outcome is this trace's too."""
    source = next((t for t in trace_rows.list_of_ingest_job(session, job.id) if t.status == "ready"), None)
    if source is None:
        raise ConflictError("an equal trace was deleted just now: upload again", retry_after_s=1)
    trace.status = "ready"
    trace.canonical_sha256 = source.canonical_sha256
    trace.canonical_bytes = source.canonical_bytes
    trace.report = source.report
