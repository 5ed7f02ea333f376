"""A tenant's own calibrations: fitted by a job or uploaded, kept, listed, and chosen for plans and replays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from models import jobs
from models.blobs import StoredUpload
from models.errors import InvalidError, NotFoundError
from models.hashing import code_version, input_hash
from models.ids import new_id
from models.jobs import StartedJob
from models.principal import Principal
from models.repositories import blobs as blob_rows
from models.repositories import calibrations as rows
from models.repositories import jobs as job_rows
from models.services import Services
from models.tables import CalibrationRow, Job, JobFile
from models.use_cases import audit
from models.use_cases.catalogue import catalogue_for
from models.use_cases.limits import check_live_jobs, check_stored_bytes
from replay.calibration.request import MeasuredDeployment, MeasurementFile, resolve_calibration
from replay.calibration.user import UserCalibration
from replay.errors import FieldError

MAX_CALIBRATIONS = 500
"""Of one tenant: each plan reads them all."""


@dataclass(frozen=True)
class Measurements:
    """A received file of measurements and the name that its client gave it."""

    name: str
    upload: StoredUpload


def start_calibration(
    session: Session,
    principal: Principal,
    services: Services,
    deployment: MeasuredDeployment,
    files: Sequence[Measurements],
    *,
    name: str = "",
    request_id: str | None = None,
) -> StartedJob:
    """Stores the files and inserts the job that fits them, or finds the one that did so before.

    Raises LimitError, InvalidError (too many calibrations, a file given twice), and the domain's SpecError.
    """
    principal.require("jobs:write")
    _check_files(files)
    named = tuple(MeasurementFile(name=one.name, sha256=one.upload.sha256) for one in files)
    resolved = resolve_calibration(deployment, catalogue_for(session, principal), named)
    spec = {"schema_version": 1, "calibrate": resolved.model_dump(mode="json"), "name": name}
    hashed = input_hash("calibrate", spec, code_version())
    if (found := job_rows.find_shared(session, principal.tenant_id, hashed)) is not None:
        return StartedJob(found, created=False)
    _check_room(rows.list_calibrations(session, principal.tenant_id))
    check_live_jobs(session, principal, services)
    check_stored_bytes(session, principal, services, sum(one.upload.bytes for one in files))
    now = services.clock()
    job = jobs.new_job(
        tenant_id=principal.tenant_id,
        kind="calibrate",
        name=name,
        spec=spec,
        input_hash=hashed,
        code_version=code_version(),
        settings=services.settings,
        now=now,
        request_id=request_id,
    )
    for one in sorted(files, key=lambda one: one.upload.sha256):  # in one order, so that no two requests deadlock
        blob_rows.note_blob(session, one.upload.sha256, one.upload.bytes, now)
        services.blobs.put_file(one.upload.path, one.upload.sha256)
    started = jobs.create(session, job)
    if started.created:
        session.add_all(JobFile(job_id=job.id, sha256=one.upload.sha256, bytes=one.upload.bytes) for one in files)
        audit.note(session, principal, services, "calibration.fit", job.id)
    return started


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
    row = keep_calibration(session, principal.tenant_id, services, calibration)
    audit.note(session, principal, services, "calibration.add", row.id)
    return row


def keep_calibration(
    session: Session, tenant_id: str, services: Services, calibration: UserCalibration, *, job_id: str | None = None
) -> CalibrationRow:
    """The row of a new calibration, as the next version of its deployment. Raises InvalidError where there are too
    many."""
    kept = rows.list_calibrations(session, tenant_id)
    _check_room(kept)
    document = calibration.model_dump(mode="json")
    row = CalibrationRow(
        id=new_id("cal"),
        tenant_id=tenant_id,
        document=document,
        version=1 + max((one.version for one in _of_deployment(kept, document)), default=0),
        job_id=job_id,
        created_at=services.clock(),
    )
    session.add(row)
    session.flush()
    return row


def _check_files(files: Sequence[Measurements]) -> None:
    seen: dict[str, str] = {}
    for one in files:
        twin = seen.setdefault(one.upload.sha256, one.name)
        if twin is not one.name:
            detail = f"{one.name} and {twin} are the same file"
            cure = "give each measurement once"
            fault = FieldError(detail, field="measurements", cure=cure)
            raise InvalidError(detail, code="calibration.twice", errors=[fault])


def _check_room(kept: Sequence[CalibrationRow]) -> None:
    if len(kept) >= MAX_CALIBRATIONS:
        detail = f"a tenant keeps at most {MAX_CALIBRATIONS} calibrations: delete some"
        raise InvalidError(detail, code="calibration.full")


def _of_deployment(kept: Iterable[CalibrationRow], document: dict[str, object]) -> list[CalibrationRow]:
    return [one for one in kept if one.document["deployment"] == document["deployment"]]


@dataclass(frozen=True)
class KeptCalibration:
    """A calibration with where it stands among those of its deployment, oldest first."""

    row: CalibrationRow
    calibration: UserCalibration
    versions: tuple[CalibrationRow, ...]

    @property
    def counts(self) -> bool:
        """Whether plans and replays use it where they ask for ``auto``."""
        return self.versions[-1].id == self.row.id


def list_calibrations(session: Session, principal: Principal) -> list[KeptCalibration]:
    """All of the tenant's, oldest first."""
    principal.require("reports:read")
    kept = rows.list_calibrations(session, principal.tenant_id)
    return [_kept(row, kept) for row in kept]


def newest_calibrations(session: Session, principal: Principal, limit: int) -> list[CalibrationRow]:
    """So many of the tenant's, newest first, to choose from; their documents are not parsed."""
    principal.require("reports:read")
    return rows.list_calibrations(session, principal.tenant_id)[: -limit - 1 : -1]


def get_calibration(session: Session, principal: Principal, calibration_id: str) -> KeptCalibration:
    """One of the tenant's. Raises NotFoundError."""
    principal.require("reports:read")
    row = _row(session, principal, calibration_id)
    return _kept(row, rows.list_calibrations(session, principal.tenant_id))


def _kept(row: CalibrationRow, others: Iterable[CalibrationRow]) -> KeptCalibration:
    calibration = UserCalibration.model_validate(row.document)
    return KeptCalibration(row, calibration, tuple(_of_deployment(others, row.document)))


def _row(session: Session, principal: Principal, calibration_id: str) -> CalibrationRow:
    row = rows.find_calibration(session, principal.tenant_id, calibration_id)
    if row is None:
        raise NotFoundError(f"there is no calibration {calibration_id}", code="calibration.not_found")
    return row


def delete_calibration(session: Session, principal: Principal, services: Services, calibration_id: str) -> None:
    """Removes one; results that used it keep it, and its measurements can be fitted again. Raises NotFoundError."""
    principal.require("jobs:write")
    row = _row(session, principal, calibration_id)
    if row.job_id is not None:
        jobs.forget_input(session, row.job_id)
    session.delete(row)
    audit.note(session, principal, services, "calibration.delete", calibration_id)


def delete_measurements(services: Services, job: Job) -> None:
    """Deletes the files that a job has fitted, unless another waits for them: what they say is in the calibration."""
    before = job.started_at or job.created_at
    for one in job.spec["calibrate"]["files"]:
        with services.database.write() as session:
            if blob_rows.delete_if_unused(session, one["sha256"], before):
                services.blobs.delete(one["sha256"])  # within the transaction: who stores it again waits for the row


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
