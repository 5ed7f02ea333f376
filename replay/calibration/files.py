"""Measurement files as a load generator or a user wrote them: read whole within bounds, by their content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from replay.calibration.request import MAX_BYTES
from replay.errors import FieldError, TraceError
from replay.traces.options import Limits
from replay.traces.source import Source

_BOM = b"\xef\xbb\xbf"


def refusal(code: str, detail: str, cure: str, *, row: int | None = None, column: str | None = None) -> TraceError:
    """A refusal of measurements; ``row`` counts from 0."""
    line = None if row is None else row + 1
    fault = FieldError(detail, field="measurements", line=line, column=column, cure=cure)
    return TraceError(f"calibration.{code}", detail, [fault])


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Refusals within name the file: a form has up to 20 of them."""
    try:
        yield
    except TraceError as error:
        if path.name in error.detail:
            raise
        faults = [replace(one, detail=f"{path.name}: {one.detail}") for one in error.errors]
        raise TraceError(error.code, f"{path.name}: {error.detail}", faults) from error


def head(path: Path) -> bytes:
    """The first block of the content, decompressed; ``PAR1...`` for Parquet."""
    source = Source(path, Limits())
    if source.is_parquet:
        return source.magic
    return next(source.blocks()).removeprefix(_BOM).lstrip()


def content(path: Path) -> bytes:
    """The whole content, decompressed.

    Raises:
        TraceError: ``trace.too_large`` and the other refusals of ``Source``.
    """
    return b"".join(Source(path, Limits(max_decompressed_bytes=MAX_BYTES)).blocks()).removeprefix(_BOM)


def json_documents(data: bytes) -> Iterator[Any]:
    """The JSON document of a file, or one of each line; none where it is not JSON."""
    try:
        yield json.loads(data)
    except (ValueError, RecursionError):
        for line in data.splitlines():
            try:
                yield json.loads(line or b"null")
            except (ValueError, RecursionError):
                return
