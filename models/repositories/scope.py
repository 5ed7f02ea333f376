"""The tenant filter and keyset paging, used by every repository."""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy import Select, and_, or_, select
from sqlalchemy.orm import Session

from models.errors import NotFoundError
from models.paging import MAX_LIMIT, Cursor, Page, PageRequest
from models.tables import ApiKey, AuditEvent, CalibrationRow, CatalogueEntry, Job, Report, Schedule, ScheduleRun, Trace

TenantRow = TypeVar(
    "TenantRow", ApiKey, AuditEvent, CalibrationRow, CatalogueEntry, Job, Report, Schedule, ScheduleRun, Trace
)


def of_tenant(table: type[TenantRow], tenant_id: str) -> Select[TenantRow]:
    """A query over one tenant's rows: the only way that a repository starts one for tenant data."""
    return select(table).where(table.tenant_id == tenant_id)


def has_row(session: Session, table: type[TenantRow], tenant_id: str, row_id: str | None) -> bool:
    """Whether the tenant has this row."""
    return (
        row_id is not None
        and session.scalars(of_tenant(table, tenant_id).where(table.id == row_id)).first() is not None
    )


def get_row(session: Session, table: type[TenantRow], tenant_id: str, row_id: str, *, lock: bool = False) -> TenantRow:
    """One row of the tenant. Raises NotFoundError, also for another tenant's id."""
    statement = of_tenant(table, tenant_id).where(table.id == row_id)
    if lock:
        statement = statement.with_for_update().execution_options(populate_existing=True)
    row = session.scalars(statement).one_or_none()
    if row is None:
        noun = table.__tablename__.removesuffix("s").replace("_", " ")
        raise NotFoundError(f"there is no {noun} {row_id[:60]!r}", code=f"{noun.replace(' ', '_')}.not_found")
    return row


def page_of(
    session: Session, statement: Select[TenantRow], table: type[TenantRow], page: PageRequest
) -> Page[TenantRow]:
    """A page of a query, newest first."""
    limit = max(1, min(page.limit, MAX_LIMIT))
    if page.after is not None:
        older: Any = or_(
            table.created_at < page.after.created_at,
            and_(table.created_at == page.after.created_at, table.id < page.after.id),
        )
        statement = statement.where(older)
    rows = list(session.scalars(statement.order_by(table.created_at.desc(), table.id.desc()).limit(limit + 1)))
    items = rows[:limit]
    more = len(rows) > limit
    return Page(items, Cursor(items[-1].created_at, items[-1].id) if more else None)
