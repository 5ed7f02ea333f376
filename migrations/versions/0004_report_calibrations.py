"""Which of a tenant's calibrations a report rests on: for reports that are there already, as their documents say.

Revision: 0004
Revises: 0003
"""

from __future__ import annotations

import json

import sqlalchemy as sa
import structlog
from alembic import context, op

from models.blobs import build_blob_store
from models.errors import NotFoundError

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

log = structlog.get_logger(__name__)

_JOBS = sa.table("jobs", sa.column("id", sa.String()), sa.column("spec", sa.JSON()))
_REPORTS = sa.table("reports", sa.column("id"), sa.column("job_id"), sa.column("document_sha256"))


def upgrade() -> None:
    table = op.create_table(
        "report_calibrations",
        sa.Column("report_id", sa.String(length=40), nullable=False),
        sa.Column("calibration", sa.String(length=60), nullable=False),
        sa.ForeignKeyConstraint(
            ["report_id"], ["reports.id"], name=op.f("fk_report_calibrations_report_id_reports"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("report_id", "calibration", name=op.f("pk_report_calibrations")),
    )
    op.create_index(op.f("ix_report_calibrations_calibration"), "report_calibrations", ["calibration"], unique=False)
    rows = _rows(op.get_bind())
    if rows:
        op.bulk_insert(table, rows)


def downgrade() -> None:
    op.drop_table("report_calibrations")


def _rows(connection: sa.Connection) -> list[dict[str, str]]:
    """Of the reports whose request named calibrations of the tenant's own: only their documents are read."""
    asked = sa.select(_REPORTS.c.id, _REPORTS.c.document_sha256, _JOBS.c.spec).join(
        _JOBS, _JOBS.c.id == _REPORTS.c.job_id
    )
    blobs = build_blob_store(context.config.attributes["settings"])
    rows: list[dict[str, str]] = []
    for report_id, sha256, spec in connection.execute(asked.order_by(_REPORTS.c.id)):
        if not (spec.get("plan") or spec.get("replay") or {}).get("calibrations"):
            continue
        try:
            with blobs.open(sha256) as file:
                named = json.load(file)["provenance"]["calibrations"]
        except NotFoundError:
            log.warning("report.document_missing", report_id=report_id)
            continue
        used = {one["calibration_id"] for one in named if one["provenance"] == "measured"}
        rows += [{"report_id": report_id, "calibration": one} for one in sorted(used)]
    return rows
