"""Which of a tenant's calibrations a report rests on.

Revision: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "report_calibrations",
        sa.Column("report_id", sa.String(length=40), nullable=False),
        sa.Column("calibration", sa.String(length=60), nullable=False),
        sa.ForeignKeyConstraint(
            ["report_id"], ["reports.id"], name=op.f("fk_report_calibrations_report_id_reports"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("report_id", "calibration", name=op.f("pk_report_calibrations")),
    )
    op.create_index(op.f("ix_report_calibrations_calibration"), "report_calibrations", ["calibration"], unique=False)


def downgrade() -> None:
    op.drop_table("report_calibrations")
