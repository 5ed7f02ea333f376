"""Files of measurements -> the job that fits a calibration to them; the same for the API and the pages."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlalchemy.orm import Session

from models.blobs import StoredUpload
from models.errors import InvalidError
from models.jobs import StartedJob
from models.principal import Principal
from models.services import Services
from models.use_cases.calibrations import Measurements, start_calibration
from replay.calibration.request import MAX_FILES, MeasuredDeployment
from replay.errors import FieldError

FILES = "measurements"
_ODD = re.compile(r"[/\\\x00-\x1f\x7f]")


def start_fit(
    session: Session,
    principal: Principal,
    services: Services,
    deployment: MeasuredDeployment,
    files: Sequence[tuple[str, str, StoredUpload]],
    *,
    name: str,
    request_id: str,
) -> StartedJob:
    """Starts the job.

    Raises:
        InvalidError: ``calibration.form``: no file, too many, or one in another field; and as ``start_calibration``.
    """
    for field, _, _ in files:
        if field != FILES:
            raise form_refusal(field, f"a file in the field {field}", f"name the field of each file {FILES}")
    if not 0 < len(files) <= MAX_FILES:
        raise form_refusal(FILES, f"{len(files)} files of measurements", f"give 1 to {MAX_FILES} files")
    if len(name) > 200 or not name.isprintable():
        raise form_refusal("name", "the name is too long or cannot be printed", "give at most 200 printable characters")
    named = [Measurements(_safe(file_name, index), upload) for index, (_, file_name, upload) in enumerate(files, 1)]
    return start_calibration(session, principal, services, deployment, named, name=name, request_id=request_id)


def form_refusal(field: str, detail: str, cure: str) -> InvalidError:
    """A form that cannot be carried out."""
    fault = FieldError(detail, field=field, cure=cure)
    return InvalidError(f"{detail}: {cure}", code="calibration.form", errors=[fault])


def _safe(name: str, index: int) -> str:
    """The last part of the client's path, as a name that any disk takes."""
    last = _ODD.sub("_", name.replace("\\", "/").rsplit("/", 1)[-1])[-60:].lstrip(".")
    return last or f"file-{index}"
