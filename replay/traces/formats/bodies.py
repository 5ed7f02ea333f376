"""Bodies of answers as capture logs keep them: JSON, JSON as text, base64, or the events of a stream.

Only the counts, the model and how it ended are taken out; texts are never kept.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from replay.traces.formats.usage import is_usage
from replay.traces.formats.values import known, obj


def decoded(data: Any, encoding: Any = None) -> Any:
    """The body as text or object; ``None`` where it cannot be decoded."""
    if isinstance(data, str) and str(encoding or "").upper() == "BASE64":
        try:
            return base64.b64decode(data, validate=True).decode("utf-8")
        except (binascii.Error, ValueError):
            return None
    return data


def answer(body: Any) -> dict[str, Any]:
    """The answer's object. Of a stream's events, the last with usage over what the first ones say; else empty."""
    found = obj(body)
    if found or not isinstance(body, str):
        return found
    merged: dict[str, Any] = {}
    for line in body.splitlines():
        written = line.strip().removeprefix("data:").strip()
        event = obj(written) if written.startswith("{") else {}
        for key in ("id", "model", "error", "created"):
            if known(event.get(key)):
                merged[key] = event[key]
        started = obj(
            event.get("message")
        )  # Anthropic: message_start holds the input's counts, message_delta the output's
        for usage in (obj(started.get("usage")), obj(event.get("usage"))):
            if usage:
                merged["usage"] = {**obj(merged.get("usage")), **{k: v for k, v in usage.items() if known(v)}}
        if known(started.get("model")):
            merged["model"] = started["model"]
    return merged


def usage_in(body: Any) -> dict[str, Any]:
    """The usage object of an answer, also one or two levels down (``response.body.usage``); else empty."""
    found = answer(body)
    for path in ((), ("response",), ("body",), ("response", "body"), ("message",), ("result", "message")):
        at = found
        for key in path:
            at = obj(at.get(key))
        usage = first_usage(at)
        if usage:
            return usage
    return {}


def first_usage(holder: dict[str, Any]) -> dict[str, Any]:
    """``usage`` or Gemini's ``usageMetadata`` of an object; else empty."""
    for name in ("usage", "usageMetadata", "usage_metadata"):
        usage = obj(holder.get(name))
        if is_usage(usage):
            return usage
    return {}
