"""``capreplay run``, and what runs in this process for it and for ``replay``: no server, no database, no queue."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from api.cli.lookup import with_gpus, with_model
from api.cli.options import (
    calibration_option,
    calibrations_of,
    comma_ints,
    comma_list,
    engine_of,
    engine_options,
    format_options,
    id_key_of,
    ingest_options_of,
    model_option,
    objectives_of,
    options,
    own_prices_of,
    price_options,
    router_options,
    slo_option,
    timeout_option,
    trace_argument,
    transform_of,
    transform_options,
)
from api.cli.output import Progress, json_option, print_json
from api.cli.pools import OPEN_POOL_OPTIONS, disaggregation_of, open_pool_options

if TYPE_CHECKING:
    from replay.hardware.catalogue import Catalogue
    from replay.results import ReplayResult
    from replay.specs import PlanSpec, ReplaySpec
    from replay.traces.options import IngestOptions


@click.command("run", short_help="Size a trace: how many GPUs of which type meet the objectives, and at what cost.")
@options(
    trace_argument,
    model_option,
    click.option("--gpu", "gpus", multiple=True, required=True, metavar="G[,G...]", help="GPU types to try."),
    click.option(
        "--tp", "tps", multiple=True, metavar="N[,N...]", help="Tensor-parallel sizes to try; default 1,2,4,8."
    ),
    slo_option,
    transform_options,
    engine_options,
    router_options,
    open_pool_options,
    timeout_option,
    click.option(
        "--survive-failures",
        type=click.IntRange(0, 64),
        default=0,
        show_default=True,
        metavar="K",
        help="Buy K replicas more, so that the objectives are met with any K of them down.",
    ),
    calibration_option,
    price_options,
    click.option("--max-gpus", type=int, help="Hard cap on the GPUs of an answer."),
    click.option("--max-usd-per-hour", type=float, help="Hard cap on the cost of an answer."),
    click.option("--name", default="", help="Name of the plan, for its report."),
    format_options,
    click.option("--threads", type=click.IntRange(1, 256), help="Candidates replayed at once; default: one a core."),
    click.option("--report", type=click.Path(path_type=Path), help="Write the report here: .html, .json or .csv."),
    json_option,
)
def command(
    trace: Path,
    model: str,
    gpus: tuple[str, ...],
    tps: tuple[str, ...],
    slo: tuple[str, ...],
    growth: float,
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
    survive_failures: int,
    calibrations: tuple[Path, ...],
    price_provider: str | None,
    price_region: str | None,
    price_term: str,
    own_prices: tuple[str, ...],
    max_gpus: int | None,
    max_usd_per_hour: float | None,
    name: str,
    threads: int | None,
    report: Path | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Size a trace: how many GPUs of which type meet the objectives, and at what cost.

    TRACE is replayed on every GPU type and tensor-parallel size; the fewest replicas that meet every objective are
    found by real replays, priced and ranked. Without --slo: ttft_p99=2s and itl_p99=100ms, and the output says so.
    """
    from replay.hardware.catalogue import shipped_catalogue
    from replay.specs import PlanSpec

    check_report_path(report)
    apart = disaggregation_of(**{name: how.pop(name) for name in OPEN_POOL_OPTIONS}, counted=False)
    objectives, note = objectives_of(slo)
    catalogue, model_key = with_model(shipped_catalogue(), model)
    catalogue, gpu_keys = with_gpus(catalogue, comma_list(gpus))
    body: dict[str, Any] = {
        "name": name,
        "model": model_key,
        "gpus": gpu_keys,
        "objectives": objectives,
        "transform": transform_of(growth, window, warmup, cooldown, max_excluded_share, changes),
        "engine": engine_of(engine, sets),
        "router": router,
        "router_snapshot_s": router_snapshot_s,
        "weight_dtype": weight_dtype,
        "kv_dtype": kv_dtype,
        "max_model_len": max_model_len,
        "client_timeout_s": client_timeout_s,
        "survive_failures": survive_failures,
        "disaggregation": apart,
        "price": {
            "provider": price_provider,
            "region": price_region,
            "term": price_term,
            "usd_per_gpu_hour": own_prices_of(own_prices),
        },
        "max_gpus": max_gpus,
        "max_usd_per_hour": max_usd_per_hour,
        "seed": seed,
    }
    if tps:
        body["tp"] = comma_ints(tps, "--tp")
    document = plan_locally(
        trace, PlanSpec.model_validate(body), catalogue, ingest_options_of(**how), threads, calibrations
    )
    if note is not None:
        click.echo(f"note: {note}", err=True)
        document["warnings"] = [f"{note[0].upper()}{note[1:]}.", *document["warnings"]]
    write_report(document, report)
    if as_json:
        from replay.planning.document import PlanReport, run_answer

        print_json(run_answer(PlanReport.model_validate(document)))
    else:
        from api.cli.text import plan_text

        click.echo(plan_text(document))


def plan_locally(
    trace: Path,
    spec: PlanSpec,
    catalogue: Catalogue,
    how: IngestOptions,
    threads: int | None,
    calibrations: tuple[Path, ...] = (),
) -> dict[str, Any]:
    """The report document of a plan, computed in this process; ``threads`` candidates are replayed at once.

    Raises:
        SpecError, TraceError: refusals, with field and cure.
    """
    from worker.runner import run_plan_locally

    own = calibrations_of(calibrations)
    progress = Progress()
    cores = threads or len(os.sched_getaffinity(0))
    document = run_plan_locally(
        trace, spec, catalogue, how, threads=cores, calibrations=own, progress=progress, id_key=id_key_of(how)
    )
    progress.done()
    return document


def replay_locally(
    trace: Path,
    spec: ReplaySpec,
    catalogue: Catalogue,
    how: IngestOptions,
    threads: int | None,
    calibrations: tuple[Path, ...] = (),
) -> tuple[dict[str, Any], ReplayResult]:
    """The report document and the result of one replay, computed in this process.

    Raises:
        SpecError, TraceError: refusals, with field and cure.
    """
    from worker.runner import run_replay_locally

    own = calibrations_of(calibrations)
    progress = Progress()
    cores = threads or len(os.sched_getaffinity(0))
    answer = run_replay_locally(
        trace, spec, catalogue, how, threads=cores, calibrations=own, progress=progress, id_key=id_key_of(how)
    )
    progress.done()
    return answer


def write_requests(result: ReplayResult, path: Path) -> None:
    """The per-request table as Parquet: times in int64 picoseconds from the window's start, -1 where never."""
    from worker.runner import write_requests as write

    write(result.requests, path)


def warm_up() -> float:
    """Compiles every kernel into the cache; the seconds it took."""
    from worker.runner import warm_up as compile_kernels

    return compile_kernels(everything=True)


def write_timeline(document: dict[str, Any], path: Path) -> None:
    """The timeline of a replay's report as CSV."""
    from api.reports import render_timeline_csv

    path.write_text(render_timeline_csv(document), encoding="utf-8", newline="")
    click.echo(f"timeline written to {path}", err=True)


def check_report_path(path: Path | None) -> None:
    """Refuses a report file of an unknown kind, or in a folder that is not there, before anything is computed."""
    if path is None:
        return
    if path.suffix.lower() not in (".html", ".json", ".csv"):
        raise click.UsageError(f"--report {path}: the name must end in .html, .json or .csv")
    if not path.parent.is_dir():
        raise click.UsageError(f"--report {path}: the folder {path.parent} does not exist")


def write_report(document: dict[str, Any], path: Path | None) -> None:
    """Writes the report as the kind of file that its name says, and says so on stderr."""
    if path is None:
        return
    import json

    from api.reports import render_csv, render_html

    kind = path.suffix.lower()
    if kind == ".html":
        text = render_html(document, standalone=True)
    else:
        text = render_csv(document) if kind == ".csv" else json.dumps(document, indent=2, allow_nan=False)
    path.write_text(text, encoding="utf-8", newline="")
    click.echo(f"report written to {path}", err=True)
