"""Schedules and their runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import String, cast, func, or_, select
from sqlalchemy.orm import Session

from models.dialect import insert_or_ignore
from models.paging import Page, PageRequest
from models.repositories.scope import get_row, has_row, of_tenant, page_of
from models.tables import Schedule, ScheduleRun


def get_schedule(session: Session, tenant_id: str, schedule_id: str, *, lock: bool = False) -> Schedule:
    """One schedule. Raises NotFoundError."""
    return get_row(session, Schedule, tenant_id, schedule_id, lock=lock)


def has_schedule(session: Session, tenant_id: str, schedule_id: str | None) -> bool:
    """Whether the schedule is (still) there."""
    return has_row(session, Schedule, tenant_id, schedule_id)


def list_schedules(session: Session, tenant_id: str, page: PageRequest) -> Page[Schedule]:
    """Schedules, newest first."""
    return page_of(session, of_tenant(Schedule, tenant_id), Schedule, page)


def count(session: Session, tenant_id: str) -> int:
    """The tenant's schedules."""
    return session.scalars(select(func.count()).select_from(Schedule).where(Schedule.tenant_id == tenant_id)).one()


def count_using_trace(session: Session, tenant_id: str, trace_id: str) -> int:
    """Schedules that repeat their plan on this trace, or mix it in."""
    uses = or_(Schedule.trace_id == trace_id, cast(Schedule.plan, String).contains(f'"{trace_id}"'))
    statement = select(func.count()).select_from(Schedule)
    return session.scalars(statement.where(Schedule.tenant_id == tenant_id, uses)).one()


def list_due_of_all_tenants(session: Session, now: datetime, limit: int = 100) -> list[str]:
    """Ids of active schedules whose time has come; for the tick."""
    statement = select(Schedule.id).where(Schedule.status == "active", Schedule.next_run_at <= now)
    return list(session.scalars(statement.order_by(Schedule.next_run_at).limit(limit)))


def find_due_locked(session: Session, schedule_id: str, now: datetime) -> Schedule | None:
    """A due schedule, locked; ``None`` where another tick has taken it."""
    statement = select(Schedule).where(
        Schedule.id == schedule_id, Schedule.status == "active", Schedule.next_run_at <= now
    )
    return session.scalars(statement.with_for_update().execution_options(populate_existing=True)).one_or_none()


def first_runs(session: Session, tenant_id: str, schedule_id: str, job_ids: list[str]) -> dict[str, datetime]:
    """When a schedule's first run that has this job was made, by job."""
    statement = select(ScheduleRun.job_id, func.min(ScheduleRun.created_at)).where(
        ScheduleRun.tenant_id == tenant_id, ScheduleRun.schedule_id == schedule_id, ScheduleRun.job_id.in_(job_ids)
    )
    return {job_id: at for job_id, at in session.execute(statement.group_by(ScheduleRun.job_id)) if job_id is not None}


def insert_run(session: Session, values: dict[str, Any]) -> bool:
    """Inserts an occurrence; False where it is there already."""
    return insert_or_ignore(session, ScheduleRun, values)


def get_run(session: Session, tenant_id: str, run_id: str) -> ScheduleRun:
    """One occurrence. Raises NotFoundError."""
    return get_row(session, ScheduleRun, tenant_id, run_id)


def list_runs(session: Session, tenant_id: str, schedule_id: str, page: PageRequest) -> Page[ScheduleRun]:
    """Occurrences, newest first."""
    statement = of_tenant(ScheduleRun, tenant_id).where(ScheduleRun.schedule_id == schedule_id)
    return page_of(session, statement, ScheduleRun, page)
