"""Who asks: the tenant, and what the key in use may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from models.errors import ForbiddenError

Scope = Literal["traces:write", "jobs:write", "reports:read", "admin"]
SCOPES: frozenset[str] = frozenset(get_args(Scope))
LOCAL_TENANT_ID = "tnt_00000000000000000000000000000001"
"""The tenant that the first migration creates: embedded mode and the first administrator live in it."""


@dataclass(frozen=True)
class Principal:
    """The tenant a request acts for, the scopes it holds, and the API key it came with (``None``: local or a job).

    ``traces:write`` uploads and deletes traces; ``jobs:write`` starts and cancels replays, plans and schedules, and
    adds catalogue entries; ``reports:read`` reads everything; ``admin`` also manages keys, and implies the others.
    """

    tenant_id: str
    scopes: frozenset[str]
    key_id: str | None = None

    def require(self, scope: Scope) -> None:
        """Raises ForbiddenError unless the principal holds ``scope`` (or ``admin``)."""
        if scope not in self.scopes and "admin" not in self.scopes:
            raise ForbiddenError(f"this key lacks the scope {scope!r}", code="forbidden.scope")


def local_principal(tenant_id: str = LOCAL_TENANT_ID) -> Principal:
    """The principal of embedded mode, of the command line and of schedules: every scope, no key."""
    return Principal(tenant_id=tenant_id, scopes=SCOPES)
