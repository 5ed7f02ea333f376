"""Names of columns as words: ``inputTokens`` and ``Input-Tokens`` are both ``input_tokens``."""

from __future__ import annotations

import re


def snake(name: str) -> str:
    """A name in lower case, its words set apart by underscores."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())


def leaf(column: str) -> str:
    """The last part of a column's name (``usage.inputTokens``: ``input_tokens``)."""
    return snake(column.rsplit(".", 1)[-1])
