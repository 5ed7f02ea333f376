"""A tenant's own calibrations."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from models.tables.base import ID_LENGTH, Base


class CalibrationRow(Base):
    """A calibration as it was uploaded or fitted; never changed: the newest of a deployment counts, old ones stay."""

    __tablename__ = "calibrations"

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(ID_LENGTH), ForeignKey("tenants.id"))
    document: Mapped[dict[str, Any]]
    """``replay.calibration.user.UserCalibration`` as JSON."""
    version: Mapped[int]
    """Counts those of the same deployment, from 1."""
    job_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    """The job that fitted it; null: uploaded as it is."""
    created_at: Mapped[datetime]

    __table_args__ = (Index(None, "tenant_id", "created_at"),)
