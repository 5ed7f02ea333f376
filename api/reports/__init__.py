"""Report documents (``capreplay.report/1``) as HTML pages and CSV tables. Imports what it needs when it is called."""

from __future__ import annotations

from typing import Any


def render_html(document: dict[str, Any], *, standalone: bool) -> str:
    """A report as one HTML page.

    ``standalone``: styles, charts and scripts are inside, so that the file opens offline; else they come from
    ``/static`` under a policy without inline scripts.

    Raises:
        pydantic.ValidationError: where ``document`` is no ``capreplay.report/1`` document.
    """
    from api.reports.html import page

    return page(document, standalone=standalone)


def render_csv(document: dict[str, Any]) -> str:
    """A report as one CSV table: a row for each candidate of a plan, or one row for a replay. Full precision.

    Raises:
        pydantic.ValidationError: where ``document`` is no ``capreplay.report/1`` document.
    """
    from api.reports.summary import summary_table
    from api.reports.tables import to_csv

    return to_csv(summary_table(document))


def render_timeline_csv(document: dict[str, Any]) -> str:
    """The timeline of a replay's report as CSV, a row a bin. Full precision.

    Raises:
        pydantic.ValidationError: where ``document`` is no ``capreplay.report/1`` document.
        ValueError: where it has no timeline.
    """
    from api.reports.over_time import timeline_table
    from api.reports.tables import to_csv
    from replay.planning.document import ReplayReport, parse_report

    report = parse_report(document)
    if not isinstance(report, ReplayReport) or report.timeline is None:
        raise ValueError("the report has no timeline")
    return to_csv(timeline_table(report.timeline))


__all__ = ["render_csv", "render_html", "render_timeline_csv"]
