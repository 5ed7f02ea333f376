"""Jobs, their results, reports, and the workers' heartbeats."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Float, ForeignKey, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from models.tables.base import HASH_LENGTH, ID_LENGTH, Base

JOB_STATUSES = ("queued", "running", "succeeded", "failed", "cancelled")
JOB_KINDS = ("ingest", "replay", "plan", "plan_candidate", "plan_report", "calibrate")


class Job(Base):
    """One execution. Only ``models.jobs`` changes ``status``."""

    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(ID_LENGTH), ForeignKey("tenants.id"))
    kind: Mapped[str] = mapped_column(String(20))
    name: Mapped[str] = mapped_column(String(200), default="")
    status: Mapped[str] = mapped_column(String(20))
    spec: Mapped[dict[str, Any]]
    """What to do, complete in itself, with a ``schema_version``; a worker needs nothing else but blobs."""
    input_hash: Mapped[str | None] = mapped_column(String(HASH_LENGTH))
    """Hash of kind, spec and code version; null: not shared (children, aggregations)."""
    code_version: Mapped[str] = mapped_column(String(HASH_LENGTH))
    """Hash of the domain's source files that the answer is asked of."""
    trace_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    schedule_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    request_id: Mapped[str | None] = mapped_column(String(100))
    """Ties the worker's log lines to the request that started the job."""

    parent_id: Mapped[str | None] = mapped_column(String(ID_LENGTH), ForeignKey("jobs.id", ondelete="CASCADE"))
    position: Mapped[int] = mapped_column(default=0)
    """Order among the parent's children."""
    children: Mapped[int] = mapped_column(default=0)
    remaining: Mapped[int] = mapped_column(default=0)
    """Children of a plan that have not succeeded yet."""

    attempt: Mapped[int] = mapped_column(default=0)
    """Counts claims; every write of a runner is fenced by it."""
    max_attempts: Mapped[int]
    claimed_by: Mapped[str | None] = mapped_column(String(200))
    heartbeat_at: Mapped[datetime | None]
    progress: Mapped[float] = mapped_column(Float(), default=0.0)
    """0 to 1."""
    cancel_requested_at: Mapped[datetime | None]
    dispatched_at: Mapped[datetime | None]
    dispatches: Mapped[int] = mapped_column(default=0)
    error_code: Mapped[str | None] = mapped_column(String(100))
    error_detail: Mapped[str | None] = mapped_column(Text())
    errors: Mapped[list[Any] | None]
    """Faults by line, column, field and rule, at most 20."""
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    version: Mapped[int] = mapped_column(default=1)

    __table_args__ = (
        CheckConstraint(f"status IN {JOB_STATUSES}", name="status"),
        CheckConstraint(f"kind IN {JOB_KINDS}", name="kind"),
        CheckConstraint("remaining >= 0", name="remaining"),
        Index(None, "tenant_id", "created_at", "id"),
        Index(None, "status", "kind", "dispatched_at"),
        Index(None, "parent_id", "position"),
        Index(
            "uq_jobs_tenant_id_input_hash",
            "tenant_id",
            "input_hash",
            unique=True,
            sqlite_where=text("status IN ('queued', 'running', 'succeeded')"),
            postgresql_where=text("status IN ('queued', 'running', 'succeeded')"),
        ),
    )


class JobFile(Base):
    """A blob that a job reads and no trace names: kept while the job is live, which is why it is no foreign key."""

    __tablename__ = "job_files"

    job_id: Mapped[str] = mapped_column(String(ID_LENGTH), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(HASH_LENGTH), primary_key=True, index=True)
    bytes: Mapped[int]


class JobResult(Base):
    """What a finished child computed, until its parent's report is made of it; canonical JSON."""

    __tablename__ = "job_results"

    job_id: Mapped[str] = mapped_column(String(ID_LENGTH), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    body: Mapped[str] = mapped_column(Text())
    code_version: Mapped[str] = mapped_column(String(HASH_LENGTH))
    """Of the worker that computed it."""
    created_at: Mapped[datetime]


class Report(Base):
    """The answer of a plan or a replay. The document is a blob of canonical JSON: equal input, equal bytes."""

    __tablename__ = "reports"

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(ID_LENGTH), ForeignKey("tenants.id"))
    job_id: Mapped[str] = mapped_column(String(ID_LENGTH), ForeignKey("jobs.id", ondelete="CASCADE"), unique=True)
    """The plan or replay that asked; one report each."""
    kind: Mapped[str] = mapped_column(String(20))
    name: Mapped[str] = mapped_column(String(200))
    trace_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    document_sha256: Mapped[str] = mapped_column(String(HASH_LENGTH), ForeignKey("blobs.sha256"), index=True)
    document_bytes: Mapped[int]
    requests_sha256: Mapped[str | None] = mapped_column(String(HASH_LENGTH), ForeignKey("blobs.sha256"), index=True)
    """Parquet of the per-request table; replays only."""
    requests_bytes: Mapped[int | None]
    created_at: Mapped[datetime]

    __table_args__ = (
        CheckConstraint("kind IN ('plan', 'replay')", name="kind"),
        Index(None, "tenant_id", "created_at", "id"),
    )


class ReportCalibration(Base):
    """A user's calibration that a report rests on."""

    __tablename__ = "report_calibrations"

    report_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("reports.id", ondelete="CASCADE"), primary_key=True
    )
    calibration: Mapped[str] = mapped_column(String(60), primary_key=True, index=True)
    """Its id in reports, which is of its content: the row of the calibration may be deleted."""


class Worker(Base):
    """A worker process group; its health check compares ``heartbeat_at`` with the clock."""

    __tablename__ = "workers"

    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    queues: Mapped[str] = mapped_column(String(100))
    concurrency: Mapped[int]
    code_version: Mapped[str] = mapped_column(String(HASH_LENGTH))
    blob_probe_ok: Mapped[bool | None]
    """Whether this worker reads the probe blob that the API wrote; null: there was none yet."""
    started_at: Mapped[datetime]
    heartbeat_at: Mapped[datetime] = mapped_column(index=True)
    stopping_at: Mapped[datetime | None]
    """Set when it was told to stop: its jobs then put themselves back to queued."""
