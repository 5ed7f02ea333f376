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
    calibration: UserCalibration
