"""A tenant's own calibrations: kept, listed, and chosen for plans and replays."""

from __future__ import annotations

from sqlalchemy.orm import Session

from models.errors import InvalidError, NotFoundError
from models.ids import new_id
from models.principal import Principal
from models.repositories import calibrations as rows
from models.services import Services
from models.tables import CalibrationRow
from models.use_cases import audit
from models.use_cases.catalogue import catalogue_for
from replay.calibration.user import UserCalibration
from replay.errors import FieldError

MAX_CALIBRATIONS = 500
"""Of one tenant: each plan reads them all."""


def add_calibration(
    session: Session, principal: Principal, services: Services, calibration: UserCalibration
) -> CalibrationRow:
    """Keeps a calibration; from now on it counts for its deployment.

    Raises:
        SpecError: the tenant's catalogue has not its model or GPU type. InvalidError: too many.
    """
    principal.require("jobs:write")
    catalogue = catalogue_for(session, principal)
    own = calibration.deployment
    keys = {"model": catalogue.model(own.model).key, "gpu": catalogue.gpu(own.gpu).key}
    calibration = calibration.model_copy(update={"deployment": own.model_copy(update=keys)})
    if len(rows.list_calibrations(session, principal.tenant_id)) >= MAX_CALIBRATIONS:
        detail = f"a tenant keeps at most {MAX_CALIBRATIONS} calibrations: delete some"
        raise InvalidError(detail, code="calibration.full")
    row = CalibrationRow(
        id=new_id("cal"),
        tenant_id=principal.tenant_id,
        document=calibration.model_dump(mode="json"),
        created_at=services.clock(),
    )
    session.add(row)
    session.flush()
    audit.note(session, principal, services, "calibration.add", row.id)
    return row


def get_calibration(session: Session, principal: Principal, calibration_id: str) -> CalibrationRow:
    """One of the tenant's. Raises NotFoundError."""
    row = rows.find_calibration(session, principal.tenant_id, calibration_id)
    if row is None:
        raise NotFoundError(f"there is no calibration {calibration_id}", code="calibration.not_found")
    return row


def delete_calibration(session: Session, principal: Principal, services: Services, calibration_id: str) -> None:
    """Removes one; results that used it keep it. Raises NotFoundError."""
    principal.require("jobs:write")
    session.delete(get_calibration(session, principal, calibration_id))
    audit.note(session, principal, services, "calibration.delete", calibration_id)


def calibrations_for(session: Session, principal: Principal, wanted: str) -> tuple[UserCalibration, ...]:
    """``auto``: all of the tenant's, oldest first; ``shipped``: none; else the one of this id.

    Raises:
        InvalidError: ``calibration.unknown`` for an id that the tenant has not.
    """
    if wanted == "shipped":
        return ()
    if wanted == "auto":
        found = rows.list_calibrations(session, principal.tenant_id)
    else:
        one = rows.find_calibration(session, principal.tenant_id, wanted)
        if one is None:
            cure = "name one of GET /v1/calibrations, or auto, or shipped"
            detail = f"there is no calibration {wanted[:60]!r}"
            raise InvalidError(
                detail, code="calibration.unknown", errors=[FieldError(detail, "calibration", cure=cure)]
            )
        found = [one]
    return tuple(UserCalibration.model_validate(row.document) for row in found)
