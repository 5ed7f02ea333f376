"""A report document as an HTML page, served or standing alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from api.reports import over_time, sections
from api.reports.environment import STATIC_FOLDER, environment
from api.reports.tables import Table
from replay.planning.document import Operating, PlanReport, Recommendation, ReplayReport, parse_report
from replay.planning.parts import Certainty


@dataclass(frozen=True)
class Candidate:
    """One deployment's part of the page: objectives, latency, load, and the curve where there is one."""

    name: str
    objectives: Table
    latency: sections.Chart
    operating: Table
    pools: Table | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Curve:
    """The replica counts that were replayed for one candidate, and what they show."""

    name: str
    sentence: str
    chart: sections.Chart
    certainty: Certainty | None = None


def page(document: dict[str, Any], *, standalone: bool) -> str:
    """The whole page; see ``api.reports.render_html``."""
    inside = {}
    if standalone:
        inside = {
            "styles": (STATIC_FOLDER / "capreplay.css").read_text(encoding="utf-8"),
            "plotly": plotly_script(),
            "charts": (STATIC_FOLDER / "charts.js").read_text(encoding="utf-8"),
        }
    return environment().get_template("report_file.html").render(standalone=standalone, **inside, **context(document))


def context(document: dict[str, Any]) -> dict[str, Any]:
    """What ``report_body.html`` needs, for the page of the service as for the file.

    Raises:
        pydantic.ValidationError: where ``document`` is no ``capreplay.report/1`` document.
    """
    report = parse_report(document)
    is_plan = isinstance(report, PlanReport)
    return {
        "report": report,
        "title": report.name or f"{'Plan' if is_plan else 'Replay'} for {report.model}",
        "candidates": _candidates(report),
        "best": report.recommendations[0] if isinstance(report, PlanReport) and report.recommendations else None,
        "alternatives": sections.alternatives(report) if isinstance(report, PlanReport) else None,
        "measure_first": sections.measure_first(report) if isinstance(report, PlanReport) else [],
        "infeasible": sections.infeasible(report) if isinstance(report, PlanReport) else None,
        "facts": sections.facts(report.workload),
        "lengths": sections.lengths(report.workload),
        "load": sections.workload(report.workload),
        "curves": _curves(report) if isinstance(report, PlanReport) else [],
        "over_time": over_time.charts(report.timeline) if isinstance(report, ReplayReport) and report.timeline else [],
        "over_time_notes": report.timeline.notes if isinstance(report, ReplayReport) and report.timeline else (),
        "splits": [over_time.split_table(one) for one in report.splits] if isinstance(report, ReplayReport) else [],
        "memory": sections.memory(sections.stacks(report)),
        "memory_notes": unique(note for _, stack in sections.stacks(report) for note in stack.notes),
        "costs": sections.costs(sections.priced(report)),
        "price_sources": sections.price_sources(sections.priced(report)),
        "step_time_notes": unique(note for one in sections.step_times(report) for note in one.notes),
        "engine": _first_engine(report),
        "ingest": flatten(report.workload.ingest),
    }


def _candidates(report: PlanReport | ReplayReport) -> list[Candidate]:
    if isinstance(report, PlanReport):
        return [_candidate(one, one) for one in report.recommendations]
    return [_candidate(report, report.operating)]


def _candidate(one: Recommendation | ReplayReport, run: Operating) -> Candidate:
    latency, objectives = sections.latency(run.metrics), sections.objectives(run.objectives)
    pools = sections.pools(one.pools)
    return Candidate(sections.label_of(one), objectives, latency, sections.operating(run), pools, run.notes)


def _curves(report: PlanReport) -> list[Curve]:
    feasible = [
        Curve(
            sections.label_of(one),
            one.evidence.sentence,
            sections.capacity(one.curve, f"capacity-{one.rank}", f"TP{one.tp} {one.gpu}"),
            one.certainty,
        )
        for one in report.recommendations
    ]
    replayed = (one for one in report.infeasible if one.curve)
    failed = [
        Curve(
            f"TP{one.tp} {one.gpu}, no answer",
            one.reason,
            sections.capacity(one.curve, f"capacity-no-{i}", f"TP{one.tp} {one.gpu}"),
        )
        for i, one in enumerate(replayed)
    ]
    return feasible + failed


def _first_engine(report: PlanReport | ReplayReport) -> Any:
    if isinstance(report, ReplayReport):
        return report.engine
    return report.recommendations[0].engine if report.recommendations else None


def unique(items: Iterable[str]) -> list[str]:
    """The items in order, each once."""
    return list(dict.fromkeys(items))


def flatten(facts: Any, prefix: str = "", limit: int = 60) -> list[tuple[str, str]]:
    """Nested facts as ``(name, value)`` rows; lists of more than eight entries are counted, not shown."""
    rows: list[tuple[str, str]] = []
    for key, value in facts.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, dict):
            rows += flatten(value, f"{name}: ", limit)
        elif isinstance(value, list):
            scalars = all(not isinstance(item, (dict, list)) for item in value)
            if value:
                rows.append(
                    (name, ", ".join(map(str, value)) if scalars and len(value) <= 8 else f"{len(value)} entries")
                )
        elif value is not None:
            rows.append((name, f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)))
    return rows[:limit]


def plotly_file() -> Path:
    """The ``plotly.min.js`` of the installed package, found without importing it."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise RuntimeError("the plotly package is not installed; charts need it")
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"


@cache
def plotly_script() -> str:
    """Plotly's script, safe inside a ``<script>`` element."""
    return plotly_file().read_text(encoding="utf-8").replace("</script", "<\\/script")
