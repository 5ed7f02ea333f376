"""Query parameters of an upload -> the domain's ``IngestOptions``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Query
from pydantic import StringConstraints, ValidationError

from api.deps import LABEL, CurrentServices
from models.errors import InvalidError
from models.settings import Settings
from replay.faults import plain_faults
from replay.traces.options import (
    ClockRestarts,
    Ids,
    IngestOptions,
    Limits,
    RepeatedHour,
    TimeUnit,
    TurnLengths,
    parse_mapping,
)

_Pair = Annotated[str, StringConstraints(max_length=400, pattern=LABEL)]


@dataclass(frozen=True)
class UploadParameters:
    """What the client says about a file."""

    name: str
    stream: str | None
    options: IngestOptions


def upload_parameters(
    services: CurrentServices,
    name: Annotated[str, Query(max_length=200, pattern=LABEL, description="Label for people")] = "",
    stream: Annotated[
        str | None,
        Query(
            max_length=100,
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$",
            description="Label under which later uploads continue this one",
        ),
    ] = None,
    format: Annotated[  # noqa: A002 - the parameter's public name
        str | None,
        Query(max_length=100, pattern=r"^[a-z0-9][a-z0-9_.-]*$", description="Empty: detected from the content"),
    ] = None,
    map: Annotated[  # noqa: A002 - the parameter's public name
        list[_Pair] | None, Query(max_length=20, description="FIELD=COLUMN, repeatable, e.g. map=arrival=ts")
    ] = None,
    time_unit: Annotated[TimeUnit | None, Query(description="Unit of numeric times")] = None,
    zone: Annotated[
        str | None,
        Query(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+/-]*$", description="IANA zone of times without one"),
    ] = None,
    year: Annotated[int | None, Query(ge=2000, le=2099, description="Year of a log whose times have none")] = None,
    repeated_hour: Annotated[
        RepeatedHour, Query(description="Which hour a local time means that daylight saving repeats")
    ] = "refuse",
    clock_restarts: Annotated[
        ClockRestarts,
        Query(description="Files were joined: each part is to follow the one before, or their times overlap"),
    ] = "refuse",
    keep_far_off: Annotated[bool, Query(description="The few rows far in time from all others are real")] = False,
    prompt_includes_cached: Annotated[
        bool | None, Query(description="Whether prompt tokens count cached ones, where the file does not settle it")
    ] = None,
    rows_are_requests: Annotated[
        bool, Query(description="Every row is one request, though it looks like a sum")
    ] = False,
    keep_duplicates: Annotated[
        bool,
        Query(description="Rows that are equal, or share an id, are different requests, though most rows have a twin"),
    ] = False,
    ignore_status: Annotated[
        bool, Query(description="Columns that seem to tell failed calls from good ones do not")
    ] = False,
    turn_lengths: Annotated[
        TurnLengths | None,
        Query(description="What lengths of later turns of a session count: the whole prompt, or what a turn added"),
    ] = None,
    block_size: Annotated[int | None, Query(ge=1, le=65_536, description="Tokens of one prefix block")] = None,
    max_rejected_share: Annotated[float, Query(ge=0, le=1, description="A larger share of bad rows is refused")] = 0.05,
    ids: Annotated[
        Ids, Query(description="hash: tenant and session ids become labels by a keyed hash; keep: they stay")
    ] = "hash",
) -> UploadParameters:
    """Reads the parameters. Raises SpecError for a bad mapping, InvalidError for a value that the options refuse."""
    values = {
        "format": format,
        "mapping": parse_mapping(map or ()),
        "time_unit": time_unit,
        "time_zone": zone,
        "year": year,
        "repeated_hour": repeated_hour,
        "clock_restarts": clock_restarts,
        "keep_far_off": keep_far_off,
        "prompt_includes_cached": prompt_includes_cached,
        "rows_are_requests": rows_are_requests,
        "keep_duplicates": keep_duplicates,
        "ignore_status": ignore_status,
        "turn_lengths": turn_lengths,
        "block_size": block_size,
        "max_rejected_share": max_rejected_share,
        "ids": ids,
        "limits": ingest_limits(services.settings),
    }
    try:
        options = IngestOptions.model_validate(values)
    except ValidationError as error:
        faults = [
            replace(fault, field=_PARAMETERS.get(str(fault.field).split(".")[0], fault.field))
            for fault in plain_faults(error.errors())
        ]
        raise InvalidError(faults[0].detail, code="upload.options", errors=faults) from None
    return UploadParameters(name=name, stream=stream, options=options)


_PARAMETERS = {"mapping": "map", "time_zone": "zone"}


def ingest_limits(settings: Settings) -> Limits:
    """The installation's bounds on what a file may unfold into."""
    return Limits(
        max_decompressed_bytes=settings.ingest_max_decompressed_bytes,
        max_ratio=settings.ingest_max_ratio,
        max_rows=settings.ingest_max_rows,
        max_line_bytes=settings.ingest_max_line_bytes,
        max_columns=settings.ingest_max_columns,
    )
