"""Schedules: a plan repeated by cron in a time zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy.orm import Session

from models.paging import Page, PageRequest
from models.principal import Principal
from models.services import Services
from models.tables import Job, Schedule, ScheduleRun
from replay.specs import PlanSpec


@dataclass(frozen=True)
class ScheduleChange:
    """What to change; ``None`` leaves a field as it is. A trace replaces a stream and the other way round."""

    name: str | None = None
    cron: str | None = None
    zone: str | None = None
    plan: PlanSpec | None = None
    trace_id: str | None = None
    stream: str | None = None
    status: Literal["active", "paused"] | None = None


@dataclass(frozen=True)
class RunDetail:
    """An occurrence and the job it started or found (``None``: ``run.error_code`` says why)."""

    run: ScheduleRun
    job: Job | None


def create_schedule(
    session: Session,
    principal: Principal,
    services: Services,
    *,
    name: str,
    cron: str,
    zone: str,
    plan: PlanSpec,
    trace_id: str | None = None,
    stream: str | None = None,
) -> Schedule:
    """Exactly one of ``trace_id`` and ``stream``. Raises InvalidError (cron, zone, source), NotFoundError, SpecError."""
    raise NotImplementedError


def list_schedules(session: Session, principal: Principal, page: PageRequest) -> Page[Schedule]:
    """The tenant's schedules, newest first."""
    raise NotImplementedError


def get_schedule(session: Session, principal: Principal, schedule_id: str) -> Schedule:
    """One schedule. Raises NotFoundError."""
    raise NotImplementedError


def update_schedule(
    session: Session,
    principal: Principal,
    services: Services,
    schedule_id: str,
    change: ScheduleChange,
    *,
    version: int | None = None,
) -> Schedule:
    """Changes it, pauses it or resumes it (``status``). Runs missed while paused are not caught up.

    Raises NotFoundError; VersionError where ``version`` is not the current one; InvalidError.
    """
    raise NotImplementedError


def delete_schedule(session: Session, principal: Principal, services: Services, schedule_id: str) -> None:
    """Deletes it with its runs; jobs and reports stay. Raises NotFoundError."""
    raise NotImplementedError


def run_now(
    session: Session, principal: Principal, services: Services, schedule_id: str, *, request_id: str | None = None
) -> RunDetail:
    """Starts one run now, beside the timetable; works while paused.

    Raises NotFoundError, ConflictError (no trace ready), LimitError, SpecError.
    """
    raise NotImplementedError


def list_runs(session: Session, principal: Principal, schedule_id: str, page: PageRequest) -> Page[RunDetail]:
    """Occurrences, newest first, each with its job. Raises NotFoundError."""
    raise NotImplementedError


def next_runs(cron: str, zone: str, after: datetime, count: int = 5) -> list[datetime]:
    """The next instants (UTC) of a cron text in a zone, for a preview. Raises InvalidError."""
    raise NotImplementedError
