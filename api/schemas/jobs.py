"""Jobs, and the requests that start them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from api.schemas.common import Label, Out, TraceIdText
from models.tables import Job
from models.use_cases.jobs import JobDetail
from replay.specs import PlanSpec, ReplaySpec

JobStatus = Literal["queued", "running", "succeeded", "failed", "cancelled"]
JobKind = Literal["ingest", "replay", "plan", "calibrate"]
LIVE: frozenset[str] = frozenset({"queued", "running"})


class PlanRequest(PlanSpec):
    """A plan and the trace it is made on."""

    name: Label = ""
    trace_id: TraceIdText

    def spec(self) -> PlanSpec:
        """The plan alone."""
        return PlanSpec.model_validate(self.model_dump(exclude={"trace_id"}))


class ReplayRequest(ReplaySpec):
    """A replay of one deployment and the trace it is made on."""

    name: Label = ""
    trace_id: TraceIdText

    def spec(self) -> ReplaySpec:
        """The replay alone."""
        return ReplaySpec.model_validate(self.model_dump(exclude={"trace_id", "name"}))


class JobFault(Out):
    """One fault of a failed job: the place in the file or the field, the rule, the cure."""

    detail: str | None = None
    field: str | None = None
    line: int | None = None
    column: str | None = None
    rule: str | None = None
    cure: str | None = None


class JobError(Out):
    """Why a job failed."""

    code: str
    detail: str
    errors: list[JobFault]


class Execution(Out):
    """What jobs and the candidates of a plan have in common."""

    id: str
    kind: str
    name: str
    status: JobStatus
    progress: Annotated[float, Field(ge=0, le=1)]
    attempt: int
    max_attempts: int
    trace_id: str | None
    schedule_id: str | None
    cancel_requested: bool
    error: JobError | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class JobSummary(Execution):
    """One job and, once it succeeded, the id of its report."""

    report_id: str | None

    @classmethod
    def of(cls, row: Job, report_id: str | None) -> JobSummary:
        """From the stored row and its report's id."""
        return cls.model_validate({**_summary(row), "report_id": report_id})


class JobOut(JobSummary):
    """A job with its plan's children by status and, once it succeeded, the id of its calibration."""

    children: dict[str, int]
    calibration_id: str | None

    @classmethod
    def of_detail(cls, detail: JobDetail) -> JobOut:
        """From the stored row and what belongs to it."""
        values = _summary(detail.job)
        made = {"report_id": detail.report_id, "calibration_id": detail.calibration_id}
        values.update(progress=_share(detail.progress), children=detail.children, **made)
        return cls.model_validate(values)

    @property
    def retry_after_s(self) -> int | None:
        """When to ask again; null once the job has ended."""
        return 1 if self.status in LIVE else None


class ChildJobOut(Execution):
    """One candidate of a plan."""

    position: int

    @classmethod
    def of_child(cls, row: Job) -> ChildJobOut:
        """From the stored row."""
        return cls.model_validate({**_summary(row), "position": row.position})


class ChildJobs(Out):
    """The candidates of a plan, in order; never more than 500."""

    items: list[ChildJobOut]


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _fault(fault: object) -> JobFault:
    known = fault if isinstance(fault, dict) else {"detail": str(fault)}
    return JobFault.model_validate({name: known.get(name) for name in JobFault.model_fields})


def _summary(row: Job) -> dict[str, object]:
    error = None
    if row.error_code is not None:
        error = JobError(
            code=row.error_code, detail=row.error_detail or "", errors=[_fault(fault) for fault in row.errors or []]
        )
    return {
        "id": row.id,
        "kind": row.kind,
        "name": row.name,
        "status": row.status,
        "progress": _share(row.progress),
        "attempt": row.attempt,
        "max_attempts": row.max_attempts,
        "trace_id": row.trace_id,
        "schedule_id": row.schedule_id,
        "cancel_requested": row.cancel_requested_at is not None,
        "error": error,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
    }
