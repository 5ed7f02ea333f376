"""What a user may say about a trace file: format, columns, units, limits. No polars: ``api`` imports it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args
from zoneinfo import ZoneInfo

from pydantic import Field, field_validator

from replay.errors import FieldError, SpecError
from replay.specs_base import Spec

TimeUnit = Literal["s", "ms", "us", "ns"]
TIME_UNITS: tuple[TimeUnit, ...] = get_args(TimeUnit)

Ids = Literal["keep", "hash"]
"""What becomes of tenant and session ids."""

RepeatedHour = Literal["refuse", "first", "second", "order"]
"""What a local time means that daylight saving repeats."""

ClockRestarts = Literal["refuse", "follow", "overlap"]
"""How the parts of a file belong together whose clock starts again in the middle."""

TurnLengths = Literal["whole", "added"]
"""Whether a turn's prompt length counts the turns before it."""

MappedField = Literal[
    "arrival",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "model",
    "tenant",
    "session",
    "priority",
    "status",
    "cancel_after",
    "prefix_blocks",
]
MAPPED_FIELDS: tuple[MappedField, ...] = get_args(MappedField)
REQUIRED_FIELDS: tuple[MappedField, ...] = ("arrival", "prompt_tokens", "output_tokens")


class Limits(Spec):
    """Bounds on what a file may unfold into. All are counted while reading; no header is trusted."""

    max_decompressed_bytes: int = Field(default=64 * 2**30, ge=1)
    max_ratio: float = Field(default=200.0, ge=1)
    """Decompressed over compressed bytes, looked at once 16 MiB have come out."""
    max_rows: int = Field(default=200_000_000, ge=1)
    max_line_bytes: int = Field(default=16 * 2**20, ge=64, le=256 * 2**20)
    max_document_bytes: int = Field(default=64 * 2**20, ge=64, le=1024 * 2**20)
    """One JSON object that goes over several lines, such as a whole report."""
    max_columns: int = Field(default=500, ge=1, le=10_000)
    max_tokens_per_request: int = Field(default=16_777_216, ge=1, le=2**40)
    max_output_tokens_per_request: int = Field(default=1_048_576, ge=1, le=2**40)
    """Of output and reasoning tokens: more are likelier a wrong column, or a mark for "unknown" such as 9,999,999."""
    max_text_length: int = Field(default=1_000, ge=1, le=1_000_000)
    """Characters of a model, tenant, session, priority or status."""
    max_blocks_per_request: int = Field(default=1_048_576, ge=1)


class IngestOptions(Spec):
    """How to read one trace file. The default asks for nothing: the content decides, and doubt is an error."""

    format: str | None = Field(default=None, max_length=100)
    """A format's name (docs/traces.md); ``None``: detected from the content, never from the file's name."""
    mapping: dict[MappedField, str] = Field(default_factory=dict)
    """Canonical field -> column of the file (``a.b`` reaches into nested JSON). Given: read as ``generic``."""
    time_unit: TimeUnit | None = None
    """Unit of numeric times, where the format does not fix it."""
    time_zone: str | None = Field(default=None, max_length=100)
    """IANA zone of times that carry no zone; ``None``: the format's own, else such times are refused."""
    year: int | None = Field(default=None, ge=2000, le=2099)
    """Year of the first line of a log whose times have none; ``None``: its times count from its beginning."""
    repeated_hour: RepeatedHour = "refuse"
    """Local times in the hour that daylight saving repeats: the ``first`` or the ``second`` of the two, or by the
    file's ``order`` (the second from the row on where the clock goes back)."""
    clock_restarts: ClockRestarts = "refuse"
    """Files were joined: each part is to ``follow`` the one before, or their times ``overlap`` as they stand."""
    keep_far_off: bool = False
    """Said by the user: the few rows that lie far in time from all others are real."""
    prompt_includes_cached: bool | None = None
    """Whether the column of prompt tokens counts those read from a cache, where names and numbers do not settle it."""
    rows_are_requests: bool = False
    """Said by the user: every row is one request, though the file looks like sums over many."""
    keep_duplicates: bool = False
    """Said by the user: rows that are equal in all they say, or share an id, are different requests."""
    ignore_status: bool = False
    """Said by the user: columns that seem to tell failed calls from good ones do not."""
    turn_lengths: TurnLengths | None = None
    """What the lengths of a later turn count in a file of sessions: its ``whole`` prompt, or what it has ``added``."""
    block_size: int | None = Field(default=None, ge=1, le=65_536)
    """Tokens of one prefix block, where the format does not fix it."""
    max_rejected_share: float = Field(default=0.05, ge=0, le=1)
    """A larger share of rejected rows fails the ingest."""
    ids: Ids = "keep"
    """``hash``: tenants and sessions become labels by a keyed hash (``replay.traces.pseudonyms``), and messages show
    rejected cells as shapes. The service's default; the local command line keeps ids, as nothing leaves the machine."""
    limits: Limits = Limits()

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, name: str | None) -> str | None:
        if name is not None:
            try:
                ZoneInfo(name)
            except (ValueError, OSError, KeyError) as error:
                raise ValueError(
                    f"unknown time zone {name!r}; give an IANA name such as Europe/Berlin or UTC"
                ) from error
        return name


def parse_mapping(pairs: Iterable[str]) -> dict[MappedField, str]:
    """Reads ``arrival=ts`` pairs, as the command line gives them.

    Raises:
        SpecError: for a pair without ``=``, an unknown or repeated field, or an empty column.
    """
    mapping: dict[MappedField, str] = {}
    for pair in pairs:
        name, equals, column = pair.partition("=")
        field = next((known for known in MAPPED_FIELDS if known == name.strip()), None)
        cure = f"write FIELD=COLUMN with FIELD one of {', '.join(MAPPED_FIELDS)}"
        if not equals or not column.strip() or field is None:
            raise SpecError(
                "map.syntax", f"cannot read the mapping {pair!r}", [FieldError(cure, field="map", cure=cure)]
            )
        if field in mapping:
            raise SpecError("map.repeated", f"{field} is mapped twice", [FieldError(cure, field="map", cure=cure)])
        mapping[field] = column.strip()
    return mapping
