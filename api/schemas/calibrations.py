"""Calibrations as the API takes and gives them."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from api.schemas.common import Body, Out
from replay.calibration.user import UserCalibration


class CalibrationRequest(Body):
    """A calibration of the tenant's own."""

    calibration: UserCalibration = Field(description="The file that capreplay calibrate --output wrote")


class CalibrationOut(Out):
    """A kept calibration."""

    id: str
    created_at: datetime
    calibration_id: str = Field(description="What reports name: made of the content")
    version: int = Field(description="Counts those of the same deployment, from 1")
    counts: bool = Field(description="Whether plans and replays use it: the newest of its deployment")
    job_id: str | None = Field(description="The job that fitted it; null where it was uploaded as it is")
    calibration: UserCalibration
