"""Tables of an accuracy document, as Markdown rows or plain text."""

from __future__ import annotations

from statistics import median
from typing import Any

NAMES = {
    "e2e_s.mean": "E2E mean",
    "itl_s.mean": "ITL mean",
    "ttft_s.mean": "TTFT mean",
    "ttft_s.p99": "TTFT p99",
    "itl_s.p99": "ITL p99",
    "rate_error": "step-time factor",
}
Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def percent(share: float | None, *, signed: bool = True) -> str:
    """``+5.0 %``; a dash where there is none."""
    if share is None:
        return "-"
    return f"{100 * share:{'+' if signed else ''}.1f} %"


def medians_table(document: dict[str, Any]) -> Table:
    """Medians by GPU, kind of model and region, with goals."""
    head = (
        "GPU",
        "models",
        "region",
        "figure",
        "median",
        "goal",
        "",
        "of runs",
        "signed",
        "worst",
        "runs",
        "within goal",
    )
    rows: list[tuple[str, ...]] = []
    for group in document["medians"]:
        region = group["region"] + (", aggregates only" if group["aggregates_only"] else "")
        for name, one in group["figures"].items():
            reached = {None: "", True: "reached", False: "missed"}[one["reached"]]
            rows.append(
                (
                    group["gpu"],
                    group["models"],
                    region,
                    NAMES[name],
                    percent(one["median"], signed=False),
                    percent(one["goal"], signed=False),
                    reached,
                    percent(one["median_of_runs"], signed=False),
                    percent(one["signed"]),
                    percent(one["worst"]),
                    f"{one['runs']} of {one['deployments']}",
                    percent(one["within_goal"], signed=False),
                )
            )
    return head, rows


def experiments_table(document: dict[str, Any]) -> Table:
    """Signed errors of every run; in brackets where the rules do not let them count."""
    head = (
        "run", "GPU", "model", "tp", "n", "region", "TTFT mean", "p50", "p90", "p99",
        "ITL mean", "p99", "E2E mean", "p99", "tok/s", "rate", "saturated",
    )  # fmt: skip
    rows = []
    for run in document["experiments"]:
        cells = [(m, s) for m, names in _SHOWN.items() for s in names]
        verdict = "yes" if run["saturated"] else "no"
        rows.append(
            (
                run["experiment"],
                run["gpu"],
                run["model"].rsplit("/", 1)[-1],
                str(run["tp"]),
                str(run["n"]),
                run["region"],
                *(_cell(run[metric].get(statistic)) for metric, statistic in cells),
                _cell(run["output_tokens_per_s"]),
                percent(run["rate_error"]),
                verdict
                + (", as it was" if run["saturated_expected"] and run["saturated"] else "")
                + (", but it was" if run["saturated_expected"] and not run["saturated"] else ""),
            )
        )
    return head, rows


_SHOWN = {"ttft_s": ("mean", "p50", "p90", "p99"), "itl_s": ("mean", "p99"), "e2e_s": ("mean", "p99")}


def _cell(figure: dict[str, float | None] | None) -> str:
    if figure is None or not figure["measured"] or figure["simulated"] is None:
        return "-"
    text = f"{100 * (figure['simulated'] / figure['measured'] - 1):+.1f}"
    return text if figure["error"] is not None else f"({text})"


def worst_table(document: dict[str, Any]) -> Table:
    """The ten runs furthest off."""
    rows: list[tuple[str, ...]] = [
        (one["experiment"], NAMES[one["figure"]], percent(one["error"])) for one in document["worst"]
    ]
    return ("run", "figure", "error"), rows


def field_table(document: dict[str, Any]) -> Table:
    """Our medians beside those that another simulator published."""
    head = ("GPU", "figure", "capreplay, of deployments", "of runs", "runs", "BLIS")
    rows: list[tuple[str, ...]] = [
        (
            one["gpu"],
            NAMES[one["figure"]],
            percent(one["ours"], signed=False),
            percent(one["ours_of_runs"], signed=False),
            f"{one['runs']} of {one['deployments']}" if one["runs"] else "none that counts",
            percent(one["blis"], signed=False),
        )
        for one in document["field"]
    ]
    return head, rows


def largest_rates_table(document: dict[str, Any]) -> Table:
    """The largest rate within a limit, measured and simulated."""
    head = (
        "runs", "GPU", "tp", "limit", "rates", "largest measured", "largest simulated", "crossing measured",
        "simulated", "error",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = [
        (
            one["series"],
            one["gpu"],
            str(one["tp"]),
            f"{NAMES[one['figure']]} {1e3 * one['limit_s']:.3g} ms",
            str(len(one["rates"])),
            _rate(one["measured_met"]),
            _rate(one["simulated_met"]),
            _rate(one["measured"]),
            _rate(one["simulated"]),
            percent(one["error"]),
        )
        for one in document["largest_rates"]
    ]
    return head, rows


def _rate(per_s: float | None) -> str:
    return "none" if per_s is None else f"{per_s:.3g}/s"


def largest_rates_sentence(document: dict[str, Any]) -> str:
    """How often the largest rate is the measured one, and the median error of the crossings."""
    found = document["largest_rates"]
    if not found:
        return "No server was measured at three rates or more with figures that differ by a fifth."
    exact = sum(one["steps_off"] == 0 for one in found)
    near = sum(abs(one["steps_off"]) == 1 for one in found)
    errors = [abs(one["error"]) for one in found if one["error"] is not None]
    text = f"The largest rate is the measured one in {exact} of {len(found)} cases, one rate off in {near}"
    if not errors:
        return text + "."
    middle = percent(median(errors), signed=False)
    return f"{text}; the crossings differ by {middle} at the median of {len(errors)}."


def left_out_table(document: dict[str, Any]) -> Table:
    """Experiments that were not replayed."""
    return ("experiment", "why"), [(one["experiment"], one["reason"]) for one in document["not_replayed"]]


def verdict_sentence(document: dict[str, Any]) -> str:
    """How many saturation verdicts are right."""
    found = document["saturation"]
    text = f"Saturation verdicts: {found['right']} of {found['judged']} right"
    return text + (f"; wrong: {', '.join(found['wrong'])}." if found["wrong"] else ".")


def throughput_sentence(document: dict[str, Any]) -> str:
    """How far throughput is off where latency says nothing; empty where there is no such run."""
    found = document["throughput"]
    if not found["runs"]:
        return ""
    return (
        f"Throughput of client-limited, suspect and saturating runs: {found['within_goal']} of {found['runs']} within "
        f"{percent(found['goal'], signed=False)}, median {percent(found['median'], signed=False)}."
    )


def markdown(table: Table) -> str:
    """A Markdown table."""
    head, rows = table
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
