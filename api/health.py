"""``/healthz``: this process answers. ``/readyz``: what it needs works."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from api.deps import Context
from api.schemas.common import problems
from models.errors import UnavailableError
from replay.errors import FieldError

router = APIRouter(tags=["health"])


class Health(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class CheckOut(BaseModel):
    """One thing that the service needs."""

    name: str
    ok: bool
    detail: str


class Readiness(BaseModel):
    """Everything that the service needs, and whether it works."""

    status: Literal["ready"] = "ready"
    checks: list[CheckOut]


@router.get("/healthz", operation_id="get_health", summary="Whether this process answers")
def get_health() -> Health:
    """Asks nothing else."""
    return Health()


@router.get(
    "/readyz", operation_id="get_readiness", responses=problems(503, always=()), summary="Whether the service can work"
)
def get_readiness(context: Context) -> Readiness:
    """Database, schema, broker, blob store; workers are told, not required."""
    checks = context.readiness.checks()
    failed = [FieldError(check.detail, field=check.name) for check in checks if not check.ok]
    if failed:
        names = ", ".join(str(fault.field) for fault in failed)
        raise UnavailableError(f"not ready: {names}", code="not_ready", errors=failed, retry_after_s=5)
    return Readiness(checks=[CheckOut(name=check.name, ok=check.ok, detail=check.detail) for check in checks])
