"""API keys."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from api.schemas.common import Body, Label, Out
from models.principal import Scope
from models.tables import ApiKey
from models.use_cases.keys import IssuedKey

_MAX_DAYS = 3650


class KeyRequest(Body):
    """A new key of this tenant."""

    name: Annotated[Label, Field(min_length=1)]
    scopes: frozenset[Scope] = Field(min_length=1, max_length=4)
    expires_in_days: int | None = Field(default=None, ge=1, le=_MAX_DAYS, description="null: it does not expire")


class RotateRequest(Body):
    """How long the old key still works beside the new one."""

    grace_hours: int = Field(default=24, ge=0, le=24 * 30)


class KeyOut(Out):
    """A key, without its secret."""

    id: str
    name: str
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    replaced_by: str | None

    @classmethod
    def of(cls, row: ApiKey) -> KeyOut:
        """From the stored row."""
        return cls.model_validate({name: getattr(row, name) for name in KeyOut.model_fields})


class IssuedKeyOut(KeyOut):
    """A new key. ``key`` is its text, shown this once; a repeated request gets null."""

    key: str | None

    @classmethod
    def of_issued(cls, issued: IssuedKey) -> IssuedKeyOut:
        """From the stored row and the text."""
        return cls.model_validate({**KeyOut.of(issued.key).model_dump(), "key": issued.text})

    def without_secret(self) -> IssuedKeyOut:
        """As a repeat sees it."""
        return self.model_copy(update={"key": None})
