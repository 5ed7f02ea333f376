"""Errors of the domain: each names the field and the cure, so that every surface can print it as it stands."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class FieldError:
    """One fault: where it is (``field``, or ``line`` and ``column`` of a file), the rule it breaks, and the cure."""

    detail: str
    field: str | None = None
    line: int | None = None
    column: str | None = None
    rule: str | None = None
    cure: str | None = None


@dataclass
class ReplayError(Exception):
    """Base of all domain errors. ``code`` is stable and machine-readable; ``detail`` is a sentence for the user."""

    code: str
    detail: str
    errors: list[FieldError] = field(default_factory=list)

    def __str__(self) -> str:
        return self.detail


class SpecError(ReplayError):
    """A request that cannot be carried out as written: unknown key, invalid knob, contradictory options."""


class TraceError(ReplayError):
    """A trace file that cannot be read honestly."""


def curable(
    code: str,
    what: str,
    cure: str,
    field: str,
    *,
    rule: str | None = None,
    line: int | None = None,
    column: str | None = None,
) -> TraceError:
    """A TraceError of one fault whose sentence ends in its one cure. ``rule``: by default the last part of ``code``."""
    rule = rule or code.rpartition(".")[2]
    fault = FieldError(cure, field=field, line=line, column=column, rule=rule, cure=cure)
    return TraceError(code, f"{what}; {cure}", [fault])
