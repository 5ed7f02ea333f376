"""A calibration as tables and charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api.reports import figures
from api.reports.sections import Chart
from api.reports.tables import Cell, Column, Table
from models.use_cases.calibrations import KeptCalibration
from replay.calibration.user import KNOT_MEANING, Shape, UserCalibration
from replay.hardware.start_up_log import StartUpLog


def context(kept: KeptCalibration) -> dict[str, Any]:
    """What ``calibration.html`` shows."""
    found = kept.calibration
    return {
        "kept": kept,
        "key": found.deployment,
        "found": found,
        "parameters": parameter_table(found),
        "knots": None if found.shape is None else knot_table(found.shape),
        "errors": error_table(found),
        "agreement": agreement_chart(found) if found.residuals else None,
        "residuals": residual_chart(found) if found.residuals else None,
    }


def headline(found: UserCalibration) -> tuple[float, float] | None:
    """Median and 95th percentile of the error that stands for the whole; ``None``: not known."""
    shown = found.headline
    return None if shown is None else (shown.median, shown.p95)


def parameter_table(found: UserCalibration) -> Table:
    """Each parameter beside the shipped one, and why it stayed where it did."""
    columns = (
        Column("parameter", "parameter", "name"),
        Column("value", "value"),
        Column("shipped", "shipped"),
        Column("spread", "sd"),
        Column("unit", "unit", "name"),
        Column("what it is, or why it stays as shipped", "reason", "text"),
    )
    rows: list[tuple[Cell, ...]] = []
    for one in found.parameters:
        factor = one.name.endswith("factor")
        size = 1.0 if factor else 1e6
        values = [None if value is None else value * size for value in (one.value, one.shipped, one.sd)]
        said = found.meaning(one.name) if one.identified else f"stays as shipped: {one.reason or 'not fitted'}"
        rows.append((one.name, *values, "x" if factor else "us", said))
    return Table("Parameters", columns, tuple(rows))


def knot_table(shape: Shape) -> Table:
    """The linear part's own shape, knot by knot."""
    columns = (
        Column("tokens of the step", "tokens"),
        Column("factor", "factor"),
        Column("prior", "prior"),
        Column("spread", "sd"),
        Column("shipped, s", "shipped_s"),
        Column("what it is, or why it stays at the prior", "reason", "text"),
    )
    rows = tuple(
        (one.tokens, one.factor, one.prior, one.sd, one.shipped_s, one.reason or KNOT_MEANING) for one in shape.knots
    )
    return Table("Own shape of the linear part", columns, rows)


def error_table(found: UserCalibration) -> Table:
    """Errors of what was left out of the fit, by phase, beside those of the shipped step times."""
    columns = (
        Column("left out", "what", "text"),
        Column("median error", "median", "percent"),
        Column("95th percentile", "p95", "percent"),
        Column("shipped, median", "shipped_median", "percent"),
        Column("measurements", "n"),
    )
    rows = tuple((one.what, one.median, one.p95, one.shipped_median, one.n) for one in found.errors)
    return Table("Error by cross-validation", columns, rows)


def agreement_chart(found: UserCalibration) -> Chart:
    """Measured against predicted."""
    columns = (
        Column("measurement", "measurement", "text"),
        Column("phase", "phase", "text"),
        Column("measured", "measured_s", "seconds"),
        Column("predicted", "predicted_s", "seconds"),
    )
    rows = tuple((one.label, one.phase, one.measured_s, one.predicted_s) for one in found.residuals)
    return Chart(
        "agreement",
        "Measured and predicted times",
        "Points on the line are predicted exactly, points above it too slow.",
        figures.agreement(_by_phase(found)),
        Table("Measured and predicted times", columns, rows),
    )


def residual_chart(found: UserCalibration) -> Chart:
    """The error of each measurement by its size."""
    errors = [one.predicted_s / one.measured_s - 1 for one in found.residuals]
    columns = (
        Column("measurement", "measurement", "text"),
        Column("phase", "phase", "text"),
        Column("measured", "measured_s", "seconds"),
        Column("predicted over measured - 1", "error", "percent"),
    )
    rows = tuple(
        (one.label, one.phase, one.measured_s, error) for one, error in zip(found.residuals, errors, strict=True)
    )
    slow = sum(error > 0 for error in errors)
    return Chart(
        "residuals",
        "Residuals by size",
        f"{slow} of {len(errors)} are predicted too slow, the others too fast. A good fit has both at every size.",
        figures.residuals(_by_phase(found)),
        Table("Residuals by size", columns, rows),
    )


def log_table(log: StartUpLog) -> Table:
    """What a start-up log says, and on which line."""
    columns = (Column("setting", "setting", "name"), Column("value", "value", "text"), Column("line", "line"))
    rows = tuple((name.replace("_", " "), str(one.value), one.line) for name, one in log.found.items())
    return Table(f"Read from the log of {'vLLM' if log.engine == 'vllm' else 'SGLang'}", columns, rows)


def _by_phase(found: UserCalibration) -> dict[str, Sequence[tuple[float, float]]]:
    points: dict[str, list[tuple[float, float]]] = {}
    for one in found.residuals:
        points.setdefault(one.phase or "measurements", []).append((one.measured_s, one.predicted_s))
    return dict(points)
