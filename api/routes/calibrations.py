"""The tenant's own calibrations: measurements are fitted by a job, finished ones are kept as they are."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth import JobWriter, Reader, authenticate
from api.context import ApiContext, context_of
from api.deps import CurrentServices, Paging, ReadSession, WriteSession, request_id_of
from api.errors import MediaTypeError
from api.job_views import job_out, seeing
from api.measurements import form_refusal, start_fit
from api.multipart import FileForm, receive_form
from api.pagination import ListPage, key_page
from api.replies import JSON_TYPE, PostReply, entity
from api.schemas.calibrations import CalibrationOut, CalibrationRequest
from api.schemas.common import problems
from api.schemas.jobs import JobOut
from api.strict import StrictRoute, check_query, parse_json
from models.errors import InvalidError
from models.principal import Principal
from models.use_cases import calibrations as use_cases
from models.use_cases.calibrations import KeptCalibration
from replay.calibration.request import MAX_BYTES, MAX_FILES, MeasuredDeployment
from replay.errors import FieldError
from replay.faults import plain_faults

router = APIRouter(prefix="/v1", tags=["calibrations"], route_class=StrictRoute)


_FORM: dict[str, Any] = {
    "requestBody": {
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["deployment", "measurements"],
                    "properties": {
                        "deployment": {
                            "type": "string",
                            "description": "JSON: model, gpu, tp, engine {preset, overrides}, weight_dtype, kv_dtype "
                            "and max_model_len of the server that was measured, with its settings",
                        },
                        "measurements": {
                            "type": "array",
                            "minItems": 1,
                            "maxItems": MAX_FILES,
                            "items": {"type": "string", "format": "binary"},
                            "description": "Results of vLLM bench serve (--save-detailed), GuideLLM, AIPerf or "
                            "inference-perf; or tables of steps (CSV, JSON, JSON lines, Parquet)",
                        },
                        "name": {"type": "string", "maxLength": 200},
                    },
                },
            }
        }
    }
}
CalibrationId = Annotated[str, Path(pattern=r"^cal_[0-9a-f]{32}$", description="Id of a calibration")]


class _FormOrJson(StrictRoute):
    """Takes a form with measurements beside the JSON of the route itself."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        read_json = super().get_route_handler()

        async def handle(request: Request) -> Response:
            kind = request.headers.get("content-type", "application/json").lower()
            if kind.startswith("multipart/form-data"):
                return await _fit(request)
            if "json" not in kind:
                detail = "send measurements as multipart/form-data, or a finished calibration as application/json"
                raise MediaTypeError(detail)
            return await read_json(request)

        return handle


async def _fit(request: Request) -> Response:
    context, principal = context_of(request), await run_in_threadpool(authenticate, request)
    principal.require("jobs:write")
    check_query(request, frozenset())
    async with receive_form(request, context, principal, limit=MAX_BYTES) as form:
        job = await run_in_threadpool(_start, context, principal, form, request_id_of(request))
    headers = {"Location": f"/v1/jobs/{job.id}"} | ({"Retry-After": "1"} if job.retry_after_s else {})
    return Response(job.model_dump_json(), status_code=202, media_type=JSON_TYPE, headers=headers)


def _start(context: ApiContext, principal: Principal, form: FileForm, request_id: str) -> JobOut:
    fields = dict(form.texts)
    for name in fields.keys() - {"deployment", "name"}:
        raise form_refusal(name, f"there is no field {name}", "this form takes deployment, name and measurements")
    deployment = _deployment(fields.get("deployment", ""))
    with context.services.database.write() as session:
        started = start_fit(
            session,
            principal,
            context.services,
            deployment,
            form.files,
            name=fields.get("name", ""),
            request_id=request_id,
        )
        return job_out(session, principal, started.job.id)


def _deployment(text: str) -> MeasuredDeployment:
    if not text:
        detail, cure = "the deployment is missing", 'say what was measured: {"model": ..., "gpu": ..., "tp": ...}'
        raise form_refusal("deployment", detail, cure)
    try:
        document = parse_json(text.encode())
    except InvalidError as error:
        said = error.detail.replace("the body", "the deployment", 1)
        cure = 'give JSON: {"model": ..., "gpu": ..., "tp": ...}'
        raise InvalidError(said, code=error.code, errors=[FieldError(said, "deployment", cure=cure)]) from None
    try:
        return MeasuredDeployment.model_validate(document)
    except ValidationError as error:
        faults = [replace(one, field=f"deployment.{one.field}") for one in plain_faults(error.errors())]
        raise InvalidError(f"{faults[0].field}: {faults[0].detail}", code="validation", errors=faults) from None


_measured = APIRouter(route_class=_FormOrJson)


@_measured.post(
    "/calibrations",
    operation_id="create_calibration",
    status_code=201,
    response_model=CalibrationOut,
    responses={
        202: {"model": JobOut, "description": "The job that fits the measurements; see Location"},
        **problems(400, 413, 415, 503),
    },
    openapi_extra=_FORM,
    summary="Fit a calibration to measurements, or keep a finished one",
)
def create_calibration(
    principal: JobWriter, reply: PostReply, session: WriteSession, services: CurrentServices, body: CalibrationRequest
) -> Response:
    """A form with measurements starts a job, the same one for equal forms; JSON is kept at once. From then on it counts
    for its deployment, before older ones. Results that are there keep theirs."""
    row = use_cases.add_calibration(session, principal, services, body.calibration)
    found = use_cases.get_calibration(session, seeing(principal), row.id)
    return reply.send(201, _out(found), location=f"/v1/calibrations/{row.id}")


router.include_router(_measured)


@router.get("/calibrations", operation_id="list_calibrations", responses=problems(), summary="Calibrations by id")
def get_calibrations(principal: Reader, session: ReadSession, paging: Paging) -> ListPage[CalibrationOut]:
    """The tenant's own."""
    return key_page(paging, use_cases.list_calibrations(session, principal), lambda one: one.row.id, _out)


@router.get(
    "/calibrations/{calibration_id}",
    operation_id="get_calibration",
    response_model=CalibrationOut,
    responses=problems(404),
    summary="One calibration",
)
def get_calibration(
    request: Request, principal: Reader, session: ReadSession, calibration_id: CalibrationId
) -> Response:
    """With parameters, cross-validated errors and residuals."""
    return entity(request, _out(use_cases.get_calibration(session, principal, calibration_id)))


@router.delete(
    "/calibrations/{calibration_id}",
    operation_id="delete_calibration",
    status_code=204,
    responses=problems(404),
    summary="Remove a calibration",
)
def delete_calibration(
    principal: JobWriter,
    session: WriteSession,
    services: CurrentServices,
    calibration_id: CalibrationId,
) -> None:
    """The one before it counts again; results that used it keep it."""
    use_cases.delete_calibration(session, principal, services, calibration_id)


def _out(found: KeptCalibration) -> CalibrationOut:
    return CalibrationOut(
        id=found.row.id,
        created_at=found.row.created_at,
        calibration_id=found.calibration.id,
        version=found.row.version,
        counts=found.counts,
        job_id=found.row.job_id,
        calibration=found.calibration,
    )
