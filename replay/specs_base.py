"""What all specs have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError


class Spec(BaseModel):
    """Common behaviour of all specs: immutable, unknown fields refused, no NaN and no infinity, and no true or false
    for a number: pydantic would read them as 1 and 0."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
        if any(one is True or one is False for one in values):
            kind = str(cls.model_fields[info.field_name or ""].annotation)
            if "bool" not in kind and ("int" in kind or "float" in kind):
                raise PydanticKnownError("float_type")
        return value
