"""``capreplay calibrate --endpoint``: the plan in words, the measuring, and what is kept of it."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from api.cli.options import options
from api.cli.output import Progress, print_json, table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from api.endpoint.experiment import Findings
    from replay.calibration.user import UserCalibration
    from replay.deployment import Deployment
    from replay.experiment.plan import Plan

_FITS = 0.03
"""An error by cross-validation above which the fitted form, not the noise of an experiment, is what is off."""
_MOST_NOTES = 20
_NOTE_CHARACTERS = 500

endpoint_options = options(
    click.option(
        "--endpoint", metavar="URL", help="Measure this OpenAI-compatible server, e.g. http://gpu-1:8000, and fit that."
    ),
    click.option("--served-model", metavar="NAME", help="Name under which it serves; default: its only model."),
    click.option(
        "--api-key",
        metavar="KEY",
        envvar="CAPREPLAY_ENDPOINT_API_KEY",
        show_envvar=True,
        help="Key of the server; the variable keeps it out of the list of processes.",
    ),
    click.option(
        "--max-seconds", type=click.FloatRange(5, 86_400), default=180, show_default=True, help="Measure no longer."
    ),
    click.option(
        "--max-tokens",
        type=click.IntRange(1_000, 1_000_000_000),
        default=300_000,
        show_default=True,
        help="Prompt and output tokens to spend at most.",
    ),
    click.option("--dry-run", is_flag=True, help="Print what would be sent, and send nothing."),
    click.option(
        "--save-measurements",
        type=click.Path(path_type=Path),
        metavar="FILE.json",
        help="Keep the measured steps, also of an interrupted run; --from reads the file.",
    ),
)


@dataclass(frozen=True)
class EndpointRun:
    """The values of ``endpoint_options``."""

    endpoint: str | None
    served_model: str | None
    api_key: str | None = field(repr=False)
    max_seconds: float
    max_tokens: int
    dry_run: bool
    save_measurements: Path | None

    def check(self, files: Sequence[Path]) -> None:
        """Refuses options that say two things.

        Raises:
            click.UsageError: with the cure.
        """
        if bool(files) == bool(self.endpoint):
            both = "not both" if files else "neither was given"
            raise click.UsageError(f"give measurements with --from, or a server with --endpoint; {both}")
        save = self.save_measurements
        for name, given in (
            ("--dry-run", self.dry_run),
            ("--save-measurements", save is not None),
            ("--served-model", self.served_model is not None),
        ):
            if given and not self.endpoint:
                raise click.UsageError(f"{name} goes with --endpoint")
        if save is not None and save.suffix != ".json":
            raise click.UsageError(f"--save-measurements {save}: give a name that ends in .json")
        if save is not None and not save.parent.is_dir():
            raise click.UsageError(f"--save-measurements {save}: the folder {save.parent} does not exist")


def print_plan(run: EndpointRun, deployment: Deployment, *, as_json: bool) -> None:
    """What would be sent.

    Raises:
        SpecError: where nothing can be measured.
    """
    from api.endpoint.client import base_url
    from replay.experiment.plan import plan_experiment

    address = base_url(run.endpoint or "")
    plan = plan_experiment(deployment, max_tokens=run.max_tokens, max_seconds=run.max_seconds)
    if as_json:
        print_json(_plan_document(plan, address))
    else:
        click.echo(_plan_text(plan, address))


def _plan_text(plan: Plan, address: str) -> str:
    rows = [
        (part.label, f"{part.tokens:,}", f"{estimate:.1f}", part.identifies)
        for part, estimate in zip(plan.parts, plan.estimated_s, strict=True)
    ]
    size = f"{plan.requests} requests, {plan.tokens:,} tokens, about {plan.seconds:.0f} s by the shipped step times"
    left_out = [f"left out: {one}" for one in plan.left_out]
    shown = table(("part", "tokens", "s", "tells"), rows, left=(0, 3), wrap=40)
    return "\n".join([f"{address}: {size}. Nothing was sent.", "", shown, *left_out])


def _plan_document(plan: Plan, address: str) -> dict[str, Any]:
    parts = [
        {**asdict(part), "tokens": part.tokens, "estimated_s": estimate, "label": part.label, "tells": part.identifies}
        for part, estimate in zip(plan.parts, plan.estimated_s, strict=True)
    ]
    return {
        "endpoint": address,
        "requests": plan.requests,
        "tokens": plan.tokens,
        "estimated_s": plan.seconds,
        "parts": parts,
        "left_out": list(plan.left_out),
    }


def calibrate_endpoint(run: EndpointRun, deployment: Deployment, today: date) -> tuple[UserCalibration, dict[str, Any]]:
    """Measures the server and fits what was measured; also what was done and lost.

    Raises:
        SpecError: where the server cannot be measured; else as ``calibrate``.
    """
    from replay.calibration.fit import calibrate

    with tempfile.TemporaryDirectory(prefix="capreplay-") as folder:
        path = run.save_measurements or Path(folder) / "measurements.json"
        found = _measure(run, deployment, today, path)
        calibration = calibrate([path], deployment, today=today)
    return with_findings(calibration, found, run.endpoint or ""), _document(run, found)


def with_findings(calibration: UserCalibration, found: Findings, endpoint: str) -> UserCalibration:
    """The calibration with its server as the source, and with notes on what was measured, lost, or does not fit."""
    notes = [*calibration.notes, *found.notes]
    for error in calibration.errors:
        if error.median > _FITS:
            notes.append(
                f"{error.what}: left-out measurements are {error.median:.1%} off in the median. What was measured "
                "repeats better than that, so the server's steps follow neither the shipped shape nor a curve of few "
                "knots: check model, GPU type, tp, dtypes and the engine's settings."
            )
    notes += [f"Not measured: {one}" for one in found.lost]
    if len(notes) > _MOST_NOTES:
        notes = [*notes[: _MOST_NOTES - 1], f"{len(notes) - _MOST_NOTES + 1} more notes are left out."]
    changes = {"sources": [f"{endpoint} ({found.model})"[:300]], "notes": [one[:_NOTE_CHARACTERS] for one in notes]}
    return type(calibration).model_validate({**calibration.model_dump(), **changes})


def _measure(run: EndpointRun, deployment: Deployment, today: date, path: Path) -> Findings:
    """Measures, and writes the steps to ``path``, also where it ends early."""
    import asyncio

    from api.endpoint.client import opened
    from api.endpoint.experiment import Budget, Experiment, Findings
    from api.endpoint.prompts import Prompts

    found, progress, finished = Findings(), Progress(), False

    async def whole() -> None:
        prompts = Prompts(deployment.model.vocab_size)
        async with opened(run.endpoint or "", prompts, key=run.api_key) as server:
            budget = Budget(run.max_tokens, run.max_seconds)
            await Experiment(server, deployment, budget, found, progress=progress).run(run.served_model)

    try:
        asyncio.run(whole())
        finished = True
    finally:
        progress.done()
        if found.rows:
            steps = [row.columns() for row in found.rows]
            document = {"date": today.isoformat(), **_document(run, found), "steps": steps}
            path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
            if run.save_measurements:
                click.echo(f"{len(found.rows)} measurements written to {path}", err=True)
            elif not finished:
                click.echo(f"{len(found.rows)} measurements are dropped; --save-measurements keeps them", err=True)
    return found


def _document(run: EndpointRun, found: Findings) -> dict[str, Any]:
    return {
        "endpoint": run.endpoint,
        "served_model": found.model,
        "asked_by": found.dialect,
        "requests": found.requests,
        "tokens": found.tokens,
        "seconds": round(found.seconds, 3),
        "lost": found.lost,
        "notes": found.notes,
    }
