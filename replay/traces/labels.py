"""Keyed labels in place of ids. No polars here: the use cases that take a tenant's name from a user import this."""

from __future__ import annotations

import hmac
import re

NO_LABEL = "(none)"
"""Stands for requests without a tenant, priority or session."""
PREFIXES = {"tenant": "t_", "session": "s_"}
"""Canonical columns that hold ids, and how their labels begin."""
_DIGITS = 16
"""Hex digits of a label: 64 bits, so that a hundred million sessions do not fall together."""
_LABEL = re.compile(rf"[ts]_[0-9a-f]{{{_DIGITS}}}")


def label(key: bytes, column: str, name: str) -> str:
    """The first 64 bits of HMAC-SHA256 over the column's name and the id."""
    digest = hmac.digest(key, f"{column}\0{name}".encode(), "sha256")
    return PREFIXES[column] + digest.hex()[:_DIGITS]


def is_label(name: str) -> bool:
    """Whether the name looks like a label."""
    return _LABEL.fullmatch(name) is not None


def tenant_label(key: bytes, name: str) -> str:
    """The label of a tenant that a user may name by the label or by the id that the file had."""
    return name if is_label(name) else label(key, "tenant", name)
