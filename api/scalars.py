"""Values of ``key=value`` settings, as the command line and the forms of the pages take them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replay.specs import Scalar


def scalar(text: str) -> Scalar:
    """``"256"`` -> 256, ``"0.9"`` -> 0.9, ``"true"`` -> True, other text stays text."""
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
