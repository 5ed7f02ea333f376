"""Start a replay of one deployment."""

from __future__ import annotations

from sqlalchemy.orm import Session

from models.jobs import StartedJob
from models.principal import Principal
from models.services import Services
from replay.specs import ReplaySpec


def start_replay(
    session: Session,
    principal: Principal,
    services: Services,
    trace_id: str,
    spec: ReplaySpec,
    *,
    name: str = "",
    request_id: str | None = None,
) -> StartedJob:
    """Resolves ``spec`` with the tenant's catalogue and inserts the job, or finds an equal one.

    Raises NotFoundError, ConflictError (trace not ready), LimitError, and the domain's SpecError.
    """
    raise NotImplementedError
