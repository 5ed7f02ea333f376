"""Schedules and their occurrences."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from models.tables.base import ID_LENGTH, Base


class Schedule(Base):
    """A plan repeated by cron in a time zone, on a fixed trace or on a stream's newest."""

    __tablename__ = "schedules"

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(ID_LENGTH), ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(200))
    cron: Mapped[str] = mapped_column(String(200))
    zone: Mapped[str] = mapped_column(String(100))
    """IANA name, e.g. ``Europe/Berlin``."""
    plan: Mapped[dict[str, Any]]
    """``PlanSpec`` as JSON; resolved with the catalogue of the day at each run."""
    trace_id: Mapped[str | None] = mapped_column(String(ID_LENGTH), ForeignKey("traces.id"), index=True)
    stream: Mapped[str | None] = mapped_column(String(100))
    status: Mapped[str] = mapped_column(String(20))
    next_run_at: Mapped[datetime | None]
    """Null while paused, and when the cron text has no further date."""
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    version: Mapped[int] = mapped_column(default=1)

    __table_args__ = (
        CheckConstraint("status IN ('active', 'paused')", name="status"),
        CheckConstraint("(trace_id IS NULL) <> (stream IS NULL)", name="source"),
        Index(None, "tenant_id", "created_at", "id"),
        Index(None, "status", "next_run_at"),
    )


class ScheduleRun(Base):
    """One occurrence. Unique by schedule and time, so that two beats start it once."""

    __tablename__ = "schedule_runs"

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(ID_LENGTH), ForeignKey("tenants.id"))
    schedule_id: Mapped[str] = mapped_column(String(ID_LENGTH), ForeignKey("schedules.id", ondelete="CASCADE"))
    scheduled_for: Mapped[datetime]
    trigger: Mapped[str] = mapped_column(String(20))
    """``cron`` or ``manual``."""
    missed: Mapped[int] = mapped_column(default=0)
    """Earlier occurrences that were missed and are folded into this one."""
    job_id: Mapped[str | None] = mapped_column(String(ID_LENGTH), ForeignKey("jobs.id"))
    """Null when no job could be started; the error says why."""
    error_code: Mapped[str | None] = mapped_column(String(100))
    error_detail: Mapped[str | None] = mapped_column(Text())
    created_at: Mapped[datetime]

    __table_args__ = (
        CheckConstraint("trigger IN ('cron', 'manual')", name="trigger"),
        UniqueConstraint("schedule_id", "scheduled_for"),
        Index(None, "tenant_id", "schedule_id", "created_at", "id"),
    )
