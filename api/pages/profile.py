"""A trace's cleaning report and profile as tables and charts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from api.reports import figures
from api.reports.sections import Chart
from api.reports.tables import Cell, Column, Table
from replay.hardware.entries import ModelSpec
from replay.planning.document import WorkloadSeries
from replay.traces.report import (
    CleaningReport,
    HeatCell,
    IngestReport,
    LengthCell,
    LengthProfile,
    PrefixProfile,
    Series,
    SessionProfile,
    Timing,
    TraceProfile,
)

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_NAMED = 3
_TENANTS = 20
_FIGURE = (Column("figure", "figure", "text"), Column("value", "value"))


def context(report: IngestReport, models: Iterable[ModelSpec]) -> dict[str, Any]:
    """What ``trace.html`` shows of a trace that is ready; ``models`` may be too short for some of its requests."""
    profile = report.profile
    return {
        "report": report,
        "cleaning": cleaning_table(report.cleaning),
        "rejections": rejection_table(report.cleaning),
        "rates": rate_table(profile),
        "lengths": length_table(profile),
        "load": load_chart(profile.series),
        "heat": heat_chart(profile.heat_map, profile.heat_map_zone) if profile.heat_map else None,
        "joint": joint_chart(profile.joint_lengths) if profile.joint_lengths else None,
        "reuse": reuse_chart(profile.prefix) if profile.prefix and profile.prefix.by_cache_size else None,
        "tenants": tenant_table(profile) if profile.top_tenants else None,
        "measured": source_table(profile),
        "sessions": session_tables(profile.session_profile) if profile.session_profile else [],
        "over_length": over_length_table(profile, models),
    }


def cleaning_table(cleaning: CleaningReport) -> Table:
    """Every row accounted for, and what was noticed."""
    rows: list[tuple[Cell, Cell]] = [
        ("rows read", cleaning.rows_read),
        ("rows kept", cleaning.rows_kept),
        *((f"rows rejected: {rule.replace('_', ' ')}", n) for rule, n in cleaning.rejected_by_rule.items()),
        ("blank lines", cleaning.blank_lines),
        ("rows moved by sorting", cleaning.rows_moved_by_sorting),
        ("times read as", cleaning.time_unit),
        ("zone of the times", cleaning.time_zone),
        ("smallest step of the clock, s", cleaning.clock_resolution_s),
        ("requests at the same instant as the one before", cleaning.tied_requests),
        ("largest gap, s", cleaning.largest_gap_s),
        ("requests without a prompt length", f"{cleaning.share_missing_prompt_tokens * 100:.3g} %"),
        ("requests without an output length", f"{cleaning.share_missing_output_tokens * 100:.3g} %"),
        ("rows that said 0 prompt tokens", cleaning.zero_prompt_tokens),
        ("rows that said 0 output tokens", cleaning.zero_output_tokens),
        ("requests that wait for another (closed loop)", cleaning.closed_loop_requests),
        *((("requests whose client left at a known time", cleaning.cancel_times),) if cleaning.cancel_times else ()),
        *((f"status {status}", n) for status, n in cleaning.status_counts.items()),
    ]
    return Table("Cleaning report", _FIGURE, tuple(rows))


def rejection_table(cleaning: CleaningReport) -> Table:
    """The first rejected rows, each with its rule and cure."""
    columns = (
        Column("line", "line"),
        Column("column", "column", "text"),
        Column("value", "value", "text"),
        Column("rule", "rule", "text"),
        Column("cure", "cure", "text"),
    )
    rows = tuple((one.line, one.column, one.value, one.rule, one.cure) for one in cleaning.rejections)
    return Table(f"First {len(rows)} of {cleaning.rows_rejected:,} rejected rows", columns, rows)


def rate_table(profile: TraceProfile) -> Table:
    """Rates, burstiness and reuse."""
    rows: list[tuple[Cell, Cell]] = [
        ("requests", profile.requests),
        ("first request (UTC)", profile.start_utc),
        ("mean requests/s", profile.mean_rps),
        ("peak requests/s over 1 s", profile.peak_rps_1s),
        ("peak requests/s over 1 min", profile.peak_rps_1min),
        ("peak requests/s over 1 h", profile.peak_rps_1h),
        ("variation of the gaps (1 = Poisson)", profile.gap_cv),
        ("burstiness per second: variance / mean (1 = Poisson)", profile.dispersion_1s),
        ("burstiness per minute: variance / mean (1 = Poisson)", profile.dispersion_1min),
        ("tenants", profile.tenants),
        *((f"requests of model {model}", n) for model, n in profile.models.items()),
    ]
    if profile.prefix is not None:
        share = profile.prefix.reusable_share_of_prompt_tokens
        rows.append(("prompt tokens whose prefix came before (best case of a cache)", f"{share * 100:.3g} %"))
    return Table("Profile", _FIGURE, tuple(rows))


_TIMING = (
    Column("requests", "n"),
    *(Column(name, f"{name}_s", "duration") for name in ("mean", "p50", "p90", "p95", "p99", "max")),
)


def _timing_table(title: str, first: str, timings: tuple[tuple[str, Timing | None], ...]) -> Table | None:
    """Times by percentile, one row each; ``None`` where there is none."""
    rows = tuple((name, *(getattr(one, c.key) for c in _TIMING)) for name, one in timings if one is not None)
    return Table(title, (Column(first, "of", "text"), *_TIMING), rows) if rows else None


def source_table(profile: TraceProfile) -> Table | None:
    """What the system that logged the trace measured: no figure of a simulation."""
    known = (("TTFT", profile.source_ttft), ("E2E", profile.source_e2e), ("queue time", profile.source_queue))
    return _timing_table("Measured by the system that logged this", "latency", known)


def session_tables(sessions: SessionProfile) -> list[Table]:
    """Turns and the times between them."""
    turns = sessions.turns
    rows: tuple[tuple[Cell, Cell], ...] = (
        ("sessions", sessions.sessions),
        ("requests in sessions", sessions.requests),
        ("sessions of one request", sessions.single_turn),
        *((f"turns per session, {name}", getattr(turns, name)) for name in ("mean", "p50", "p90", "p99", "max")),
        ("turns sent before the one before had ended", sessions.overlapping),
    )
    times = (
        ("from start to start", sessions.between_starts),
        ("from end to start (think time)", sessions.think_time),
    )
    between = _timing_table("Time between turns", "time", times)
    return [Table("Turns of sessions", _FIGURE, rows), *([between] if between else [])]


def over_length_table(profile: TraceProfile, models: Iterable[ModelSpec]) -> Table | None:
    """Requests that are too long, by the context length of the catalogue's models; ``None`` where all fit them all.

    Lengths that the profile did not count (a model of the tenant's own) have the two counts they lie between.
    """
    by_length: dict[int, list[str]] = {}
    for model in models:
        by_length.setdefault(model.max_position, []).append(model.key)
    rows: list[tuple[Cell, ...]] = []
    counted = sum(cell.requests for cell in profile.joint_lengths)
    for limit, names in sorted(by_length.items()):
        at_least, at_most = profile.longer_than(limit)
        if profile.over_length and at_most:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            requests: Cell = at_most if at_least == at_most else f"{at_least:,} to {at_most:,}"
            named = ", ".join(sorted(names, key=str.lower)[:_NAMED]) + more
            rows.append((limit, requests, at_most / counted, named))
    columns = (
        Column("context, tokens", "max_model_len"),
        Column("longer requests", "requests"),
        Column("share", "share", "percent"),
        Column("models", "models", "text"),
    )
    return Table("Requests longer than a model's context: it would refuse them", columns, tuple(rows)) if rows else None


def length_table(profile: TraceProfile) -> Table:
    """Token lengths over the requests that state them."""
    known: tuple[tuple[str, LengthProfile | None], ...] = (
        ("prompt", profile.prompt_tokens),
        ("output", profile.output_tokens),
        ("cached by the old system", profile.cached_tokens),
        ("reasoning", profile.reasoning_tokens),
    )
    names = ("n", "mean", "min", "p50", "p90", "p95", "p99", "max", "total")
    titles = {"n": "requests", "total": "total tokens"}
    columns = (Column("tokens per request", "length", "text"), *(Column(titles.get(n, n), n) for n in names))
    rows = tuple((title, *(getattr(one, name) for name in names)) for title, one in known if one is not None)
    return Table("Lengths", columns, rows)


def load_chart(series: Series) -> Chart:
    """Requests and tokens over time."""
    bins = series.bins
    columns = (
        Column("from", "start_s", "duration"),
        Column("requests", "requests"),
        Column("prompt tokens", "prompt_tokens"),
        Column("output tokens", "output_tokens"),
    )
    rows = tuple((one.start_s, one.requests, one.prompt_tokens, one.output_tokens) for one in bins)
    drawn = WorkloadSeries(
        bin_s=series.bin_s,
        start_s=tuple(one.start_s for one in bins),
        requests=tuple(one.requests for one in bins),
        prompt_tokens=tuple(one.prompt_tokens for one in bins),
        output_tokens=tuple(one.output_tokens for one in bins),
    )
    table = Table(f"Load in bins of {series.bin_s:g} s", columns, rows)
    text = "Requests and tokens that arrive per second."
    return Chart("load", "Load over time", text, figures.workload(drawn) if bins else None, table)


def heat_chart(cells: list[HeatCell], zone: str | None) -> Chart:
    """Requests by weekday and hour."""
    counts = {(cell.weekday, cell.hour): cell.requests for cell in cells}
    grid = [[counts.get((day, hour)) for hour in range(24)] for day in range(7)]
    columns = (Column("day", "day", "text"), *(Column(f"{hour}", f"hour_{hour}") for hour in range(24)))
    rows: list[tuple[Cell, ...]] = [(name, *grid[day]) for day, name in enumerate(_DAYS)]
    figure = figures.heat_map(list(_DAYS), grid, f"hour of the day ({zone or 'UTC'})")
    return Chart(
        "heat",
        "When requests come",
        "Requests by weekday and hour.",
        figure,
        Table("Requests by hour", columns, tuple(rows)),
    )


def joint_chart(cells: list[LengthCell]) -> Chart:
    """Prompt and output lengths together."""
    prompts, outputs = (sorted({getattr(one, name) for one in cells}) for name in ("prompt_from", "output_from"))
    prompts, outputs = (_doubling(sides) for sides in (prompts, outputs))
    counts = {(one.prompt_from, one.output_from): one.requests for one in cells}
    grid = [[counts.get((prompt, output)) for output in outputs] for prompt in prompts]
    columns = (
        Column("prompt tokens from", "prompt_from"),
        Column("output tokens from", "output_from"),
        Column("requests", "requests"),
    )
    rows = tuple((one.prompt_from, one.output_from, one.requests) for one in cells)
    return Chart(
        "joint",
        "Prompts and outputs together",
        "Requests by prompt and output length; each step doubles the length.",
        figures.length_map(prompts, outputs, grid),
        Table("Requests by prompt and output length, each from this number to below twice it", columns, rows),
    )


def _doubling(sides: list[int]) -> list[int]:
    """All powers of two from the first to the last."""
    return [2**k for k in range(sides[0].bit_length() - 1, sides[-1].bit_length())]


def reuse_chart(prefix: PrefixProfile) -> Chart:
    """What a prefix cache of each size would serve."""
    points = prefix.by_cache_size or []
    sizes = [one.blocks * prefix.block_size_tokens for one in points]
    shares = [one.reused_share_of_prompt_tokens for one in points]
    columns = (
        Column("cache, blocks", "blocks"),
        Column("cache, tokens", "cache_tokens"),
        Column("prompt tokens served", "tokens"),
        Column("share", "share", "percent"),
    )
    rows = tuple((one.blocks, size, one.tokens, share) for one, size, share in zip(points, sizes, shares, strict=True))
    return Chart(
        "reuse",
        "Prefix reuse by cache size",
        "Share of all prompt tokens that one cache of this size would serve, least recently used blocks leaving first. "
        "Replicas split the requests, so each sees less; a router that keeps prefixes together loses less.",
        figures.cache_sizes(sizes, shares),
        Table(f"Reuse by cache size, blocks of {prefix.block_size_tokens} tokens", columns, rows),
    )


def tenant_table(profile: TraceProfile) -> Table:
    """The largest tenants."""
    columns = (Column("tenant", "tenant", "text"), Column("requests", "requests"), Column("share", "share", "percent"))
    rows = tuple((one.tenant, one.requests, one.share) for one in profile.top_tenants[:_TENANTS])
    return Table(
        f"Largest of {profile.tenants:,} tenants" if profile.tenants > len(rows) else "All tenants", columns, rows
    )
