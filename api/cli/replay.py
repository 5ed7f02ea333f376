"""``capreplay replay``: one deployment under one trace."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from api.cli.lookup import with_gpus, with_model
from api.cli.options import (
    calibration_option,
    cold_starts_of,
    comma_list,
    engine_of,
    engine_options,
    failure_options,
    failures_of,
    format_options,
    ingest_options_of,
    model_option,
    options,
    router_options,
    slo_option,
    timeout_option,
    trace_argument,
    transform_of,
    transform_options,
)
from api.cli.output import json_option, print_json
from api.cli.pools import POOL_OPTIONS, disaggregation_of, pool_options
from api.cli.run import check_report_path, replay_locally, write_report, write_requests, write_timeline


@click.command("replay", short_help="Replay a trace on one deployment and print every metric.")
@options(
    trace_argument,
    model_option,
    click.option("--gpu", required=True, help="GPU type: catalogue key, alias, or path to a JSON entry."),
    click.option(
        "--tp", type=click.IntRange(1, 64), default=1, show_default=True, help="Tensor-parallel GPUs a replica."
    ),
    click.option(
        "--replicas", type=click.IntRange(1, 4096), default=1, show_default=True, help="Replicas behind the router."
    ),
    pool_options,
    slo_option,
    transform_options,
    engine_options,
    router_options,
    timeout_option,
    failure_options,
    calibration_option,
    format_options,
    click.option("--threads", type=click.IntRange(1, 256), help="Threads that share the replicas; default: all cores."),
    click.option(
        "--requests-out", type=click.Path(path_type=Path), help="Write the per-request table to this Parquet file."
    ),
    click.option(
        "--timeline-out", type=click.Path(path_type=Path), help="Write the replay over time to this CSV file."
    ),
    click.option(
        "--timeline-bin", type=float, metavar="SECONDS", help="Resolution of the timeline; default: one that suits."
    ),
    click.option("--report", type=click.Path(path_type=Path), help="Write the report here: .html, .json or .csv."),
    json_option,
)
def command(
    trace: Path,
    model: str,
    gpu: str,
    tp: int,
    replicas: int,
    growth: float,
    slo: tuple[str, ...],
    window: str | None,
    warmup: float,
    cooldown: float,
    max_excluded_share: float,
    changes: dict[str, Any],
    seed: int,
    engine: str,
    sets: tuple[str, ...],
    weight_dtype: str | None,
    kv_dtype: str | None,
    max_model_len: int | None,
    router: str,
    router_snapshot_s: float | None,
    client_timeout_s: float | None,
    failures: tuple[str, ...],
    cold_starts: tuple[str, ...],
    calibrations: tuple[Path, ...],
    threads: int | None,
    requests_out: Path | None,
    timeline_out: Path | None,
    timeline_bin: float | None,
    report: Path | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Replay a trace on one deployment and print every metric.

    Prints latency percentiles, counts, load and use of TRACE on this deployment. Overload is an answer: the result
    then says saturated, with the rate that could be sustained.
    """
    from replay.hardware.catalogue import shipped_catalogue
    from replay.specs import ReplaySpec, parse_objective

    started = time.perf_counter()
    check_report_path(report)
    for option, path in (("--requests-out", requests_out), ("--timeline-out", timeline_out)):
        if path is not None and not path.parent.is_dir():
            raise click.UsageError(f"{option} {path}: the folder {path.parent} does not exist")
    apart = disaggregation_of(**{name: how.pop(name) for name in POOL_OPTIONS})
    catalogue, model_key = with_model(shipped_catalogue(), model)
    catalogue, (gpu_key, *_) = with_gpus(catalogue, (gpu,))
    spec = ReplaySpec.model_validate(
        {
            "deployment": {
                "model": model_key,
                "gpu": gpu_key,
                "tp": tp,
                "replicas": replicas,
                "engine": engine_of(engine, sets),
                "router": router,
                "router_snapshot_s": router_snapshot_s,
                "weight_dtype": weight_dtype,
                "kv_dtype": kv_dtype,
                "max_model_len": max_model_len,
                "disaggregation": apart,
                "client_timeout_s": client_timeout_s,
                "failures": failures_of(failures),
                "cold_starts": cold_starts_of(cold_starts),
            },
            "transform": transform_of(growth, window, warmup, cooldown, max_excluded_share, changes),
            "objectives": tuple(parse_objective(text) for text in comma_list(slo)),
            "timeline_bin_s": timeline_bin,
            "seed": seed,
        }
    )
    document, result = replay_locally(trace, spec, catalogue, ingest_options_of(**how), threads, calibrations)
    if requests_out is not None:
        write_requests(result, requests_out)
    if timeline_out is not None:
        write_timeline(document, timeline_out)
    write_report(document, report)
    wall_s = time.perf_counter() - started
    if as_json:
        print_json(answer(document, result.kernel_s, wall_s))
    else:
        from api.cli.text import replay_text

        click.echo(replay_text(document, result.kernel_s, wall_s))


def answer(document: dict[str, Any], kernel_s: float, wall_s: float) -> dict[str, Any]:
    """The JSON object of the verb: the replay's figures on top, the rest of its report below. Times in seconds."""
    workload = {key: value for key, value in document["workload"].items() if key not in ("series", "ingest")}
    head: dict[str, Any] = {
        key: document[key] for key in ("schema", "verdict", "model", "gpu", "tp", "replicas", "gpus")
    }
    timing = {"kernel_s": round(kernel_s, 6), "wall_s": round(wall_s, 6)}
    parts = ("pools", "splits", "timeline", "cost", "memory", "engine", "step_time", "provenance", "warnings")
    tail = {key: document[key] for key in parts}
    operating: dict[str, Any] = document["operating"]
    return head | operating | timing | {"trace": workload} | tail
