"""Calibrations fitted by jobs: their kind, the files they read, and versions by deployment.

Revision: 0003
Revises: 0002
"""

from __future__ import annotations

from collections import Counter

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_KINDS = "'ingest', 'replay', 'plan', 'plan_candidate', 'plan_report'"


def upgrade() -> None:
    _set_kinds(f"{_KINDS}, 'calibrate'")
    op.create_table(
        "job_files",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_files_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "sha256", name=op.f("pk_job_files")),
    )
    op.create_index(op.f("ix_job_files_sha256"), "job_files", ["sha256"], unique=False)
    op.add_column("calibrations", sa.Column("job_id", sa.String(length=40), nullable=True))
    integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("calibrations", sa.Column("version", integer, nullable=False, server_default="1"))
    _number_versions()
    with op.batch_alter_table("calibrations") as batch:
        batch.alter_column("version", server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("calibrations") as batch:
        batch.drop_column("version")
        batch.drop_column("job_id")
    op.drop_table("job_files")
    op.execute("DELETE FROM jobs WHERE kind = 'calibrate'")
    _set_kinds(_KINDS)


def _set_kinds(kinds: str) -> None:
    with op.batch_alter_table("jobs") as batch:
        batch.drop_constraint(op.f("ck_jobs_kind"), type_="check")
        batch.create_check_constraint(op.f("ck_jobs_kind"), f"kind IN ({kinds})")


def _number_versions() -> None:
    table = sa.table(
        "calibrations",
        sa.column("id", sa.String()),
        sa.column("tenant_id", sa.String()),
        sa.column("document", sa.JSON()),
        sa.column("created_at", sa.DateTime()),
        sa.column("version", sa.BigInteger()),
    )
    seen: Counter[str] = Counter()
    query = sa.select(table.c.id, table.c.tenant_id, table.c.document).order_by(table.c.created_at, table.c.id)
    for row in op.get_bind().execute(query).all():
        key = f"{row.tenant_id} {sorted(row.document['deployment'].items())}"
        seen[key] += 1
        op.execute(table.update().where(table.c.id == row.id).values(version=seen[key]))
