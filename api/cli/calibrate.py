"""``capreplay calibrate``: a user's own calibration from measurements of one deployment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from api.cli.endpoint import EndpointRun, calibrate_endpoint, endpoint_options, print_plan
from api.cli.options import engine_of, engine_options, model_option, options
from api.cli.output import Progress, json_option, print_json, table

if TYPE_CHECKING:
    from replay.calibration.user import UserCalibration


@click.command("calibrate", short_help="Fit the step times of a deployment of yours to measurements of it.")
@options(
    model_option,
    click.option("--gpu", required=True, help="GPU type: catalogue key, alias, or path to a JSON entry."),
    click.option("--tp", type=click.IntRange(1, 64), default=1, show_default=True, help="Tensor-parallel GPUs."),
    click.option(
        "--from",
        "files",
        multiple=True,
        type=click.Path(path_type=Path),
        help="Measurements: a benchmark's result with per-request detail, or a table of steps. Repeatable.",
    ),
    endpoint_options,
    engine_options,
    click.option("--output", type=click.Path(path_type=Path), help="Write the calibration to this JSON file."),
    json_option,
)
def command(
    model: str,
    gpu: str,
    tp: int,
    files: tuple[Path, ...],
    engine: str,
    sets: tuple[str, ...],
    weight_dtype: str | None,
    kv_dtype: str | None,
    max_model_len: int | None,
    output: Path | None,
    as_json: bool,
    **endpoint_run: Any,
) -> None:
    """Fit the step times of a deployment of yours to measurements of it.

    Takes runs of load generators (vLLM bench serve with --save-detailed, GuideLLM, AIPerf, inference-perf) or a table
    of steps; or measures a running server itself with --endpoint, by a short experiment that --dry-run prints. What the
    measurements do not tell stays as shipped, and is named. Give the engine's settings as the server had them. replay
    and run take the result with --calibration.
    """
    from datetime import UTC, datetime

    from api.cli.lookup import with_gpus, with_model
    from replay.calibration.fit import calibrate
    from replay.deployment import resolve_deployment
    from replay.hardware.catalogue import shipped_catalogue
    from replay.specs import DeploymentSpec

    run = EndpointRun(**endpoint_run)
    run.check(files)
    if output is not None and not output.parent.is_dir():
        raise click.UsageError(f"--output {output}: the folder {output.parent} does not exist")
    catalogue, model_key = with_model(shipped_catalogue(), model)
    catalogue, (gpu_key, *_) = with_gpus(catalogue, (gpu,))
    spec = DeploymentSpec.model_validate(
        {
            "model": model_key,
            "gpu": gpu_key,
            "tp": tp,
            "engine": engine_of(engine, sets),
            "weight_dtype": weight_dtype,
            "kv_dtype": kv_dtype,
            "max_model_len": max_model_len,
        }
    )
    deployment = resolve_deployment(spec, catalogue.model(model_key), catalogue.gpu(gpu_key))
    today = datetime.now(UTC).date()
    experiment = {}
    if run.endpoint:
        if run.dry_run:
            print_plan(run, deployment, as_json=as_json)
            return
        found, experiment["experiment"] = calibrate_endpoint(run, deployment, today)
    else:
        progress = Progress()
        found = calibrate(files, deployment, today=today, progress=lambda share: progress("replaying", share))
        progress.done()
    if output is not None:
        output.write_text(json.dumps(found.model_dump(mode="json"), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        click.echo(f"calibration written to {output}", err=True)
    if as_json:
        print_json({"id": found.id, **found.model_dump(mode="json"), **experiment})
    else:
        click.echo(calibration_text(found))


def calibration_text(found: UserCalibration) -> str:
    """The calibration in words and tables."""
    from replay.calibration.user import KNOT_MEANING

    key = found.deployment
    where = f"{key.model} on {key.tp} x {key.gpu} ({key.family}, {key.weight_dtype} weights, {key.kv_dtype} KV cache)"
    lines = [f"Calibration {found.id} of {where}, from {found.measurements} measurements.", ""]
    rows = [
        (one.name, _value(one.name, one.value), _value(one.name, one.shipped), one.reason or found.meaning(one.name))
        for one in found.parameters
    ]
    lines.append(table(("parameter", "value", "shipped", ""), rows, left=(0, 3), wrap=60))
    if found.shape is not None:
        knots = [
            (f"{one.tokens:,}", f"{one.factor:.3f}", f"{one.prior:.3f}", one.reason or KNOT_MEANING)
            for one in found.shape.knots
        ]
        lines.append(table(("knot, tokens", "factor", "prior", ""), knots, left=(3,), wrap=60))
    for error in found.errors:
        lines.append(
            f"{error.what}: error {error.median:.1%} in the median, {error.p95:.1%} at p95 (cross-validated, "
            f"n {error.n}); shipped {error.shipped_median:.1%}."
        )
    if not found.errors:
        lines.append("Too few measurements to leave any out: the error is not known.")
    return "\n".join([*lines, *(f"note: {note}" for note in found.notes)])


def _value(name: str, value: float) -> str:
    return f"{value:.3f}" if name.endswith("factor") else f"{value * 1e6:,.1f} us"
