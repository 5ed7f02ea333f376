"""docs/benchmarks.md, written by the verb: published throughput by GPU type and engine, every group, good or bad."""

from __future__ import annotations

from importlib.resources import files
from math import ceil
from string import Template
from typing import Any

from replay.accuracy.wording import Table, markdown, percent
from replay.steptime.accuracy import FEWEST_ROWS

_FIGURES = ("throughput", "ttft_p50", "tpot_p50")


def benchmark_page(document: dict[str, Any]) -> str:
    """The whole page from a benchmarks document."""
    template = Template(files("replay.accuracy").joinpath("benchmark_page.md").read_text(encoding="utf-8"))
    left_out = document["not_replayed"]
    return template.substitute(
        rows=document["overall"]["rows"],
        groups=markdown(groups_table(document)),
        fewest=FEWEST_ROWS,
        bands=markdown(bands_table(document)),
        left_out_rows=sum(one["rows"] for one in left_out),
        left_out=markdown((("rows", "why"), [(str(one["rows"]), one["reason"]) for one in left_out])),
    )


def groups_table(document: dict[str, Any]) -> Table:
    """Medians by GPU type, engine, kind of model and origin of the step times; the last line is of all rows."""
    head = (
        "GPU", "engine", "models", "step times", "rows", "output tok/s", "signed", "nine in ten within", "TTFT p50",
        "TPOT p50", "plans state", "within that",
    )  # fmt: skip
    rows = [(one["gpu"], one["engine"], one["models"], one["step_times"], *_cells(one)) for one in document["by_gpu"]]
    return head, [*rows, ("all", "", "", "", *_cells(document["overall"]))]


def bands_table(document: dict[str, Any]) -> Table:
    """What plans quote: whole per cents, rounded up."""
    rows = [
        (one["subject"], one["models"], str(one["rows"]), *(f"{ceil(100 * one[name])} %" for name in ("median", "p90")))
        for one in document["bands"]
    ]
    return ("step times of", "models", "rows", "median", "nine in ten within"), [*rows]


def _cells(group: dict[str, Any]) -> tuple[str, ...]:
    throughput, ttft, tpot = (group.get(name, {}) for name in _FIGURES)
    stated = group.get("stated_error", {})
    return (
        str(group["rows"]),
        percent(throughput.get("median"), signed=False),
        percent(throughput.get("signed")),
        percent(throughput.get("p90"), signed=False),
        percent(ttft.get("median"), signed=False),
        percent(tpot.get("median"), signed=False),
        percent(stated.get("median"), signed=False),
        percent(stated.get("within"), signed=False),
    )
