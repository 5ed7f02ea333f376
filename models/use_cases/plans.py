"""Start a plan: a parent job and one child for each candidate."""

from __future__ import annotations

from sqlalchemy.orm import Session

from models.jobs import StartedJob
from models.principal import Principal
from models.services import Services
from replay.specs import PlanSpec


def start_plan(
    session: Session,
    principal: Principal,
    services: Services,
    trace_id: str,
    spec: PlanSpec,
    *,
    schedule_id: str | None = None,
    request_id: str | None = None,
) -> StartedJob:
    """Resolves ``spec`` with the tenant's catalogue and inserts parent and children in this transaction.

    ``StartedJob(job, created)``: ``created`` is False where an equal plan is live or has succeeded; then that is ``job``.
    Raises NotFoundError, ConflictError (trace not ready), LimitError, and the domain's SpecError.
    """
    raise NotImplementedError
