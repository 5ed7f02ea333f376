"""A replay over time, and by tenant and priority: the charts and tables of those parts of its report."""

from __future__ import annotations

from collections.abc import Sequence

from api.reports import figures
from api.reports.sections import Chart
from api.reports.tables import Cell, Column, Kind, Table
from replay.planning.document import Split, Timeline

Series = Sequence[float | None]

_COLUMNS: tuple[tuple[str, str, Kind], ...] = (
    ("from", "start_s", "duration"),
    ("arrived", "arrived", "number"),
    ("admitted", "admitted", "number"),
    ("finished", "finished", "number"),
    ("finished/s", "finished_per_s", "number"),
    ("running", "running", "number"),
    ("waiting", "waiting", "number"),
    ("batch use", "batch_utilisation", "percent"),
    ("prompt tokens/s", "prompt_tokens_per_s", "number"),
    ("output tokens/s", "output_tokens_per_s", "number"),
    ("preemptions", "preemptions", "number"),
    ("TTFT p50", "ttft_p50_s", "seconds"),
    ("TTFT p99", "ttft_p99_s", "seconds"),
    ("prefix hits", "prefix_hit_rate", "percent"),
    ("KV in use, estimated", "kv_usage", "percent"),
)


def timeline_table(timeline: Timeline, *keys: str) -> Table:
    """The timeline's columns, a row a bin; all that it has, or those named."""
    shown = [one for one in _COLUMNS if getattr(timeline, one[1]) is not None and (not keys or one[1] in keys)]
    columns = tuple(Column(title, key, kind) for title, key, kind in shown)
    rows: tuple[tuple[Cell, ...], ...] = tuple(zip(*(getattr(timeline, key) for _, key, _ in shown), strict=True))
    what = "The replay over time" if not keys else ", ".join(title for title, key, _ in shown if key != "start_s")
    return Table(f"{what}, in bins of {timeline.bin_s:g} s", columns, rows)


def charts(timeline: Timeline) -> list[Chart]:
    """Requests in the system, tokens per second, time to first token, and use."""
    use: list[tuple[str, Series]] = [("batch", timeline.batch_utilisation)]
    if timeline.kv_usage is not None:
        use.append(("KV cache, estimated", timeline.kv_usage))
    if timeline.prefix_hit_rate is not None:
        use.append(("prefix hit rate", timeline.prefix_hit_rate))
    queue = [("running", timeline.running), ("waiting", timeline.waiting)]
    tokens = [("prompt", timeline.prompt_tokens_per_s), ("output", timeline.output_tokens_per_s)]
    ttft: list[tuple[str, Series]] = [("p50", timeline.ttft_p50_s), ("p99", timeline.ttft_p99_s)]
    return [
        Chart(
            "over-time",
            "Requests in the system",
            "Requests that run and that wait, mean over each bin, all replicas together.",
            figures.over_time(timeline, queue, "requests"),
            timeline_table(timeline),
        ),
        Chart(
            "over-time-tokens",
            "Tokens per second",
            "Prompt tokens computed and output tokens given, all replicas together.",
            figures.over_time(timeline, tokens, "tokens per second"),
            timeline_table(timeline, "start_s", "prompt_tokens_per_s", "output_tokens_per_s"),
        ),
        Chart(
            "over-time-ttft",
            "Time to first token by arrival",
            "Percentiles of TTFT over the requests that arrive in each bin.",
            figures.over_time(timeline, ttft, "seconds"),
            timeline_table(timeline, "start_s", "ttft_p50_s", "ttft_p99_s"),
        ),
        Chart(
            "over-time-use",
            "Use",
            "Running requests over the most that may run, and the KV cache or the prefix cache where it is known.",
            figures.over_time(timeline, use, "share"),
            timeline_table(timeline, "start_s", "batch_utilisation", "kv_usage", "prefix_hit_rate"),
        ),
    ]


def split_table(split: Split) -> Table:
    """The metrics by tenant or by priority."""
    columns = (
        Column(split.by, split.by, "name"),
        Column("requests", "requests"),
        Column("finished", "finished"),
        *((Column("cancelled", "cancelled"),) if any(one.cancelled for one in split.rows) else ()),
        Column("prompt tokens", "prompt_tokens"),
        Column("output tokens", "output_tokens"),
        Column("preemptions", "preemptions"),
        *(
            Column(f"{metric.upper() if metric != 'queue' else 'queue'} {at}", f"{metric}_{at}_s", "seconds")
            for metric in ("ttft", "tpot", "e2e", "queue")
            for at in ("p50", "p99")
        ),
        Column("within every limit", "good_share", "share"),
        Column("goodput, requests/s", "goodput_rps"),
    )
    rows = tuple((one.name, *(getattr(one, column.key) for column in columns[1:])) for one in split.rows)
    return Table(f"The replay by {split.by}", columns, rows)
