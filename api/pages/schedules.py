"""Schedules: a plan repeated by cron in a time zone."""

from __future__ import annotations

from typing import Annotated, Literal
from zoneinfo import available_timezones

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.orm import Session

from api.auth import JobWriter, Reader
from api.deps import CurrentServices, ReadSession, RequestId, ScheduleId, WriteSession
from api.pages.forms import Faults, Form
from api.pages.paging import CurrentPage
from api.pages.plans import IdText, plan_job, spec_of
from api.pages.render import CheckedForm, PageRoute, page, see_other
from models.errors import AppError
from models.paging import PageRequest
from models.principal import Principal
from models.use_cases import jobs, schedules
from models.use_cases.schedule_notes import source_note
from models.use_cases.schedules import ScheduleChange
from replay.errors import ReplayError
from replay.specs import PlanSpec

router = APIRouter(route_class=PageRoute)

_FIELDS = {name: name for name in ("name", "cron", "zone", "stream", "job")} | {"trace": "job", "trace_id": "job"}


@router.get("/schedules")
def list_schedules(request: Request, session: ReadSession, principal: Reader, where: CurrentPage) -> Response:
    """All schedules, newest first."""
    found = schedules.list_schedules(session, principal, where.request)
    return page(request, "schedules.html", title="Schedules", schedules=found.items, next_href=where.next_href(found))


@router.get("/schedules/new")
def show_form(request: Request, session: ReadSession, principal: Reader, job: IdText = "") -> Response:
    """The schedule form: which finished plan to repeat, and when."""
    form = Form([("job", job), ("cron", "0 6 * * 1"), ("zone", "UTC"), ("source", "trace")])
    return _form_page(request, session, principal, form, Faults())


@router.post("/schedules/new")
def create_schedule(
    request: Request, form: CheckedForm, session: WriteSession, services: CurrentServices, principal: JobWriter
) -> Response:
    """Creates the schedule; a fault shows the form again."""
    faults = Faults()
    by_stream = form.text("source") == "stream"
    for name, sentence in (("job", "choose the plan to repeat"), ("cron", "say when"), ("zone", "name a time zone")):
        if not form.text(name):
            faults.add(name, sentence)
    if by_stream and not form.text("stream"):
        faults.add("stream", "name the stream whose newest trace each run takes")
    if not faults:
        try:
            earlier = plan_job(session, principal, form.text("job"))
            plan = spec_of(earlier).spec
            with session.begin_nested():
                made = schedules.create_schedule(
                    session,
                    principal,
                    services,
                    name=form.text("name") or plan.name,
                    cron=form.text("cron"),
                    zone=form.text("zone"),
                    plan=plan,
                    trace_id=None if by_stream else earlier.trace_id,
                    stream=form.text("stream") if by_stream else None,
                )
            return see_other(f"/schedules/{made.id}")
        except (AppError, ReplayError) as error:
            faults.take(error, _FIELDS)
    return _form_page(request, session, principal, form, faults)


@router.get("/schedules/{schedule_id}")
def show_schedule(
    request: Request,
    session: ReadSession,
    principal: Reader,
    schedule_id: ScheduleId,
    started: Annotated[bool, Query()] = False,
) -> Response:
    """One schedule, when it runs next, and its runs."""
    schedule = schedules.get_schedule(session, principal, schedule_id)
    runs = schedules.list_runs(session, principal, schedule_id, PageRequest(limit=50)).items
    plan = PlanSpec.model_validate({k: v for k, v in schedule.plan.items() if k in PlanSpec.model_fields})
    title = schedule.name or "Schedule"
    note = source_note(session, schedule)
    return page(
        request, "schedule.html", title=title, schedule=schedule, runs=runs, plan=plan, started=started, note=note
    )


@router.post("/schedules/{schedule_id}/{action}")
def act(
    _form: CheckedForm,
    session: WriteSession,
    services: CurrentServices,
    principal: JobWriter,
    request_id: RequestId,
    schedule_id: ScheduleId,
    action: Literal["pause", "resume", "run", "delete"],
) -> Response:
    """Pauses, resumes, runs once now, or deletes."""
    if action == "delete":
        schedules.delete_schedule(session, principal, services, schedule_id)
        return see_other("/schedules")
    if action == "run":
        schedules.run_now(session, principal, services, schedule_id, request_id=request_id)
        return see_other(f"/schedules/{schedule_id}?started=true")
    change = ScheduleChange(status="paused" if action == "pause" else "active")
    schedules.update_schedule(session, principal, services, schedule_id, change)
    return see_other(f"/schedules/{schedule_id}")


def _form_page(request: Request, session: Session, principal: Principal, form: Form, faults: Faults) -> Response:
    recent = jobs.list_jobs(session, principal, PageRequest(limit=100), kind="plan").items
    return page(
        request,
        "schedule_form.html",
        status=422 if faults else 200,
        title="New schedule",
        form=form,
        faults=faults,
        labels={"job": "Plan to repeat", "cron": "When", "zone": "Time zone", "stream": "Stream"},
        jobs=recent,
        zones=sorted(available_timezones()),
    )
