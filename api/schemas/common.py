"""Types that several answers share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from api.deps import LABEL
from api.problems import Problem
from replay.specs_base import Spec

Label = Annotated[str, StringConstraints(max_length=200, pattern=LABEL)]
"""A name for people."""
StreamName = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$")]
"""A stream's label."""
TraceIdText = Annotated[str, StringConstraints(pattern=r"^trc_[0-9a-f]{32}$")]


class Body(Spec):
    """A request's body: immutable, unknown fields refused, no NaN and no infinity."""


class Out(BaseModel):
    """An answer: every field is always there; null is *not known* or *not yet*."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _short_strings(value: dict[str, Any]) -> dict[str, Any]:
    pending: list[Any] = [value]
    count = 0
    while pending:
        item = pending.pop()
        count += 1
        if count > 20_000:
            raise ValueError("more than 20000 values")
        if isinstance(item, str) and len(item) > 2000:
            raise ValueError("a text is longer than 2000 characters")
        if isinstance(item, dict):
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return value


BoundedObject = Annotated[dict[str, Any], Field(max_length=2000), AfterValidator(_short_strings)]
"""A JSON object of the user's own shape, bounded."""

_TITLES = {
    400: "The request is malformed",
    401: "No valid API key",
    403: "The key lacks the scope, or the request comes from another site",
    404: "Not found, or another tenant's",
    406: "No form that the client accepts",
    409: "The resource's state forbids it; Retry-After says when to try again, where waiting helps",
    412: "If-Match names an old version",
    413: "The body is too large",
    415: "The body has another type than the route reads",
    421: "Local mode, asked under a foreign host name",
    422: "The request cannot be carried out as written; errors[] names each field and its cure",
    428: "If-Match is missing",
    429: "A limit is reached; Retry-After says when to try again",
    500: "Unforeseen; the request id leads to it in the log",
    503: "A part of the service is down",
}
_ALWAYS = (401, 403, 421, 422, 429, 500)


def problems(*statuses: int, always: tuple[int, ...] = _ALWAYS) -> dict[int | str, dict[str, Any]]:
    """The error answers of a route for the OpenAPI file: these, and those that every route under ``/v1`` has."""
    return {
        status: {
            "description": _TITLES[status],
            "model": Problem,
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in sorted({*statuses, *always})
    }
