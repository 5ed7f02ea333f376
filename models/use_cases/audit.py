"""Audit rows: changes of keys, schedules and the catalogue."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from models.principal import Principal
from models.repositories import tenancy
from models.services import Services


def note(
    session: Session, principal: Principal, services: Services, action: str, subject_id: str, **detail: Any
) -> None:
    """Notes what the principal did, in the same transaction."""
    now = services.clock()
    tenancy.add_audit(session, principal.tenant_id, principal.key_id, action, subject_id, detail, now)
