"""Calibrations: the list with its form for measurements, a pasted start-up log, and one calibration with residuals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import ValidationError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from api.auth import JobWriter, Reader
from api.context import context_of
from api.deps import CurrentServices, ReadSession, WriteSession, request_id_of
from api.measurements import start_fit
from api.multipart import FileForm, receive_form
from api.pages import calibration_view
from api.pages.forms import Faults, Form, named_lines, named_values, number
from api.pages.render import CheckedForm, PageRoute, check_token, page, see_other
from models.errors import AppError
from models.paging import PageRequest
from models.principal import Principal
from models.use_cases import calibrations, catalogue, reports
from models.use_cases.start_up_logs import read_log
from replay.calibration.request import MAX_BYTES, MeasuredDeployment
from replay.engines import PRESETS
from replay.errors import ReplayError
from replay.hardware.start_up_log import StartUpLog

router = APIRouter(route_class=PageRoute)

CalibrationId = Annotated[str, Path(pattern=r"^cal_[0-9a-f]{32}$")]
LABELS = {"gpu": "GPU type", "tp": "Tensor parallelism", "knobs": "Engine settings", "log": "Start-up log"}
_SHOWN = PageRequest(limit=20)
"""Reports on a calibration's page."""
_DEFAULTS = (("engine", "vllm-0.33"), ("tp", "1"))
_FIELDS = {
    "model": "model",
    "gpu": "gpu",
    "tp": "tp",
    "preset": "engine",
    "overrides": "knobs",
    "weight_dtype": "weight_dtype",
    "kv_dtype": "kv_dtype",
    "max_model_len": "max_model_len",
    "measurements": "measurements",
    "name": "name",
}


@router.get("/calibrations")
def list_calibrations(request: Request, session: ReadSession, principal: Reader) -> Response:
    """The tenant's own, newest first, and the forms."""
    return _page(request, session, principal, Form(_DEFAULTS), Faults())


@router.post("/calibrations")
async def fit(request: Request, principal: JobWriter) -> Response:
    """Takes files of measurements and starts the job that fits them."""
    async with receive_form(request, context_of(request), principal, limit=MAX_BYTES) as received:
        return await run_in_threadpool(_fit, request, principal, received)


@router.post("/calibrations/log")
def show_log(request: Request, session: ReadSession, principal: Reader, form: CheckedForm) -> Response:
    """What a pasted start-up log says, with the form filled in from it."""
    faults = Faults()
    try:
        log = read_log(session, principal, form.text("log"))
    except ReplayError as error:
        faults.take(error, {"log": "log"})
        return _page(request, session, principal, Form([*_DEFAULTS, ("log", form.text("log"))]), faults)
    return _page(request, session, principal, _filled(log.deployment()), faults, log)


@router.get("/calibrations/{calibration_id}")
def show_calibration(
    request: Request, session: ReadSession, principal: Reader, calibration_id: CalibrationId
) -> Response:
    """One calibration: what it stands on, how far it is off, and what uses it."""
    kept = calibrations.get_calibration(session, principal, calibration_id)
    title = f"{kept.calibration.deployment.model} on {kept.calibration.deployment.gpu}"
    resting = reports.list_reports(session, principal, _SHOWN, calibration_id=calibration_id)
    return page(
        request,
        "calibration.html",
        title=title,
        resting=resting.items,
        has_older=resting.next is not None,
        asked=reports.jobs_of_reports(session, principal, resting.items),
        **calibration_view.context(kept),
    )


@router.post("/calibrations/{calibration_id}/delete")
def delete_calibration(
    _form: CheckedForm,
    session: WriteSession,
    services: CurrentServices,
    principal: JobWriter,
    calibration_id: CalibrationId,
) -> Response:
    """Deletes one; results that used it keep it."""
    calibrations.delete_calibration(session, principal, services, calibration_id)
    return see_other("/calibrations")


def _fit(request: Request, principal: Principal, received: FileForm) -> Response:
    form, faults, services = Form(received.texts), Faults(), context_of(request).services
    check_token(request, form)
    deployment = _deployment(form, faults)
    if not received.files:
        faults.add("measurements", "choose at least one file")
    if deployment is not None and not faults:
        try:
            with services.database.write() as session:
                job = start_fit(
                    session,
                    principal,
                    services,
                    deployment,
                    received.files,
                    name=form.text("name"),
                    request_id=request_id_of(request),
                ).job
            return see_other(f"/jobs/{job.id}")
        except (AppError, ReplayError) as error:
            faults.take(error, _FIELDS)
    if received.files:
        faults.add("measurements", "choose the files again")
    with services.database.read() as session:
        return _page(request, session, principal, form, faults)


def _deployment(form: Form, faults: Faults) -> MeasuredDeployment | None:
    for name, sentence in (("model", "name the model that was measured"), ("gpu", "choose the GPU type")):
        if not form.text(name):
            faults.add(name, sentence)
    body: dict[str, Any] = {
        "model": form.text("model"),
        "gpu": form.text("gpu"),
        "tp": number(form, "tp", faults, whole=True) or 1,
        "engine": {"preset": form.text("engine"), "overrides": named_values(form, "knobs", faults)},
        "weight_dtype": form.optional("weight_dtype"),
        "kv_dtype": form.optional("kv_dtype"),
        "max_model_len": number(form, "max_model_len", faults, whole=True),
    }
    if faults:
        return None
    try:
        return MeasuredDeployment.model_validate(body)
    except ValidationError as error:
        faults.take(error, _FIELDS)
        return None


def _filled(deployment: Mapping[str, Any]) -> Form:
    engine = deployment["engine"]
    texts = {name: str(value) for name, value in deployment.items() if name != "engine"}
    pairs = [*_DEFAULTS, *texts.items(), ("engine", engine["preset"]), ("knobs", named_lines(engine["overrides"]))]
    return Form(pairs)


def _page(
    request: Request,
    session: Session,
    principal: Principal,
    form: Form,
    faults: Faults,
    log: StartUpLog | None = None,
) -> Response:
    known = catalogue.catalogue_for(session, principal)
    return page(
        request,
        "calibrations.html",
        status=422 if faults else 200,
        title="Calibrations",
        items=[
            (kept, calibration_view.headline(kept.calibration))
            for kept in reversed(calibrations.list_calibrations(session, principal))
        ],
        form=form,
        faults=faults,
        labels=LABELS,
        log=log,
        log_table=None if log is None else calibration_view.log_table(log),
        gpus=sorted(known.gpus),
        models=sorted(known.models, key=str.lower),
        presets=PRESETS,
    )
