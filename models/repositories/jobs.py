"""Jobs and their results. Status changes go through ``models.jobs`` alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import ColumnElement, CursorResult, String, and_, delete, func, or_, select, update
from sqlalchemy import cast as sql_cast
from sqlalchemy.orm import Session

from models.paging import Page, PageRequest
from models.repositories.scope import get_row, of_tenant, page_of
from models.tables import Job, JobResult

LIVE = ("queued", "running")
SHARED = (*LIVE, "succeeded")
"""States in which a job answers further requests of equal input."""
TOP_LEVEL_KINDS = ("ingest", "replay", "plan", "calibrate")


def get_job(session: Session, tenant_id: str, job_id: str) -> Job:
    """One job. Raises NotFoundError."""
    return get_row(session, Job, tenant_id, job_id)


def list_by_ids(session: Session, tenant_id: str, job_ids: Sequence[str]) -> dict[str, Job]:
    """The tenant's jobs of these ids."""
    return {job.id: job for job in session.scalars(of_tenant(Job, tenant_id).where(Job.id.in_(job_ids)))}


def find_of_any_tenant(session: Session, job_id: str) -> Job | None:
    """For workers: a message holds only the id."""
    return session.get(Job, job_id, populate_existing=True)


def lock(session: Session, job_id: str) -> Job:
    """The job, locked until this transaction ends; a parent always before its children, so that no two deadlock."""
    statement = select(Job).where(Job.id == job_id).with_for_update().execution_options(populate_existing=True)
    return session.scalars(statement).one()


def lock_parent(session: Session, child: Job) -> Job:
    """The parent of a child, locked."""
    if child.parent_id is None:
        raise ValueError(f"{child.id} has no parent")
    return lock(session, child.parent_id)


def list_jobs(session: Session, tenant_id: str, page: PageRequest, filters: dict[str, str | None]) -> Page[Job]:
    """Top-level jobs, newest first. ``filters``: column name to value; ``None`` does not filter."""
    statement = of_tenant(Job, tenant_id).where(Job.kind.in_(TOP_LEVEL_KINDS))
    for column, value in filters.items():
        if value is not None:
            statement = statement.where(getattr(Job, column) == value)
    return page_of(session, statement, Job, page)


def find_shared(session: Session, tenant_id: str, input_hash: str) -> Job | None:
    """The live or succeeded job of this input."""
    statement = of_tenant(Job, tenant_id).where(Job.input_hash == input_hash, Job.status.in_(SHARED))
    return session.scalars(statement).one_or_none()


def count_live(session: Session, tenant_id: str) -> int:
    """Live top-level jobs."""
    statement = select(func.count()).select_from(Job)
    conditions = (Job.tenant_id == tenant_id, Job.status.in_(LIVE), Job.kind.in_(TOP_LEVEL_KINDS))
    return session.scalars(statement.where(*conditions)).one()


def count_live_using_trace(session: Session, tenant_id: str, trace_id: str) -> int:
    """Live jobs that read this trace, or mix it in."""
    uses = or_(Job.trace_id == trace_id, sql_cast(Job.spec, String).contains(f'"{trace_id}"'))
    statement = select(func.count()).select_from(Job)
    return session.scalars(statement.where(Job.tenant_id == tenant_id, uses, Job.status.in_(LIVE))).one()


def list_children(session: Session, parent_id: str) -> list[Job]:
    """The candidates of a plan, in order."""
    statement = select(Job).where(Job.parent_id == parent_id, Job.kind == "plan_candidate").order_by(Job.position)
    return list(session.scalars(statement.execution_options(populate_existing=True)))


def list_live_children(session: Session, parent_id: str) -> list[Job]:
    """All live children, the aggregation too."""
    statement = select(Job).where(Job.parent_id == parent_id, Job.status.in_(LIVE)).order_by(Job.position)
    return list(session.scalars(statement.execution_options(populate_existing=True)))


def children_summary(session: Session, parent_id: str) -> tuple[dict[str, int], float]:
    """Children of a plan by status, and the mean of their progress."""
    statement = select(Job.status, func.count(), func.sum(Job.progress)).where(Job.parent_id == parent_id)
    rows = session.execute(statement.group_by(Job.status)).all()
    total = sum(count for _, count, _ in rows)
    return {status: count for status, count, _ in rows}, sum(p for _, _, p in rows) / total if total else 0.0


def list_results(session: Session, parent_id: str) -> list[JobResult]:
    """What the children of a plan computed, in their order."""
    statement = select(JobResult).join(Job, Job.id == JobResult.job_id).where(Job.parent_id == parent_id)
    return list(session.scalars(statement.order_by(Job.position)))


def delete_results(session: Session, parent_id: str) -> None:
    """Removes the children's results once the report holds them."""
    children = select(Job.id).where(Job.parent_id == parent_id)
    session.execute(
        delete(JobResult).where(JobResult.job_id.in_(children)), execution_options={"synchronize_session": False}
    )


def update_where(
    session: Session, job_id: str, conditions: Iterable[ColumnElement[bool]], values: dict[str, Any]
) -> bool:
    """One conditional UPDATE, the only write to a job after its insert; whether the row still met the conditions."""
    statement = update(Job).where(Job.id == job_id, *conditions).values(version=Job.version + 1, **values)
    result = session.execute(statement, execution_options={"synchronize_session": False})
    changed = cast("CursorResult[Any]", result).rowcount == 1
    if changed and (loaded := session.identity_map.get(session.identity_key(Job, job_id))) is not None:
        session.refresh(loaded)
    return changed


def beat(
    session: Session, job_id: str, attempt: int, progress: float, now: datetime
) -> tuple[datetime | None, str | None] | None:
    """Heartbeat and progress in, cancel flag and owner's name out, in one UPDATE; ``None``: not ours any more."""
    statement = (
        update(Job)
        .where(Job.id == job_id, Job.attempt == attempt, Job.status == "running")
        .values(heartbeat_at=now, progress=progress, version=Job.version + 1)
        .returning(Job.cancel_requested_at, Job.claimed_by)
    )
    row = session.execute(statement, execution_options={"synchronize_session": False}).one_or_none()
    return None if row is None else (row[0], row[1])


def list_running(
    session: Session, *, silent_since: datetime | None = None, claimed_by: str | None = None
) -> Sequence[Job]:
    """Running jobs whose last heartbeat is older than ``silent_since``, or of one worker; plans are run by nobody."""
    statement = select(Job).where(Job.status == "running", Job.kind != "plan")
    if silent_since is not None:
        statement = statement.where(Job.heartbeat_at < silent_since)
    if claimed_by is not None:
        statement = statement.where(Job.claimed_by == claimed_by)
    return list(session.scalars(statement.order_by(Job.id)))


def list_undispatched(session: Session, now: datetime, wait_s: float, limit: int = 500) -> list[tuple[str, bool]]:
    """Queued jobs never sent, or sent and unclaimed for ``wait_s`` (later twice to 8 times that): id, and whether it
    was sent."""
    waits = [
        and_(
            Job.dispatches == n + 1 if n < 3 else Job.dispatches > n,
            Job.dispatched_at < now - timedelta(seconds=wait_s * 2**n),
        )
        for n in range(4)
    ]
    statement = select(Job.id, Job.dispatched_at).where(
        Job.status == "queued", Job.kind != "plan", or_(Job.dispatched_at.is_(None), *waits)
    )
    rows = session.execute(statement.order_by(Job.created_at, Job.id).limit(limit))
    return [(row.id, row.dispatched_at is not None) for row in rows]


def count_dispatched(session: Session) -> int:
    """Queued jobs whose message was sent: so many messages wait at the broker, where none was lost."""
    sent = select(func.count()).where(Job.status == "queued", Job.kind != "plan", Job.dispatched_at.is_not(None))
    return session.scalars(sent).one()


def mark_dispatched(session: Session, job_ids: Sequence[str], now: datetime) -> None:
    """Notes that messages were sent."""
    statement = update(Job).where(Job.id.in_(job_ids), Job.status == "queued")
    session.execute(
        statement.values(dispatched_at=now, dispatches=Job.dispatches + 1),
        execution_options={"synchronize_session": False},
    )


def forget_dispatch(session: Session, job_id: str) -> None:
    """The job's message is gone: it is to be sent again."""
    statement = update(Job).where(Job.id == job_id, Job.status == "queued").values(dispatched_at=None)
    session.execute(statement, execution_options={"synchronize_session": False})


def forget_dispatches(session: Session) -> None:
    """The broker's messages are gone: all that is queued is to be sent again."""
    statement = update(Job).where(Job.status == "queued").values(dispatched_at=None)
    session.execute(statement, execution_options={"synchronize_session": False})


def status_counts(session: Session) -> dict[str, int]:
    """Live jobs of all tenants by status, plans aside."""
    statement = select(Job.status, func.count()).where(Job.kind != "plan", Job.status.in_(LIVE)).group_by(Job.status)
    return {row[0]: row[1] for row in session.execute(statement)}


def oldest_queued_at(session: Session) -> datetime | None:
    """When the longest-waiting job was created."""
    return session.scalars(select(func.min(Job.created_at)).where(Job.status == "queued", Job.kind != "plan")).one()
