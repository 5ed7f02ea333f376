"""What an ingest answers: the cleaning report, the profile, and how the format was decided. Plain data, no polars."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Document(BaseModel):
    """JSON-able, immutable, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Rejection(Document):
    """One row that was not kept: where, which rule, what would cure it. ``line`` counts from 1, header included."""

    line: int
    column: str | None
    rule: str
    cure: str
    value: str | None = None
    """The beginning of what the file has there, where the row could be taken apart."""


class Gap(Document):
    """A long time without arrivals, and what it is taken for."""

    start_s: float
    """Of the last request before it, from the earliest one."""
    length_s: float
    kind: Literal["outage", "idle", "unclear"]
    expected_requests: float
    """Requests that the lower of the rates just before and after makes likely within it."""
    evidence: str


class CleaningReport(Document):
    """Every row is accounted for: ``rows_read == rows_kept + sum(rejected_by_rule.values())``."""

    rows_read: int
    rows_kept: int
    rows_rejected: int
    rejected_by_rule: dict[str, int]
    rejections: list[Rejection]
    """The first 100, in file order."""
    blank_lines: int
    not_requests: dict[str, int] = Field(default_factory=dict)
    """Records that are no requests (tool calls, spans around calls), by kind; no rows in the sense above."""
    time_unit: str
    """What the arrival column was read as: ``s``, ``ms``, ``us``, ``ns`` or ``calendar``."""
    time_zone: str | None
    """The zone calendar times were read in; ``None`` where times are relative."""
    rows_moved_by_sorting: int
    """Rows that came after a row with a later arrival."""
    largest_gap_s: float
    largest_gap_after_s: float
    """When the largest gap begins, from the earliest request."""
    gaps: list[Gap] = Field(default_factory=list)
    """Gaps that stand out against the traffic around them, in the order of time."""
    mean_rps_without_outages: float | None = None
    """Mean rate over the time that no gap of the kind ``outage`` takes; ``None`` where there is none."""
    share_missing_prompt_tokens: float
    share_missing_output_tokens: float
    zero_prompt_tokens: int
    zero_output_tokens: int
    """Rows that said 0: kept as arrivals, with the length unknown."""
    clock_resolution_s: float | None
    """Smallest step between two different arrivals; ``None`` with fewer than two."""
    tied_requests: int
    """Requests that share their arrival with the one before."""
    closed_loop_requests: int
    """Requests that start when another has ended; they may have a time of their own, which the old system gave them."""
    retries_by_id: int = 0
    """Requests whose id an earlier one had, at another time."""
    retries_after_failure: int = 0
    """Requests whose session sent a prompt of the same length within the ten minutes before, which failed."""
    cancel_times: int | None = None
    """Requests of which it is known when their clients left, or would have; ``None`` in older reports."""
    status_counts: dict[str, int]
    warnings: list[str]


class LengthProfile(Document):
    """Distribution of a length in tokens over the requests that state it. Percentiles are numpy-linear."""

    n: int
    mean: float | None
    min: int | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: int | None
    total: int


class Timing(Document):
    """Distribution of a time over the requests that have it; each time is kept to 11 significant bits (0.05 %)."""

    n: int
    mean_s: float
    p50_s: float
    p90_s: float
    p95_s: float
    p99_s: float
    max_s: float


class OverLength(Document):
    """Requests whose prompt and output together are longer than a context length that models of the catalogue have."""

    max_model_len: int
    requests: int
    share: float
    """Of the requests that state both lengths."""


class SessionProfile(Document):
    """Turns of sessions, and the times between them. Definitions: docs/metrics.md."""

    sessions: int
    requests: int
    """Those with a session."""
    single_turn: int
    """Sessions of one request."""
    turns: LengthProfile
    """Requests per session."""
    between_starts: Timing | None
    """From one request of a session to the next."""
    think_time: Timing | None
    """From the end of one request of a session to the next; only where the source says when requests ended."""
    overlapping: int
    """Requests that came before the one before them in their session had ended: no think time."""


class CacheSize(Document):
    """What a prefix cache of one size would serve: least recently used blocks leave it."""

    blocks: int
    tokens: int
    reused_share_of_prompt_tokens: float


class PrefixProfile(Document):
    """Reuse of prompt prefixes with a cache that never evicts: the most that prefix caching could save."""

    block_size_tokens: int
    scope: str
    blocks: int
    distinct_blocks: int
    reused_blocks: int
    """Leading blocks of a prompt that an earlier request had."""
    reusable_share_of_prompt_tokens: float
    requests_with_blocks: int
    by_cache_size: list[CacheSize] | None = None
    """For powers of two up to all different blocks; ``None``: ids of a scope of their own, or an older report."""


class LengthCell(Document):
    """Requests whose lengths lie in ``[prompt_from, 2 * prompt_from)`` and ``[output_from, 2 * output_from)``."""

    prompt_from: int
    output_from: int
    requests: int


class TenantShare(Document):
    """One tenant's part of the load."""

    tenant: str
    requests: int
    share: float


class SeriesBin(Document):
    """Requests and tokens that arrive in one bin of the series; ``start_s`` from the earliest request."""

    start_s: float
    requests: int
    prompt_tokens: int
    output_tokens: int


class Series(Document):
    """Load over time in at most 300 equal bins."""

    bin_s: float
    bins: list[SeriesBin]


class HeatCell(Document):
    """Requests by local weekday (0 = Monday) and hour."""

    weekday: int
    hour: int
    requests: int


class TraceProfile(Document):
    """What the traffic looks like. Definitions: docs/metrics.md."""

    requests: int
    span_s: float
    """First to last arrival."""
    start_utc: str | None
    """ISO time of the earliest request, where the file says."""
    mean_rps: float | None
    peak_rps_1s: float | None
    peak_rps_1min: float | None
    peak_rps_1h: float | None
    """Largest count in any window of that length (sliding, not aligned), over the length. ``None``: trace shorter."""
    gap_cv: float | None
    """Standard deviation over mean of the gaps between arrivals: 1 for Poisson."""
    dispersion_1s: float | None
    dispersion_1min: float | None
    """Variance over mean of counts in aligned bins: 1 for Poisson."""
    prompt_tokens: LengthProfile
    output_tokens: LengthProfile
    joint_lengths: list[LengthCell] = []
    """Prompts and outputs together, over the requests that state both; cells without any are left out."""
    cached_tokens: LengthProfile | None
    """What the old system served from its cache: a fact about it, not about the new cluster."""
    reasoning_tokens: LengthProfile | None
    prefix: PrefixProfile | None
    tenants: int
    top_tenants: list[TenantShare]
    """The 100 with most requests."""
    sessions: int
    session_profile: SessionProfile | None = None
    over_length: list[OverLength] = []
    """For each context length of the shipped catalogue's models."""
    models: dict[str, int]
    """Requests by model, the 20 largest."""
    heat_map: list[HeatCell] | None
    heat_map_zone: str | None
    series: Series
    source_ttft: Timing | None = None
    source_e2e: Timing | None = None
    source_queue: Timing | None = None
    """What the old system measured; never mixed with simulated figures."""

    def longer_than(self, max_model_len: int) -> tuple[int, int]:
        """Requests longer than this, at least and at most: equal for a length of ``over_length``, else the counts of
        the lengths around it. Requests without both lengths do not count."""
        both = sum(cell.requests for cell in self.joint_lengths)
        at_least = max((one.requests for one in self.over_length if one.max_model_len >= max_model_len), default=0)
        at_most = min((one.requests for one in self.over_length if one.max_model_len <= max_model_len), default=both)
        return at_least, at_most

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, values: Any) -> Any:
        """Reports stored before percentiles were kept have medians alone: of no use beside ``source_ttft``."""
        old = {"source_e2e_p50_s", "source_ttft_p50_s"}
        return (
            {name: value for name, value in values.items() if name not in old} if isinstance(values, dict) else values
        )


class IngestReport(Document):
    """Everything an ingest learned. Stored with the trace and shown on every surface."""

    format: str
    title: str
    why: str
    """Why the content was taken for this format."""
    assumed: dict[str, str]
    """What was decided for the user: container, columns, unit, zone, block size, compression."""
    requests: int
    prompt_tokens: int
    output_tokens: int
    """Sums over kept requests."""
    span_s: float
    cleaning: CleaningReport
    profile: TraceProfile
    canonical_version: int
    warnings: list[str] = Field(default_factory=list)


def ingest_answer(report: IngestReport) -> dict[str, Any]:
    """The JSON object of ``capreplay ingest --json``: exactly these keys, in this order."""
    cleaning = report.cleaning
    return {
        "format": report.format,
        "assumed": dict(report.assumed),
        "rows_read": cleaning.rows_read,
        "rows_kept": cleaning.rows_kept,
        "rows_rejected": cleaning.rows_rejected,
        "rejections": [{"line": r.line, "column": r.column, "rule": r.rule} for r in cleaning.rejections],
        "requests": report.requests,
        "prompt_tokens": report.prompt_tokens,
        "output_tokens": report.output_tokens,
        "span_s": report.span_s,
        "warnings": list(report.warnings),
    }
