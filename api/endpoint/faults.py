"""What can go wrong between here and a server: refusals that end an experiment, and faults worth another try."""

from __future__ import annotations

from dataclasses import dataclass

from replay.errors import FieldError, SpecError

_SAID_CHARACTERS = 200


@dataclass
class PassingFaultError(Exception):
    """A fault that may be gone at the next try."""

    detail: str
    retry_after_s: float | None = None
    """How long the server asks to wait."""
    is_limit: bool = False
    """The server takes no more requests, or no more at once."""

    def __str__(self) -> str:
        return self.detail


def refusal(code: str, detail: str, cure: str, field: str = "endpoint") -> SpecError:
    """A refusal with the code ``endpoint.CODE``."""
    return SpecError(f"endpoint.{code}", detail, [FieldError(detail, field=field, cure=cure)])


def said(text: str, secret: str | None) -> str:
    """A server's own words, short, printable and without the key: servers may answer with what they were sent."""
    if secret:
        text = text.replace(secret, "***")
    plain = "".join(one if one.isprintable() else " " for one in text)
    plain = " ".join(plain.split())
    return plain if len(plain) <= _SAID_CHARACTERS else plain[: _SAID_CHARACTERS - 3] + "..."
