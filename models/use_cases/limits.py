"""The limits of a tenant: its own, else the settings'."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from models.errors import LimitError
from models.principal import Principal
from models.repositories import blobs as blob_rows
from models.repositories import jobs as job_rows
from models.repositories import tenancy
from models.services import Services


@dataclass(frozen=True)
class TenantLimits:
    """What one tenant may use."""

    requests_per_minute: int
    max_live_jobs: int
    max_stored_bytes: int


def limits_of(session: Session, principal: Principal, services: Services) -> TenantLimits:
    """The limits that bind this principal."""
    tenant = tenancy.get_tenant(session, principal.tenant_id)
    settings = services.settings
    return TenantLimits(
        requests_per_minute=tenant.requests_per_minute or settings.requests_per_minute,
        max_live_jobs=tenant.max_live_jobs or settings.max_live_jobs,
        max_stored_bytes=tenant.max_stored_bytes or settings.max_stored_bytes,
    )


def check_stored_bytes(session: Session, principal: Principal, services: Services, more: int = 1) -> int:
    """The bytes that the tenant has left. Raises LimitError where ``more`` would be too many."""
    left = limits_of(session, principal, services).max_stored_bytes - blob_rows.stored_bytes(
        session, principal.tenant_id
    )
    if more > left:
        raise stored_bytes_error()
    return left


def stored_bytes_error() -> LimitError:
    """The tenant's storage is used up."""
    return LimitError(
        "the stored traces and reports would exceed this tenant's limit: delete some first",
        code="limit.stored_bytes",
        retry_after_s=3600,
    )


def check_live_jobs(session: Session, principal: Principal, services: Services) -> None:
    """Raises LimitError where one more job would be too many."""
    limit = limits_of(session, principal, services).max_live_jobs
    if job_rows.count_live(session, principal.tenant_id) >= limit:
        raise LimitError(
            f"{limit} jobs are queued or running already: wait for some, or cancel them",
            code="limit.live_jobs",
            retry_after_s=10,
        )
