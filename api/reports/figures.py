"""Plotly figures as plain dictionaries (``data``, ``layout``); a unit test checks them against Plotly's own schema.

Built without importing plotly, which takes a second. Colours are Okabe and Ito's, told apart by colour-blind readers;
no meaning is carried by colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from replay.planning.document import Recommendation, Timeline, WorkloadSeries
from replay.planning.parts import CurvePoint, MemoryBreakdown, Metrics, ObjectiveOutcome, RangeEnd

Figure = dict[str, Any]

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#F0E442")
_UNSURE = "#bcd3e3"
"""Of what has no range; its label says so too."""
_GRID = "#d9dee3"
_PATTERN = {"fillmode": "overlay", "fgcolor": "#ffffff", "solidity": 0.15}
_TIME_UNITS = ((2 * 86400.0, 86400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (300.0, 60.0, "minutes"))


def time_unit(span_s: float) -> tuple[float, str]:
    """Seconds in the unit that suits a time axis of this span, and its name."""
    for least, size, name in _TIME_UNITS:
        if span_s >= least:
            return size, name
    return 1.0, "seconds"


def layout(x: str, y: str, **more: Any) -> Figure:
    """The common layout: both axes titled, room for labels, a legend above the plot."""
    axis = {"gridcolor": _GRID, "zerolinecolor": _GRID, "automargin": True}
    base: Figure = {
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1b2733"},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "margin": {"l": 60, "r": 20, "t": 40, "b": 50},
        "height": 340,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "xaxis": {"title": {"text": x}, **axis},
        "yaxis": {"title": {"text": y}, "rangemode": "tozero", **axis},
    }
    for key, value in more.items():
        base[key] = {**base[key], **value} if isinstance(base.get(key), dict) and isinstance(value, dict) else value
    return base


def workload(series: WorkloadSeries) -> Figure:
    """Requests and tokens per second over time."""
    span = series.start_s[-1] + series.bin_s if series.start_s else series.bin_s
    size, name = time_unit(span)
    x = [start / size for start in series.start_s]

    def line(label: str, counts: Sequence[int], colour: str, dash: str, axis: str) -> Figure:
        y = [count / series.bin_s for count in counts]
        style = {"color": colour, "dash": dash, "shape": "hv", "width": 1.5}
        return {"type": "scatter", "mode": "lines", "name": label, "x": x, "y": y, "line": style, "yaxis": axis}

    data = [
        line("requests/s", series.requests, COLOURS[0], "solid", "y"),
        line("prompt tokens/s", series.prompt_tokens, COLOURS[5], "dot", "y2"),
        line("output tokens/s", series.output_tokens, COLOURS[2], "dash", "y2"),
    ]
    right = {
        "title": {"text": "tokens per second"},
        "overlaying": "y",
        "side": "right",
        "rangemode": "tozero",
        "tickmode": "auto",
    }
    more = {"yaxis2": {**right, "showgrid": False, "automargin": True}, "margin": {"r": 60}}
    return {"data": data, "layout": layout(f"time from the start ({name})", "requests per second", **more)}


def over_time(timeline: Timeline, series: Sequence[tuple[str, Sequence[float | None]]], y: str) -> Figure:
    """One line for each named series of a timeline."""
    size, name = time_unit(timeline.bin_s * len(timeline.start_s))
    x = [start / size for start in timeline.start_s]
    dashes = ("solid", "dash", "dot")
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": label,
            "x": x,
            "y": list(values),
            "line": {"color": COLOURS[i], "dash": dashes[i % 3], "shape": "hv", "width": 1.5},
        }
        for i, (label, values) in enumerate(series)
    ]
    return {"data": data, "layout": layout(f"time from the start ({name})", y)}


def alternatives(recommendations: Sequence[Recommendation]) -> Figure | None:
    """Cost of each feasible candidate as ranked; ``None`` where none has a price."""
    priced = [one for one in recommendations if one.usd_per_hour is not None]
    if not priced:
        return None
    bar = {
        "type": "bar",
        "orientation": "h",
        "y": [f"{one.rank}. {one.replicas} x TP{one.tp} {one.gpu} " for one in priced],
        "x": [one.usd_per_hour for one in priced],
        "text": [f"{one.gpus} GPU{'s' * (one.gpus > 1)}{', measure first' * one.measure_first}" for one in priced],
        "textposition": "auto",
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [_beyond(one, one.ends[1]) for one in priced],
            "arrayminus": [_beyond(one, one.ends[0]) for one in priced],
        },
        "cliponaxis": False,
        "marker": {"color": [_UNSURE if one.measure_first else COLOURS[0] for one in priced]},
        "name": "USD per hour",
    }
    more = {"yaxis": {"type": "category", "autorange": "reversed", "rangemode": "normal"}, "margin": {"r": 80, "t": 10}}
    return {
        "data": [bar],
        "layout": layout("USD per hour", "", showlegend=False, height=110 + 32 * len(priced), **more),
    }


def _beyond(one: Recommendation, end: RangeEnd | None) -> float:
    """USD per hour from the bar's end to that of its whisker; 0 where there is no such end."""
    if end is None or end.usd_per_hour is None or one.usd_per_hour is None:
        return 0.0
    return abs(end.usd_per_hour - one.usd_per_hour)


def _share_of_limit(outcome: ObjectiveOutcome) -> float | None:
    return None if outcome.value_s is None else outcome.value_s / outcome.threshold_s


def capacity(curve: Sequence[CurvePoint]) -> Figure:
    """Each objective's value as a share of its limit, and the load factor, against the number of replicas."""
    x = [point.replicas for point in curve]
    names = [outcome.name for outcome in curve[0].objectives] if curve else []
    data: list[Figure] = []
    for i, name in enumerate(names):
        y = [_share_of_limit(point.objectives[i]) for point in curve]
        style = {"color": COLOURS[i % len(COLOURS)]}
        marker = {"symbol": ["circle" if point.passed else "x" for point in curve], "size": 10}
        data.append(
            {"type": "scatter", "mode": "lines+markers", "name": name, "x": x, "y": y, "line": style, "marker": marker}
        )
    load = [point.load_factor for point in curve]
    grey = {"color": "#555555", "dash": "dot"}
    if any(share is not None for share in load):
        data.append({"type": "scatter", "mode": "lines", "name": "load factor", "x": x, "y": load, "line": grey})
    limit = {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": 1,
        "y1": 1,
        "line": {"color": "#b00020", "width": 1.5},
    }
    note = {
        "xref": "paper",
        "x": 1,
        "xanchor": "right",
        "y": 0,
        "yanchor": "bottom",
        "text": "limit",
        "showarrow": False,
    }
    more = {
        "shapes": [limit],
        "annotations": [note],
        "yaxis": {"type": "log", "rangemode": "normal"},
        "xaxis": {"dtick": max(1, (max(x) - min(x)) // 12) if x else 1},
    }
    return {"data": data, "layout": layout("replicas", "share of the limit (log scale)", **more)}


def memory(stacks: Sequence[tuple[str, MemoryBreakdown]]) -> Figure:
    """What each GiB of a GPU is used for, one bar a deployment."""
    names = list(dict.fromkeys(part.name for _, stack in stacks for part in stack.parts))
    labels = [label for label, _ in stacks]
    patterns = ("", "/", "x", ".", "-", "|", "+", "\\")
    data = []
    for i, name in enumerate(names):
        gib = [sum(part.gib for part in stack.parts if part.name == name) for _, stack in stacks]
        marker = {
            "color": COLOURS[i % len(COLOURS)],
            "pattern": {"shape": patterns[i % len(patterns)]} | _PATTERN,
        }
        data.append({"type": "bar", "orientation": "h", "name": name, "y": labels, "x": gib, "marker": marker})
    more = {
        "barmode": "stack",
        "height": 160 + 40 * len(stacks),
        "yaxis": {"autorange": "reversed", "type": "category", "rangemode": "normal"},
    }
    return {"data": data, "layout": layout("GiB per GPU", "", **more)}


def latency(metrics: Metrics) -> Figure:
    """Percentiles of each latency metric, log scale."""
    names = ("p50", "p90", "p95", "p99")
    shown = (("TTFT", metrics.ttft_s), ("ITL", metrics.itl_s), ("TPOT", metrics.tpot_s), ("E2E", metrics.e2e_s))
    data = []
    for i, name in enumerate(names):
        y = [getattr(stats, name) for _, stats in shown]
        x = [label for label, _ in shown]
        data.append({"type": "bar", "name": name, "x": x, "y": y, "marker": {"color": COLOURS[i]}})
    more = {"barmode": "group", "yaxis": {"type": "log", "rangemode": "normal"}}
    return {"data": data, "layout": layout("metric", "seconds (log scale)", **more)}


def heat_map(days: list[str], counts: list[list[int | None]], x_title: str) -> Figure:
    """Requests by day (rows) and hour (columns)."""
    cells = {
        "type": "heatmap",
        "x": list(range(24)),
        "y": days,
        "z": counts,
        "colorscale": "Blues",
        "reversescale": True,
    }
    more = {"yaxis": {"autorange": "reversed", "rangemode": "normal"}, "xaxis": {"dtick": 2}}
    return {"data": [cells | {"colorbar": {"title": {"text": "requests"}}}], "layout": layout(x_title, "", **more)}


def length_map(prompts: list[int], outputs: list[int], counts: list[list[int | None]]) -> Figure:
    """Requests by prompt length (rows, from below) and output length (columns), both doubling from cell to cell."""
    cells = {
        "type": "heatmap",
        "x": [f"{one:,}" for one in outputs],
        "y": [f"{one:,}" for one in prompts],
        "z": counts,
        "colorscale": "Blues",
        "reversescale": True,
        "colorbar": {"title": {"text": "requests"}},
    }
    more = {"xaxis": {"type": "category"}, "yaxis": {"type": "category", "rangemode": "normal"}}
    return {"data": [cells], "layout": layout("output tokens from", "prompt tokens from", **more)}


def agreement(points: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Predicted against measured time in seconds, one kind of point for each name; on the line both agree."""
    every = [1e3 * value for pairs in points.values() for pair in pairs for value in pair]
    ends = [min(every), max(every)]
    line = {"color": "#555555", "dash": "dash", "width": 1}
    data = [{"type": "scatter", "mode": "lines", "name": "both agree", "x": ends, "y": ends, "line": line}]
    for i, (name, pairs) in enumerate(points.items()):
        x, y = [measured * 1e3 for measured, _ in pairs], [predicted * 1e3 for _, predicted in pairs]
        data.append({"type": "scatter", "mode": "markers", "name": name, "x": x, "y": y, "marker": _point(i)})
    more = {"xaxis": _decades(every), "yaxis": _decades(every) | {"rangemode": "normal"}}
    return {"data": data, "layout": layout("measured, ms (log scale)", "predicted, ms (log scale)", **more)}


def residuals(points: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Error of the prediction over the measured time in seconds; above zero is predicted too slow."""
    data = []
    for i, (name, pairs) in enumerate(points.items()):
        x, y = [measured * 1e3 for measured, _ in pairs], [predicted / measured - 1 for measured, predicted in pairs]
        data.append({"type": "scatter", "mode": "markers", "name": name, "x": x, "y": y, "marker": _point(i)})
    more = {
        "xaxis": _decades([1e3 * measured for pairs in points.values() for measured, _ in pairs]),
        "yaxis": {"tickformat": "~%", "zeroline": True, "zerolinecolor": "#555555", "rangemode": "normal"},
    }
    return {"data": data, "layout": layout("measured, ms (log scale)", "predicted over measured - 1", **more)}


def _decades(values: Sequence[float]) -> Figure:
    """A logarithmic axis over these values with whole labels: by default its minor ones lack their zeros."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    steps = (1, 2, 5) if high - low <= 3 else (1,)
    ticks = [step * 10.0**power for power in range(low, high + 1) for step in steps]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:,.6g}" for tick in ticks]}


def _point(i: int) -> Figure:
    symbols = ("circle", "x", "diamond", "triangle-up", "square")
    return {"color": COLOURS[(0, 5, 2, 3, 6)[i % 5]], "symbol": symbols[i % 5], "size": 7, "opacity": 0.8}


def cache_sizes(tokens: list[int], shares: list[float]) -> Figure:
    """Share of the prompt tokens that a prefix cache serves, by its size in tokens."""
    data = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "served",
        "x": tokens,
        "y": shares,
        "line": {"color": COLOURS[0], "width": 1.5},
    }
    more = {"xaxis": {"type": "log"}, "yaxis": {"tickformat": ".0%"}}
    return {"data": [data], "layout": layout("cache size in tokens", "share of prompt tokens", **more)}
