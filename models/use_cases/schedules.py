"""Schedules: a plan repeated by cron in a time zone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Literal

import structlog
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session

from models import cron as cron_text
from models.errors import AppError, ConflictError, InvalidError, LimitError, VersionError
from models.ids import new_id
from models.paging import Page, PageRequest
from models.principal import Principal, local_principal
from models.repositories import jobs as job_rows
from models.repositories import reports as report_rows
from models.repositories import schedules as schedule_rows
from models.repositories import traces as trace_rows
from models.services import Services
from models.tables import Job, Schedule, ScheduleRun, Trace
from models.use_cases import audit
from models.use_cases.plans import resolved, start_plan
from models.use_cases.schedule_notes import run_notes
from models.use_cases.traces import get_ready_trace
from replay.errors import FieldError, ReplayError
from replay.specs import PlanSpec

log = structlog.get_logger(__name__)


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
    """An occurrence, the job it started or found (``None``: ``run.error_code`` says why), its report once there is
    one, and a note where its data is older than one might think."""

    run: ScheduleRun
    job: Job | None
    report_id: str | None = None
    note: str | None = None


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
    """Repeats ``plan`` on either ``trace_id`` or ``stream``.

    Raises InvalidError, NotFoundError, ConflictError (a trace that could not be read), LimitError, SpecError,
    TraceError.
    """
    principal.require("jobs:write")
    now = services.clock()
    _check_source(session, principal, trace_id, stream)
    _check_plan(session, principal, services, plan, trace_id, stream)
    _check_name(name)
    limit = services.settings.max_schedules
    if schedule_rows.count(session, principal.tenant_id) >= limit:
        raise LimitError(
            f"there are {limit} schedules already: delete one first", code="limit.schedules", retry_after_s=3600
        )
    schedule = Schedule(
        id=new_id("sch"),
        tenant_id=principal.tenant_id,
        name=name,
        cron=cron,
        zone=zone,
        plan=plan.model_dump(mode="json"),
        trace_id=trace_id,
        stream=stream,
        status="active",
        next_run_at=cron_text.next_occurrence(cron, zone, now),
        created_at=now,
        updated_at=now,
    )
    session.add(schedule)
    audit.note(session, principal, services, "schedule.create", schedule.id, cron=cron, zone=zone)
    session.flush()
    return schedule


def list_schedules(session: Session, principal: Principal, page: PageRequest) -> Page[Schedule]:
    """The tenant's schedules, newest first."""
    principal.require("reports:read")
    return schedule_rows.list_schedules(session, principal.tenant_id, page)


def get_schedule(session: Session, principal: Principal, schedule_id: str) -> Schedule:
    """One schedule. Raises NotFoundError."""
    principal.require("reports:read")
    return schedule_rows.get_schedule(session, principal.tenant_id, schedule_id)


def has_schedule(session: Session, principal: Principal, schedule_id: str | None) -> bool:
    """Whether the schedule is there: jobs outlive the one that started them."""
    principal.require("reports:read")
    return schedule_rows.has_schedule(session, principal.tenant_id, schedule_id)


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
    principal.require("jobs:write")
    schedule = schedule_rows.get_schedule(session, principal.tenant_id, schedule_id, lock=True)
    if version is not None and version != schedule.version:
        raise VersionError("the schedule was changed since you read it: read it again")
    now = services.clock()
    if change.name is not None:
        _check_name(change.name)
        schedule.name = change.name
    if change.trace_id is not None or change.stream is not None:
        _check_source(session, principal, change.trace_id, change.stream)
        schedule.trace_id, schedule.stream = change.trace_id, change.stream
    if change.plan is not None or change.trace_id is not None or change.stream is not None:
        plan = change.plan or PlanSpec.model_validate(schedule.plan)
        _check_plan(session, principal, services, plan, schedule.trace_id, schedule.stream)
        schedule.plan = plan.model_dump(mode="json")
    retimed = (change.cron or schedule.cron, change.zone or schedule.zone) != (schedule.cron, schedule.zone)
    schedule.cron, schedule.zone = change.cron or schedule.cron, change.zone or schedule.zone
    resumed = change.status == "active" and schedule.status == "paused"
    schedule.status = change.status or schedule.status
    if schedule.status == "paused":
        cron_text.next_occurrence(schedule.cron, schedule.zone, now)  # a bad text is refused now, not at the resumption
        schedule.next_run_at = None
    elif retimed or resumed:
        schedule.next_run_at = cron_text.next_occurrence(schedule.cron, schedule.zone, now)
    schedule.updated_at = now
    schedule.version += 1
    audit.note(session, principal, services, "schedule.update", schedule.id, status=schedule.status)
    session.flush()
    return schedule


def delete_schedule(session: Session, principal: Principal, services: Services, schedule_id: str) -> None:
    """Deletes it with its runs; jobs and reports stay. Raises NotFoundError."""
    principal.require("jobs:write")
    schedule = schedule_rows.get_schedule(session, principal.tenant_id, schedule_id, lock=True)
    session.delete(schedule)
    audit.note(session, principal, services, "schedule.delete", schedule_id)
    session.flush()


def run_now(
    session: Session, principal: Principal, services: Services, schedule_id: str, *, request_id: str | None = None
) -> RunDetail:
    """Starts one run now, beside the timetable; works while paused.

    Raises NotFoundError, ConflictError (no trace ready), LimitError, SpecError.
    """
    principal.require("jobs:write")
    schedule = schedule_rows.get_schedule(session, principal.tenant_id, schedule_id, lock=True)
    job = _start(session, principal, services, schedule, request_id)
    now = services.clock()
    run_id = _insert_run(session, schedule, now, now, "manual", job_id=job.id)
    if run_id is None:
        raise ConflictError("a run was started at this very instant: try again", retry_after_s=1)
    audit.note(session, principal, services, "schedule.run_now", schedule.id, job_id=job.id)
    session.flush()
    return RunDetail(schedule_rows.get_run(session, principal.tenant_id, run_id), job)


def list_runs(session: Session, principal: Principal, schedule_id: str, page: PageRequest) -> Page[RunDetail]:
    """Occurrences, newest first, each with its job, report and note. Raises NotFoundError."""
    principal.require("reports:read")
    schedule = schedule_rows.get_schedule(session, principal.tenant_id, schedule_id)
    runs = schedule_rows.list_runs(session, principal.tenant_id, schedule.id, page)
    jobs = job_rows.list_by_ids(session, principal.tenant_id, [run.job_id for run in runs.items if run.job_id])
    reports = report_rows.ids_of_jobs(session, principal.tenant_id, list(jobs))
    notes = run_notes(session, schedule, runs.items, jobs)
    details = [
        RunDetail(run, jobs.get(run.job_id or ""), reports.get(run.job_id or ""), notes.get(run.id))
        for run in runs.items
    ]
    return Page(details, runs.next)


def run_due(services: Services) -> int:
    """The tick: starts one run for each schedule whose time has come; how many. Harmless from several beats at once.

    Each schedule has its own transaction: one that cannot start leaves a run with the reason, and holds up no other.
    """
    now = services.clock()
    with services.database.read() as session:
        due = schedule_rows.list_due_of_all_tenants(session, now)
    started = 0
    for schedule_id in due:
        try:
            started += _run_one_due(services, schedule_id, now)
        except Exception:
            log.exception("schedule.tick_failed", schedule_id=schedule_id)
    return started


def _run_one_due(services: Services, schedule_id: str, now: datetime) -> bool:
    with services.database.write() as session:
        schedule = schedule_rows.find_due_locked(session, schedule_id, now)
        if schedule is None or schedule.next_run_at is None:
            return False
        scheduled_for, missed, outcome = schedule.next_run_at, 0, {}
        try:
            scheduled_for, missed = _latest_due(schedule.cron, schedule.zone, schedule.next_run_at, now)
            schedule.next_run_at = cron_text.next_occurrence(schedule.cron, schedule.zone, now)
        except InvalidError as error:  # readable when it was made, but not by this release or its time zones
            schedule.status, schedule.next_run_at = "paused", None
            outcome = {"error_code": error.code, "error_detail": error.detail}
        outcome = outcome or _start_or_say_why(session, services, schedule)
        run_id = _insert_run(session, schedule, scheduled_for, now, "cron", missed=missed, **outcome)
        log.info("schedule.run", schedule_id=schedule.id, run_id=run_id, missed=missed, **outcome)
        return run_id is not None


MAX_MISSED = 10_000
"""Enough for a week of minutes; older ones are folded uncounted."""


def _latest_due(cron: str, zone: str, first: datetime, now: datetime) -> tuple[datetime, int]:
    """The newest occurrence from ``first`` to ``now``, and how many before it were missed (at most MAX_MISSED)."""

    def due_after(instant: datetime) -> Iterator[datetime]:
        return takewhile(lambda one: one <= now, cron_text.occurrences(cron, zone, instant))

    counted = list(islice(due_after(first), MAX_MISSED))
    if len(counted) == MAX_MISSED:  # look back from now instead, since counting on could take minutes
        windows = (max(first, now - timedelta(days=days)) for days in (1, 30, 1000))
        recent = next(filter(None, (deque(due_after(start), maxlen=1) for start in windows)), None)
        return (recent or counted)[-1], MAX_MISSED
    return (counted or [first])[-1], len(counted)


def _start_or_say_why(session: Session, services: Services, schedule: Schedule) -> dict[str, str]:
    """Of a run's row: the job, or why there is none."""
    try:
        with session.begin_nested():
            return {"job_id": _start(session, local_principal(schedule.tenant_id), services, schedule, None).id}
    except (AppError, ReplayError) as error:
        return {"error_code": error.code, "error_detail": error.detail}
    except (OperationalError, InterfaceError):
        raise  # the database is away: the next tick tries again
    except Exception:  # a plan stored by another release, or a fault of ours
        log.exception("schedule.internal_error", schedule_id=schedule.id)
        detail = (
            f"this plan could not be started; the log tells more under {schedule.id}. Change the plan, or try later"
        )
        return {"error_code": "internal", "error_detail": detail}


def _insert_run(
    session: Session, schedule: Schedule, scheduled_for: datetime, now: datetime, trigger: str, **values: Any
) -> str | None:
    """The new run's id; ``None`` where this occurrence has one already."""
    run_id = new_id("run")
    row = {
        "id": run_id,
        "tenant_id": schedule.tenant_id,
        "schedule_id": schedule.id,
        "scheduled_for": scheduled_for,
        "trigger": trigger,
        "created_at": now,
        "missed": 0,
        **values,
    }
    return run_id if schedule_rows.insert_run(session, row) else None


def _start(
    session: Session, principal: Principal, services: Services, schedule: Schedule, request_id: str | None
) -> Job:
    trace = _trace_of(session, principal, schedule)
    plan = PlanSpec.model_validate(schedule.plan)
    return start_plan(session, principal, services, trace.id, plan, schedule_id=schedule.id, request_id=request_id).job


def _trace_of(session: Session, principal: Principal, schedule: Schedule) -> Trace:
    if schedule.trace_id is not None:
        return trace_rows.get_trace(session, principal.tenant_id, schedule.trace_id)
    trace = trace_rows.find_newest_ready(session, principal.tenant_id, schedule.stream or "")
    if trace is None:
        detail = f"the stream {schedule.stream!r} has no ready trace yet"
        cure = "upload a trace with this label as its stream, or wait until its ingest has ended"
        raise ConflictError(detail, code="schedule.no_trace", errors=[FieldError(detail, field="stream", cure=cure)])
    return trace


def _check_source(session: Session, principal: Principal, trace_id: str | None, stream: str | None) -> None:
    if (trace_id is None) == (stream is None):
        raise InvalidError("give either trace_id or stream", code="schedule.source")
    if trace_id is not None:
        trace_rows.get_trace(session, principal.tenant_id, trace_id)
    if stream is not None and (not 0 < len(stream) <= 100 or not stream.isprintable()):
        raise InvalidError("the stream must be 1 to 100 printable characters", code="schedule.stream")


def _check_plan(
    session: Session, principal: Principal, services: Services, plan: PlanSpec, trace_id: str | None, stream: str | None
) -> None:
    """A plan that could never run is refused when the schedule is made, not at four in the morning. What it asks of the
    trace is checked against the one that it would run on now, where that is ready; later ones may lack it, and their
    run then says so."""
    if trace_id is None:
        trace = trace_rows.find_newest_ready(session, principal.tenant_id, stream or "")
    elif trace_rows.get_trace(session, principal.tenant_id, trace_id).status == "ingesting":
        trace = None
    else:
        trace = get_ready_trace(session, principal, trace_id)
    resolved(session, principal, services, trace, plan)


def _check_name(name: str) -> None:
    if not 0 < len(name) <= 200 or not name.isprintable():
        raise InvalidError("a schedule's name has 1 to 200 printable characters", code="schedule.name")
