"""New plan: the form, and what starts from it."""

from __future__ import annotations

from typing import Annotated, get_args

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.orm import Session

from api.auth import JobWriter, Reader
from api.deps import CurrentServices, ReadSession, RequestId, WriteSession
from api.pages import plan_form
from api.pages.forms import Faults, Form
from api.pages.render import CheckedForm, PageRoute, page, see_other
from models.errors import AppError, InvalidError, NotFoundError
from models.paging import PageRequest
from models.principal import Principal
from models.tables import Job
from models.use_cases import calibrations, catalogue, jobs, plans, traces
from replay.engines import PRESETS
from replay.errors import ReplayError
from replay.planning.resolve import ResolvedPlan
from replay.specs import Router

router = APIRouter(route_class=PageRoute)

_CALIBRATIONS_SHOWN = 100
IdText = Annotated[str, Query(max_length=60, pattern=r"^[a-z0-9_]*$")]


@router.get("/plans/new")
def show_form(
    request: Request, session: ReadSession, principal: Reader, trace_id: IdText = "", job: IdText = ""
) -> Response:
    """The plan form for a trace (``?trace_id=``), empty or filled from an earlier plan (``?job=``)."""
    form, faults = plan_form.defaults(), Faults()
    if job:
        earlier = plan_job(session, principal, job)
        form, trace_id = plan_form.from_spec(spec_of(earlier).spec), trace_id or earlier.trace_id or ""
    elif trace_id and not traces.has_trace(session, principal, trace_id):
        faults.add("trace", f"there is no trace {trace_id}: choose one of these")
    return _page(request, session, principal, form, faults, trace_id)


@router.post("/plans/new")
def start_plan(
    request: Request,
    form: CheckedForm,
    session: WriteSession,
    services: CurrentServices,
    principal: JobWriter,
    request_id: RequestId,
) -> Response:
    """Starts the plan and goes to its job; a fault shows the form again with its place and cure."""
    faults, trace_id = Faults(), form.text("trace")
    if not trace_id:
        faults.add("trace", "choose a trace; upload one on the first page if there is none")
    spec = plan_form.to_spec(form, faults)
    if spec is not None and not faults:
        try:
            with session.begin_nested():
                started = plans.start_plan(session, principal, services, trace_id, spec, request_id=request_id)
            return see_other(f"/jobs/{started.job.id}")
        except (AppError, ReplayError) as error:
            faults.take(error, plan_form.FIELDS)
    return _page(request, session, principal, form, faults, trace_id)


def _page(
    request: Request, session: Session, principal: Principal, form: Form, faults: Faults, trace_id: str
) -> Response:
    known = catalogue.catalogue_for(session, principal)
    recent = traces.list_traces(session, principal, PageRequest(limit=100)).items
    ready = [one for one in recent if one.status == "ready"]
    if trace_id not in {one.id for one in ready} and traces.has_trace(session, principal, trace_id):
        ready.append(traces.get_trace(session, principal, trace_id))  # older, or not ready: the choice stays to be seen
    return page(
        request,
        "plan_form.html",
        status=422 if faults else 200,
        title="New plan",
        form=form,
        faults=faults,
        labels=LABELS,
        traces=ready,
        trace_id=trace_id,
        gpus=sorted(known.gpus.values(), key=lambda gpu: (gpu.vendor != "NVIDIA", gpu.vendor, gpu.key)),
        models=sorted(known.models.values(), key=lambda model: model.key.lower()),
        providers=sorted({price.provider for price in known.prices}),
        terms=sorted({price.term for price in known.prices}),
        presets=PRESETS,
        calibrations=_calibrations(session, principal),
        routers=get_args(Router),
        metrics=plan_form.METRICS,
        statistics=plan_form.STATISTICS,
        rows=plan_form.rows_shown(form),
        tps=plan_form.tps_shown(form),
    )


def _calibrations(session: Session, principal: Principal) -> dict[str, str]:
    """What a plan's step times may rest on, in words: the newest of the tenant's own first."""
    words = {"auto": "My newest calibration of each deployment, else as shipped", "shipped": "As shipped"}
    for row in calibrations.newest_calibrations(session, principal, _CALIBRATIONS_SHOWN):
        own = row.document["deployment"]
        words[row.id] = f"Only {own['model']} on {own['tp']} x {own['gpu']}, version {row.version}"
    return words


LABELS = {
    "trace": "Trace",
    "model": "Model",
    "gpus": "GPU types",
    "tp": "Tensor parallelism",
    "slo": "Objectives",
    "growth": "Growth",
    "knobs": "Engine knobs",
    "calibration": "Step times",
    "own_prices": "Your own prices",
}
"""Names of form fields in the list of faults; others are shown by their own name."""


def plan_job(session: Session, principal: Principal, job_id: str) -> Job:
    """A plan's job.

    Raises:
        NotFoundError: for an id that is none.
    """
    job = jobs.get_job(session, principal, job_id).job
    if job.kind != "plan":
        raise NotFoundError("this job is no plan")
    return job


def spec_of(job: Job) -> ResolvedPlan:
    """The plan that a job was asked for.

    Raises:
        InvalidError: where the job was stored by a version that this one cannot read.
    """
    try:
        stored = job.spec.get("plan", job.spec)
        return ResolvedPlan.model_validate(stored)
    except ValueError as error:
        raise InvalidError("this plan was made by another version and cannot be repeated; make a new one") from error
