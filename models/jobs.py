"""The job state machine. The database is the truth; messages to workers are only doorbells.

``queued -> running -> succeeded | failed | cancelled``; ``queued -> cancelled``; ``running -> queued`` by the reaper or
by a worker that is shutting down. ``_transition`` alone changes a status. A runner's writes are fenced by its attempt:
whoever lost the job changes nothing. A parent is always locked before its child.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import ColumnElement
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from models.database import ring_after_commit
from models.ids import new_id
from models.repositories import jobs as rows
from models.repositories import traces, workers
from models.settings import Settings
from models.tables import Job, JobResult
from replay.errors import FieldError

log = structlog.get_logger(__name__)

_TARGETS: dict[str, frozenset[str]] = {
    "queued": frozenset({"running", "cancelled"}),
    "running": frozenset({"succeeded", "failed", "cancelled", "queued"}),
}
MAX_ERRORS = 20
QUEUE = "replay"


@dataclass(frozen=True)
class StartedJob:
    """A job, and whether this call created it (False: found by its input hash)."""

    job: Job
    created: bool


@dataclass(frozen=True)
class Failure:
    """Why a job failed: a stable code, a sentence for the user, faults by line, column and field."""

    code: str
    detail: str
    errors: tuple[FieldError, ...] = ()


@dataclass(frozen=True)
class Beat:
    """What a heartbeat learns: whether the job is still this runner's, was cancelled, or the worker must stop."""

    owned: bool
    cancelled: bool = False
    stopping: bool = False


class LostJobError(Exception):
    """The job is no longer this runner's: another attempt has it, or it has ended. Its writes are to be rolled back."""


def _transition(
    session: Session,
    job: Job,
    to: str,
    *,
    source: str | None = None,
    attempt: int | None = None,
    next_attempt: int | None = None,
    **values: Any,
) -> bool:
    """The one place where a status changes. False where the row is not (or no longer) in a state that allows it."""
    sources = [source] if source else [state for state, targets in _TARGETS.items() if to in targets]
    if source is not None and to not in _TARGETS[source]:
        raise ValueError(f"a job never goes from {source} to {to}")
    conditions: list[ColumnElement[bool]] = [Job.status.in_(sources)]
    if attempt is not None:
        conditions.append(Job.attempt == attempt)
    if next_attempt is not None:
        values["attempt"] = next_attempt
    changed = rows.update_where(session, job.id, conditions, {"status": to, **values})
    if changed:
        log.info("job.transition", job_id=job.id, kind=job.kind, to=to, attempt=job.attempt, request_id=job.request_id)
    return changed


def new_job(
    *,
    tenant_id: str,
    kind: str,
    spec: dict[str, Any],
    code_version: str,
    settings: Settings,
    now: datetime,
    **values: Any,
) -> Job:
    """A queued job's row, not yet inserted."""
    return Job(
        id=new_id("job"),
        tenant_id=tenant_id,
        kind=kind,
        status="queued",
        spec=spec,
        code_version=code_version,
        max_attempts=settings.job_max_attempts,
        created_at=now,
        **values,
    )


def create(session: Session, job: Job, children: list[Job] | None = None) -> StartedJob:
    """Inserts a job with its children, unless an equal one (tenant and input hash) is live or has succeeded."""
    if job.input_hash is not None and (found := rows.find_shared(session, job.tenant_id, job.input_hash)):
        return StartedJob(found, created=False)
    try:
        with session.begin_nested():
            session.add(job)
    except IntegrityError:  # another transaction inserted the same input since we looked
        found = rows.find_shared(session, job.tenant_id, job.input_hash) if job.input_hash else None
        if found is None:
            raise
        return StartedJob(found, created=False)
    children = children or []
    for position, child in enumerate(children):
        child.parent_id = job.id
        child.position = position
        session.add(child)
    session.flush()
    for dispatched in children or [job]:
        ring_after_commit(session, dispatched.id, QUEUE)
    return StartedJob(job, created=True)


def claim(session: Session, job_id: str, worker: str, now: datetime) -> Job | None:
    """Takes a queued job for ``worker``; ``None`` where there is nothing to take: the message is then dropped."""
    job = rows.find_of_any_tenant(session, job_id)
    if job is None or job.kind == "plan" or job.status != "queued":
        return None
    if workers.is_stopping(session, worker):
        rows.forget_dispatch(session, job.id)  # its message is spent: the dispatcher sends another
        return None
    if job.parent_id is not None:
        parent = rows.lock_parent(session, job)
        if parent.status == "queued":
            _transition(session, parent, "running", source="queued", started_at=now)
        elif parent.status != "running":
            _transition(session, job, "cancelled", source="queued", finished_at=now)
            return None
    taken = _transition(
        session,
        job,
        "running",
        source="queued",
        attempt=job.attempt,
        claimed_by=worker,
        started_at=now,
        heartbeat_at=now,
        progress=0.0,
        next_attempt=job.attempt + 1,
    )
    return job if taken else None


def beat(session: Session, job_id: str, attempt: int, progress: float, now: datetime) -> Beat:
    """Writes heartbeat and progress (0 to 1) of a running job, and reads what the runner must obey."""
    found = rows.beat(session, job_id, attempt, progress, now)
    if found is None:
        return Beat(owned=False)
    cancel_requested_at, worker = found
    stopping = worker is not None and workers.is_stopping(session, worker)
    return Beat(owned=True, cancelled=cancel_requested_at is not None, stopping=stopping)


def finish(session: Session, job: Job, attempt: int, now: datetime, **values: Any) -> None:
    """A runner's success, in the transaction that stores what it made. Raises LostJobError."""
    if not _transition(
        session, job, "succeeded", source="running", attempt=attempt, finished_at=now, progress=1.0, **values
    ):
        raise LostJobError(job.id)


def finish_child(
    session: Session, child: Job, attempt: int, body: str, code_version: str, settings: Settings, now: datetime
) -> None:
    """A candidate's success: stores its result; whoever brings ``remaining`` to 0 inserts the plan's aggregation.

    Raises LostJobError.
    """
    parent = rows.lock_parent(session, child)
    if parent.status != "running":
        raise LostJobError(child.id)
    finish(session, child, attempt, now)
    session.add(JobResult(job_id=child.id, body=body, code_version=code_version, created_at=now))
    remaining = parent.remaining - 1
    rows.update_where(
        session,
        parent.id,
        [],
        {"remaining": remaining, "progress": 0.98 * (parent.children - remaining) / parent.children},
    )
    if remaining == 0:
        aggregation = new_job(
            tenant_id=parent.tenant_id,
            kind="plan_report",
            spec={"schema_version": 1},
            code_version=parent.code_version,
            settings=settings,
            now=now,
            parent_id=parent.id,
            position=parent.children,
            trace_id=parent.trace_id,
            schedule_id=parent.schedule_id,
            request_id=parent.request_id,
        )
        session.add(aggregation)
        session.flush()
        ring_after_commit(session, aggregation.id, QUEUE)


def finish_plan(session: Session, aggregation: Job, attempt: int, now: datetime) -> Job:
    """The aggregation's success is the plan's; gives the plan. Raises LostJobError."""
    parent = rows.lock_parent(session, aggregation)
    if parent.status != "running":
        raise LostJobError(aggregation.id)
    finish(session, aggregation, attempt, now)
    finish(session, parent, parent.attempt, now)
    rows.delete_results(session, parent.id)
    return parent


def fail(session: Session, job: Job, attempt: int, failure: Failure, now: datetime) -> bool:
    """A failed attempt that no repetition would cure. A plan fails with its first failed child: a table that silently
    lacks a candidate would be a wrong answer. False where the job is not this runner's."""
    parent = _lock_parent(session, job)
    if not _transition(session, job, "failed", source="running", attempt=attempt, **_failure_values(failure, now)):
        return False
    _settle_failure(session, job, parent, failure, now)
    return True


def requeue(session: Session, job: Job, attempt: int, now: datetime) -> str | None:
    """A worker that is shutting down gives a job back; the attempt does not count against ``max_attempts``.

    The new status: cancelled where the job or its plan was told to end meanwhile; ``None``: not this runner's.
    """
    parent = _lock_parent(session, job)
    job = rows.lock(session, job.id)
    if _unwanted(job, parent):
        return "cancelled" if end_cancelled(session, job, attempt, now) else None
    values = _REQUEUED | {"max_attempts": job.max_attempts + 1}
    if not _transition(session, job, "queued", source="running", attempt=attempt, **values):
        return None
    ring_after_commit(session, job.id, QUEUE)
    return "queued"


def requeue_of_worker(session: Session, worker: str, now: datetime) -> int:
    """Gives back whatever a stopped worker still held; how many jobs."""
    held = rows.list_running(session, claimed_by=worker)
    return sum(requeue(session, job, job.attempt, now) is not None for job in held)


def _unwanted(job: Job, parent: Job | None) -> bool:
    """Whether nobody waits for this job any more: such a job is never queued again."""
    return job.cancel_requested_at is not None or (parent is not None and parent.status not in rows.LIVE)


def end_cancelled(session: Session, job: Job, attempt: int, now: datetime) -> bool:
    """A runner saw the cancel flag and stopped. False where the job is not its own."""
    if not _transition(session, job, "cancelled", source="running", attempt=attempt, finished_at=now):
        return False
    _settle_traces(session, job, now)
    return True


def end_lost(session: Session, job: Job, attempt: int, now: datetime) -> bool:
    """Ends the job of a runner that may not store its outcome, where that is because the job was told to stop."""
    return rows.lock(session, job.id).cancel_requested_at is not None and end_cancelled(session, job, attempt, now)


def cancel(session: Session, job: Job, now: datetime) -> None:
    """Asks a live top-level job to stop: queued jobs and plans end now, running ones at their next heartbeat."""
    job = rows.lock(session, job.id)
    if job.status not in rows.LIVE:
        return
    if job.cancel_requested_at is None:
        # Without its hash, the same request made again starts a new job instead of finding this dying one.
        rows.update_where(session, job.id, [], {"cancel_requested_at": now, "input_hash": None})
    if job.kind == "plan":
        _transition(session, job, "cancelled", finished_at=now)
        _cancel_children(session, job, now)
    elif _transition(session, job, "cancelled", source="queued", finished_at=now):
        _settle_traces(session, job, now)


def forget_input(session: Session, job_id: str) -> None:
    """Makes a job's outcome no answer to later equal requests."""
    rows.update_where(session, job_id, [], {"input_hash": None})


def reap(session: Session, job_id: str, stale_before: datetime, settings: Settings, now: datetime) -> str | None:
    """Takes a job from a runner that has fallen silent: queued again, or ended. The new status; ``None``: it lives."""
    job = rows.find_of_any_tenant(session, job_id)
    if job is None:
        return None
    parent = _lock_parent(session, job)
    job = rows.lock(session, job_id)
    if job.status != "running" or job.heartbeat_at is None or job.heartbeat_at >= stale_before:
        return None
    if _unwanted(job, parent):
        end_cancelled(session, job, job.attempt, now)
    elif (failure := _lost(job, settings)) is not None:
        if _transition(session, job, "failed", source="running", attempt=job.attempt, **_failure_values(failure, now)):
            _settle_failure(session, job, parent, failure, now)
    elif _transition(session, job, "queued", source="running", attempt=job.attempt, **_REQUEUED):
        ring_after_commit(session, job.id, QUEUE)
    return job.status


def _lost(job: Job, settings: Settings) -> Failure | None:
    """Why a silent job must not be tried again; ``None``: try again."""
    ran = (job.heartbeat_at or job.created_at) - (job.started_at or job.created_at)
    if ran >= timedelta(seconds=settings.job_time_limit_s - 2 * settings.job_heartbeat_s):
        return Failure(
            "time_limit", f"the job was stopped after {settings.job_time_limit_s} s: ask for less, or raise the limit"
        )
    if job.attempt >= job.max_attempts:
        return Failure(
            "worker_lost", f"the worker was lost {job.attempt} times while it ran this job: perhaps out of memory"
        )
    return None


_REQUEUED: dict[str, Any] = {
    "claimed_by": None,
    "heartbeat_at": None,
    "dispatched_at": None,
    "dispatches": 0,
    "progress": 0.0,
}


def _storable(value: Any) -> Any:
    """Text without what a database refuses: NUL and lone surrogates, which come from escapes in users' JSON."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _failure_values(failure: Failure, now: datetime) -> dict[str, Any]:
    errors = [
        {name: _storable(value) for name, value in vars(error).items() if value is not None}
        for error in failure.errors[:MAX_ERRORS]
    ]
    return {
        "finished_at": now,
        "error_code": failure.code,
        "error_detail": _storable(failure.detail)[:4000],
        "errors": errors or None,
    }


def _lock_parent(session: Session, job: Job) -> Job | None:
    return None if job.parent_id is None else rows.lock_parent(session, job)


def _settle_failure(session: Session, job: Job, parent: Job | None, failure: Failure, now: datetime) -> None:
    if parent is not None and _transition(session, parent, "failed", source="running", **_failure_values(failure, now)):
        _cancel_children(session, parent, now)
    _settle_traces(session, job, now)


def _settle_traces(session: Session, job: Job, now: datetime) -> None:
    """An ingest that ended without success leaves failed traces; the job says why."""
    if job.kind == "ingest":
        traces.fail_of_ingest_job(session, job.id, now)


def _cancel_children(session: Session, parent: Job, now: datetime) -> None:
    for child in rows.list_live_children(session, parent.id):
        rows.update_where(session, child.id, [Job.cancel_requested_at.is_(None)], {"cancel_requested_at": now})
        _transition(session, child, "cancelled", source="queued", finished_at=now)
