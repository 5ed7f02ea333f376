"""The tenant's own calibrations."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from api.auth import JobWriter, Reader
from api.deps import CurrentServices, Paging, ReadSession, WriteSession
from api.pagination import ListPage, key_page
from api.replies import PostReply, entity
from api.schemas.calibrations import CalibrationOut, CalibrationRequest
from api.schemas.common import problems
from api.strict import StrictRoute
from models.repositories.calibrations import list_calibrations
from models.tables import CalibrationRow
from models.use_cases import calibrations as use_cases
from replay.calibration.user import UserCalibration

router = APIRouter(prefix="/v1", tags=["calibrations"], route_class=StrictRoute)

CalibrationId = Annotated[str, Path(pattern=r"^cal_[0-9a-f]{32}$", description="Id of a calibration")]


@router.post(
    "/calibrations",
    operation_id="create_calibration",
    status_code=201,
    response_model=CalibrationOut,
    responses=problems(400, 413, 415),
    summary="Keep a calibration of your own",
)
def create_calibration(
    principal: JobWriter, reply: PostReply, session: WriteSession, services: CurrentServices, body: CalibrationRequest
) -> Response:
    """From now on it counts for its deployment, before older ones. Results that are there keep theirs."""
    row = use_cases.add_calibration(session, principal, services, body.calibration)
    return reply.send(201, _out(row), location=f"/v1/calibrations/{row.id}")


@router.get("/calibrations", operation_id="list_calibrations", responses=problems(), summary="Calibrations by id")
def get_calibrations(principal: Reader, session: ReadSession, paging: Paging) -> ListPage[CalibrationOut]:
    """The tenant's own."""
    return key_page(paging, list_calibrations(session, principal.tenant_id), lambda row: row.id, _out)


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


def _out(row: CalibrationRow) -> CalibrationOut:
    calibration = UserCalibration.model_validate(row.document)
    return CalibrationOut(id=row.id, created_at=row.created_at, calibration_id=calibration.id, calibration=calibration)
