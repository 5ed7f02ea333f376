"""Everything there is: tenants, keys, traces, jobs, reports, schedules, catalogue.

Revision: 0001
Revises:
"""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


LOCAL_TENANT_ID = "tnt_00000000000000000000000000000001"
TABLES = (
    "blobs",
    "tenants",
    "workers",
    "api_keys",
    "audit_events",
    "catalogue_entries",
    "idempotency_keys",
    "jobs",
    "traces",
    "job_results",
    "reports",
    "schedules",
    "schedule_runs",
)


def upgrade() -> None:
    op.create_table(
        "blobs",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_blobs")),
    )
    op.create_index(op.f("ix_blobs_last_used_at"), "blobs", ["last_used_at"], unique=False)

    op.create_table(
        "tenants",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("requests_per_minute", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("max_live_jobs", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("max_stored_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
    )
    op.create_table(
        "workers",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("queues", sa.String(length=100), nullable=False),
        sa.Column("concurrency", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("code_version", sa.String(length=64), nullable=False),
        sa.Column("blob_probe_ok", sa.Boolean(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("stopping_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_workers")),
    )
    op.create_index(op.f("ix_workers_heartbeat_at"), "workers", ["heartbeat_at"], unique=False)

    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("replaced_by", sa.String(length=40), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_api_keys_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    op.create_index(
        op.f("ix_api_keys_tenant_id_created_at_id"), "api_keys", ["tenant_id", "created_at", "id"], unique=False
    )

    op.create_table(
        "audit_events",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("key_id", sa.String(length=40), nullable=True),
        sa.Column("action", sa.String(length=60), nullable=False),
        sa.Column("subject_id", sa.String(length=300), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_audit_events_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_events")),
    )
    op.create_index(
        op.f("ix_audit_events_tenant_id_created_at_id"), "audit_events", ["tenant_id", "created_at", "id"], unique=False
    )

    op.create_table(
        "catalogue_entries",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("key", sa.String(length=300), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("kind IN ('gpu', 'model', 'price')", name=op.f("ck_catalogue_entries_kind")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_catalogue_entries_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_catalogue_entries")),
        sa.UniqueConstraint("tenant_id", "kind", "key", name=op.f("uq_catalogue_entries_tenant_id_kind_key")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("request_sha256", sa.String(length=64), nullable=False),
        sa.Column("status", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("headers", sa.JSON(), nullable=False),
        sa.Column("body", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_idempotency_keys_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("tenant_id", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_created_at"), "idempotency_keys", ["created_at"], unique=False)

    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("input_hash", sa.String(length=64), nullable=True),
        sa.Column("code_version", sa.String(length=64), nullable=False),
        sa.Column("trace_id", sa.String(length=40), nullable=True),
        sa.Column("schedule_id", sa.String(length=40), nullable=True),
        sa.Column("request_id", sa.String(length=100), nullable=True),
        sa.Column("parent_id", sa.String(length=40), nullable=True),
        sa.Column("position", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("children", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("remaining", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("attempt", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("max_attempts", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("claimed_by", sa.String(length=200), nullable=True),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("progress", sa.Float(), nullable=False),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("dispatched_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("dispatches", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("error_code", sa.String(length=100), nullable=True),
        sa.Column("error_detail", sa.Text(), nullable=True),
        sa.Column("errors", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("version", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.CheckConstraint(
            "kind IN ('ingest', 'replay', 'plan', 'plan_candidate', 'plan_report')", name=op.f("ck_jobs_kind")
        ),
        sa.CheckConstraint(
            "status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name=op.f("ck_jobs_status")
        ),
        sa.CheckConstraint("remaining >= 0", name=op.f("ck_jobs_remaining")),
        sa.ForeignKeyConstraint(["parent_id"], ["jobs.id"], name=op.f("fk_jobs_parent_id_jobs"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_jobs_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_parent_id_position"), "jobs", ["parent_id", "position"], unique=False)
    op.create_index(
        op.f("ix_jobs_status_kind_dispatched_at"), "jobs", ["status", "kind", "dispatched_at"], unique=False
    )
    op.create_index(op.f("ix_jobs_tenant_id_created_at_id"), "jobs", ["tenant_id", "created_at", "id"], unique=False)
    op.create_index(
        "uq_jobs_tenant_id_input_hash",
        "jobs",
        ["tenant_id", "input_hash"],
        unique=True,
        sqlite_where=sa.text("status IN ('queued', 'running', 'succeeded')"),
        postgresql_where=sa.text("status IN ('queued', 'running', 'succeeded')"),
    )

    op.create_table(
        "traces",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("stream", sa.String(length=100), nullable=True),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("source_sha256", sa.String(length=64), nullable=False),
        sa.Column("source_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("content_key", sa.String(length=64), nullable=False),
        sa.Column("ingest_job_id", sa.String(length=40), nullable=False),
        sa.Column("canonical_sha256", sa.String(length=64), nullable=True),
        sa.Column("canonical_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("report", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("version", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.CheckConstraint("status IN ('ingesting', 'ready', 'failed')", name=op.f("ck_traces_status")),
        sa.ForeignKeyConstraint(["canonical_sha256"], ["blobs.sha256"], name=op.f("fk_traces_canonical_sha256_blobs")),
        sa.ForeignKeyConstraint(["source_sha256"], ["blobs.sha256"], name=op.f("fk_traces_source_sha256_blobs")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_traces_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_traces")),
    )
    op.create_index(op.f("ix_traces_canonical_sha256"), "traces", ["canonical_sha256"], unique=False)
    op.create_index(op.f("ix_traces_ingest_job_id"), "traces", ["ingest_job_id"], unique=False)
    op.create_index(op.f("ix_traces_source_sha256"), "traces", ["source_sha256"], unique=False)
    op.create_index(
        op.f("ix_traces_tenant_id_created_at_id"), "traces", ["tenant_id", "created_at", "id"], unique=False
    )
    op.create_index(
        op.f("ix_traces_tenant_id_stream_created_at"), "traces", ["tenant_id", "stream", "created_at"], unique=False
    )
    op.create_index(
        "uq_traces_tenant_id_content_key",
        "traces",
        ["tenant_id", "content_key"],
        unique=True,
        sqlite_where=sa.text("status <> 'failed'"),
        postgresql_where=sa.text("status <> 'failed'"),
    )

    op.create_table(
        "job_results",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("code_version", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_results_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_job_results")),
    )
    op.create_table(
        "reports",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("trace_id", sa.String(length=40), nullable=True),
        sa.Column("document_sha256", sa.String(length=64), nullable=False),
        sa.Column("document_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("requests_sha256", sa.String(length=64), nullable=True),
        sa.Column("requests_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("kind IN ('plan', 'replay')", name=op.f("ck_reports_kind")),
        sa.ForeignKeyConstraint(["document_sha256"], ["blobs.sha256"], name=op.f("fk_reports_document_sha256_blobs")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_reports_job_id_jobs"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["requests_sha256"], ["blobs.sha256"], name=op.f("fk_reports_requests_sha256_blobs")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_reports_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reports")),
        sa.UniqueConstraint("job_id", name=op.f("uq_reports_job_id")),
    )
    op.create_index(op.f("ix_reports_document_sha256"), "reports", ["document_sha256"], unique=False)
    op.create_index(op.f("ix_reports_requests_sha256"), "reports", ["requests_sha256"], unique=False)
    op.create_index(
        op.f("ix_reports_tenant_id_created_at_id"), "reports", ["tenant_id", "created_at", "id"], unique=False
    )

    op.create_table(
        "schedules",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("cron", sa.String(length=200), nullable=False),
        sa.Column("zone", sa.String(length=100), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("trace_id", sa.String(length=40), nullable=True),
        sa.Column("stream", sa.String(length=100), nullable=True),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("next_run_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("version", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.CheckConstraint("status IN ('active', 'paused')", name=op.f("ck_schedules_status")),
        sa.CheckConstraint("(trace_id IS NULL) <> (stream IS NULL)", name=op.f("ck_schedules_source")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_schedules_tenant_id_tenants")),
        sa.ForeignKeyConstraint(["trace_id"], ["traces.id"], name=op.f("fk_schedules_trace_id_traces")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
    )
    op.create_index(op.f("ix_schedules_status_next_run_at"), "schedules", ["status", "next_run_at"], unique=False)
    op.create_index(
        op.f("ix_schedules_tenant_id_created_at_id"), "schedules", ["tenant_id", "created_at", "id"], unique=False
    )
    op.create_index(op.f("ix_schedules_trace_id"), "schedules", ["trace_id"], unique=False)

    op.create_table(
        "schedule_runs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("schedule_id", sa.String(length=40), nullable=False),
        sa.Column("scheduled_for", sa.DateTime(timezone=True), nullable=False),
        sa.Column("trigger", sa.String(length=20), nullable=False),
        sa.Column("missed", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=True),
        sa.Column("error_code", sa.String(length=100), nullable=True),
        sa.Column("error_detail", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("trigger IN ('cron', 'manual')", name=op.f("ck_schedule_runs_trigger")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_schedule_runs_job_id_jobs")),
        sa.ForeignKeyConstraint(
            ["schedule_id"], ["schedules.id"], name=op.f("fk_schedule_runs_schedule_id_schedules"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_schedule_runs_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedule_runs")),
        sa.UniqueConstraint("schedule_id", "scheduled_for", name=op.f("uq_schedule_runs_schedule_id_scheduled_for")),
    )
    op.create_index(
        op.f("ix_schedule_runs_tenant_id_schedule_id_created_at_id"),
        "schedule_runs",
        ["tenant_id", "schedule_id", "created_at", "id"],
        unique=False,
    )

    # Embedded mode and a deployment's first administrator live in this tenant.
    tenants = sa.table(
        "tenants", sa.column("id"), sa.column("name"), sa.column("created_at", sa.DateTime(timezone=True))
    )
    op.bulk_insert(tenants, [{"id": LOCAL_TENANT_ID, "name": "local", "created_at": datetime.now(UTC)}])


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)
