"""Tenants' own calibrations."""

from __future__ import annotations

from sqlalchemy.orm import Session

from models.repositories.scope import of_tenant
from models.tables import CalibrationRow


def list_calibrations(session: Session, tenant_id: str) -> list[CalibrationRow]:
    """All of a tenant, oldest first."""
    statement = of_tenant(CalibrationRow, tenant_id).order_by(CalibrationRow.created_at, CalibrationRow.id)
    return list(session.scalars(statement))


def find_of_job(session: Session, tenant_id: str, job_id: str) -> CalibrationRow | None:
    """The one that a job fitted."""
    return session.scalars(of_tenant(CalibrationRow, tenant_id).where(CalibrationRow.job_id == job_id)).one_or_none()


def find_calibration(session: Session, tenant_id: str, calibration_id: str) -> CalibrationRow | None:
    """One of a tenant."""
    statement = of_tenant(CalibrationRow, tenant_id).where(CalibrationRow.id == calibration_id)
    return session.scalars(statement).one_or_none()
