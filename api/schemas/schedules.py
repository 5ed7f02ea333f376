"""Schedules and their runs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from api.schemas.common import Body, Label, Out, StreamName, TraceIdText
from models.tables import Schedule
from models.use_cases.schedules import RunDetail, ScheduleChange
from replay.specs import PlanSpec

Cron = Annotated[
    str,
    StringConstraints(min_length=9, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$"),
    Field(description="Five fields: minute hour day month weekday", examples=["0 6 * * 1"]),
]
Zone = Annotated[
    str,
    StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+/-]*$"),
    Field(description="IANA time zone", examples=["Europe/Berlin"]),
]


class ScheduleRequest(Body):
    """A plan to repeat, on one trace or on the newest trace of a stream: exactly one of the two."""

    name: Annotated[Label, Field(min_length=1)]
    cron: Cron
    zone: Zone = "UTC"
    plan: PlanSpec
    trace_id: TraceIdText | None = None
    stream: StreamName | None = None

    @model_validator(mode="after")
    def _one_source(self) -> ScheduleRequest:
        if (self.trace_id is None) == (self.stream is None):
            raise ValueError("give exactly one of trace_id and stream")
        return self


class SchedulePatch(Body):
    """What to change; a field that is left out stays. ``status`` pauses and resumes."""

    name: Annotated[Label, Field(min_length=1)] | None = None
    cron: Cron | None = None
    zone: Zone | None = None
    plan: PlanSpec | None = None
    trace_id: TraceIdText | None = None
    stream: StreamName | None = None
    status: Literal["active", "paused"] | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> SchedulePatch:
        if all(getattr(self, name) is None for name in type(self).model_fields):
            raise ValueError("nothing to change: give at least one field")
        if self.trace_id is not None and self.stream is not None:
            raise ValueError("give at most one of trace_id and stream")
        return self

    def change(self) -> ScheduleChange:
        """As the use case takes it."""
        return ScheduleChange(**{name: getattr(self, name) for name in type(self).model_fields})


class ScheduleOut(Out):
    """A schedule. ``next_run_at`` is null while paused, and where the cron text has no further date."""

    id: str
    name: str
    cron: str
    zone: str
    plan: dict[str, Any]
    trace_id: str | None
    stream: str | None
    status: Literal["active", "paused"]
    next_run_at: datetime | None
    created_at: datetime
    updated_at: datetime
    version: int
    """Also the ETag; send it as If-Match with a change."""
    note: str | None = None
    """In the answer to its creation: that its stream has no ready trace yet."""

    @classmethod
    def of(cls, row: Schedule, note: str | None = None) -> ScheduleOut:
        """From the stored row."""
        return cls.model_validate(
            {name: getattr(row, name) for name in cls.model_fields if name != "note"} | {"note": note}
        )


class ScheduleRunOut(Out):
    """One occurrence, and the job it started or found; without one ``error_code`` says why."""

    id: str
    schedule_id: str
    scheduled_for: datetime
    trigger: Literal["cron", "manual"]
    missed: int
    """Earlier occurrences that were missed and are folded into this one."""
    job_id: str | None
    job_status: str | None
    trace_id: str | None
    """The trace that was planned on."""
    report_id: str | None
    """Null until the job has succeeded."""
    note: str | None
    """Where the data is older than one might think: a newer trace could not be read, or nothing new has come."""
    error_code: str | None
    error_detail: str | None
    created_at: datetime

    @classmethod
    def of(cls, detail: RunDetail) -> ScheduleRunOut:
        """From the stored row."""
        values = {name: getattr(detail.run, name, None) for name in cls.model_fields}
        job = {"job_status": detail.job.status, "trace_id": detail.job.trace_id} if detail.job else {}
        return cls.model_validate({**values, **job, "report_id": detail.report_id, "note": detail.note})
