"""The answer of ``capreplay accuracy``: every run of a folder replayed, scored, and summed up, as one document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from replay.accuracy.field import beside_the_field
from replay.accuracy.largest_rate import largest_rates
from replay.accuracy.replayed import METRICS, Figure, ScoredRun, resolved, score_run
from replay.accuracy.runs import MeasuredRun, Unreplayed, read_runs
from replay.accuracy.summary import THROUGHPUT_GOAL, judged, summarise, worst_runs
from replay.errors import SpecError
from replay.hardware.catalogue import Catalogue

Told = Callable[[str], None]


def _nothing(_: str) -> None:
    return None


def score_folder(
    root: Path, catalogue: Catalogue, *, only: str = "", rate_errors: bool = True, told: Told = _nothing
) -> tuple[list[ScoredRun], list[Unreplayed]]:
    """Every experiment below ``root`` with ``only`` in its name: those replayed, and those not, with the reason.
    ``told`` hears each name. ``rate_errors``: look for step-time factors near saturation.

    Raises:
        SpecError: ``accuracy.empty`` where there is no experiment.
    """
    scored: list[ScoredRun] = []
    left_out: list[Unreplayed] = []
    for run in read_runs(root, only):
        told(run.experiment)
        if isinstance(run, MeasuredRun):
            try:
                scored.append(score_run(run, resolved(run, catalogue), rate_error=rate_errors))
            except SpecError as error:
                field = error.errors[0].field if error.errors else None
                left_out.append(Unreplayed(run.experiment, error.detail, field))
        else:
            left_out.append(run)
    return scored, left_out


def accuracy_document(scored: list[ScoredRun], left_out: list[Unreplayed]) -> dict[str, Any]:
    """What ``--json`` prints. Errors are shares: 0.05 is 5 % too long."""
    verdicts = [(run, verdict) for run in scored if (verdict := judged(run)) is not None]
    return {
        "experiments": [experiment_document(run) for run in scored],
        "not_replayed": [asdict(one) for one in left_out],
        "medians": [
            {
                "gpu": group.gpu,
                "models": group.kind,
                "region": group.region,
                "aggregates_only": group.aggregates_only,
                "figures": {
                    one.name: {**{k: v for k, v in asdict(one).items() if k != "name"}, "reached": one.reached}
                    for one in group.spreads
                },
            }
            for group in summarise(scored)
        ],
        "worst": [
            {"experiment": run.experiment, "figure": name, "error": error} for run, name, error in worst_runs(scored)
        ],
        "saturation": {
            "judged": len(verdicts),
            "right": sum(verdict for _, verdict in verdicts),
            "wrong": [run.experiment for run, verdict in verdicts if not verdict],
        },
        "throughput": _throughput_document(scored),
        "field": beside_the_field(scored),
        "largest_rates": [
            {**asdict(one), "error": one.error, "steps_off": one.steps_off} for one in largest_rates(scored)
        ],
    }


def _throughput_document(scored: list[ScoredRun]) -> dict[str, Any]:
    """Runs whose throughput counts because their latency says nothing."""
    errors = [run.throughput.relative for run in scored if run.throughput is not None and run.throughput.counts]
    return {
        "runs": len(errors),
        "goal": THROUGHPUT_GOAL,
        "within_goal": sum(abs(error) <= THROUGHPUT_GOAL for error in errors),
        "median": median(abs(error) for error in errors) if errors else None,
    }


def experiment_document(run: ScoredRun) -> dict[str, Any]:
    """One run. ``error`` is null where the rules do not let a figure count; measured and simulated stand anyway."""
    figures = {metric: {name: _figure(one) for name, one in run.figures[metric].items()} for metric in METRICS}
    return {
        "experiment": run.experiment,
        "gpu": run.gpu,
        "model": run.model,
        "tp": run.tp,
        "n": run.n,
        "region": run.region,
        **figures,
        "output_tokens_per_s": None if run.throughput is None else _figure(run.throughput),
        "saturated_expected": run.saturated_expected,
        "saturated": run.saturated,
        "load_factor": run.load_factor,
        "rate_per_s": run.rate_per_s,
        "rate_error": run.rate_error,
        "quality": run.quality,
        "aggregates_only": run.aggregates_only,
        "unscored": run.unscored,
        "step_times": run.provenance,
        "calibration_id": run.calibration_id,
        "notes": list(run.notes),
    }


def _figure(figure: Figure) -> dict[str, float | None]:
    return {"measured": figure.measured, "simulated": figure.simulated, "error": figure.error}
