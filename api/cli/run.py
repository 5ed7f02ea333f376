"""``capreplay run``, and what runs in this process for it and for ``replay``: no server, no database, no queue."""

from __future__ import annotations

import hashlib
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from api.cli.lookup import with_gpus, with_model
from api.cli.options import (
    comma_ints,
    comma_list,
    engine_of,
    engine_options,
    format_options,
    ingest_options_of,
    model_option,
    objectives_of,
    options,
    own_prices_of,
    price_options,
    router_option,
    trace_argument,
    transform_of,
    transform_options,
)
from api.cli.output import Progress, json_option, print_json

if TYPE_CHECKING:
    from replay.hardware.catalogue import Catalogue
    from replay.planning.document import CandidateResult
    from replay.planning.resolve import Candidate
    from replay.results import ReplayResult
    from replay.specs import PlanSpec, ReplaySpec, Transform
    from replay.traces.options import IngestOptions
    from replay.workload import Workload


@click.command("run", short_help="Size a trace: how many GPUs of which type meet the objectives, and at what cost.")
@options(
    trace_argument,
    model_option,
    click.option("--gpu", "gpus", multiple=True, required=True, metavar="G[,G...]", help="GPU types to try."),
    click.option(
        "--tp", "tps", multiple=True, metavar="N[,N...]", help="Tensor-parallel sizes to try; default 1,2,4,8."
    ),
    click.option(
        "--slo", multiple=True, metavar="OBJECTIVE", help="e.g. ttft_p99=2s, itl_p95=50ms, e2e_mean=8s. Repeatable."
    ),
    transform_options,
    engine_options,
    router_option,
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
    seed: int,
    engine: str,
    sets: tuple[str, ...],
    weight_dtype: str | None,
    kv_dtype: str | None,
    max_model_len: int | None,
    router: str,
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
    objectives, note = objectives_of(slo)
    if note is not None:
        click.echo(f"note: {note}", err=True)
    catalogue, model_key = with_model(shipped_catalogue(), model)
    catalogue, gpu_keys = with_gpus(catalogue, comma_list(gpus))
    body: dict[str, Any] = {
        "name": name,
        "model": model_key,
        "gpus": gpu_keys,
        "objectives": objectives,
        "transform": transform_of(growth, window),
        "engine": engine_of(engine, sets),
        "router": router,
        "weight_dtype": weight_dtype,
        "kv_dtype": kv_dtype,
        "max_model_len": max_model_len,
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
    document = plan_locally(trace, PlanSpec.model_validate(body), catalogue, ingest_options_of(**how), threads)
    if note is not None:
        document["warnings"] = [f"{note[0].upper()}{note[1:]}.", *document["warnings"]]
    write_report(document, report)
    if as_json:
        from replay.planning.document import PlanReport, run_answer

        print_json(run_answer(PlanReport.model_validate(document)))
    else:
        from api.cli.text import plan_text

        click.echo(plan_text(document))


@dataclass(frozen=True)
class LocalTrace:
    """A trace read in this process: the workload of a transform, and the facts that a report tells of it."""

    workload: Workload
    ingest: dict[str, Any]
    sha256: str


def read_trace(trace: Path, how: IngestOptions, transform: Transform, seed: int, progress: Progress) -> LocalTrace:
    """Cleans ``trace`` into a temporary canonical file and loads it.

    Raises:
        TraceError: where the file cannot be read honestly. OSError: where it cannot be opened.
    """
    from replay.traces.ingest import ingest
    from replay.traces.transforms import load_workload

    with tempfile.TemporaryDirectory(prefix="capreplay-") as folder:
        canonical = Path(folder) / "trace.parquet"
        report = ingest(
            trace, canonical, how, lambda done, total: progress(f"reading {trace.name}", done / max(total, 1))
        )
        with canonical.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return LocalTrace(load_workload(canonical, transform, seed), report.model_dump(mode="json"), sha256)


def plan_locally(
    trace: Path, spec: PlanSpec, catalogue: Catalogue, how: IngestOptions, threads: int | None
) -> dict[str, Any]:
    """The report document of a plan, computed in this process; candidates run on ``threads`` threads.

    Raises:
        SpecError, TraceError: refusals, with field and cure.
    """
    from models.hashing import code_version
    from replay.deployment import resolve_deployment
    from replay.planning.figures import summarise_workload
    from replay.planning.report import build_plan_report
    from replay.planning.resolve import TraceRef, resolve_plan
    from replay.planning.search import evaluate_candidate
    from replay.simulate import simulate

    progress = Progress()
    resolve_plan(spec, catalogue, trace=TraceRef(sha256="-", name=trace.name))  # refuses before a long file is read
    local = read_trace(trace, how, spec.transform, spec.seed, progress)
    plan = resolve_plan(spec, catalogue, trace=TraceRef(sha256=local.sha256, name=trace.name))
    candidates = plan.candidates()
    shares = dict.fromkeys(candidates, 0.0)

    def evaluate(candidate: Candidate) -> CandidateResult:
        def checkpoint(share: float) -> None:
            shares[candidate] = share
            progress(f"replaying {len(candidates)} candidates", sum(shares.values()) / len(shares))

        found = evaluate_candidate(local.workload, plan, candidate, resolve_deployment, simulate, checkpoint)
        checkpoint(1.0)
        return found

    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        results = list(pool.map(evaluate, candidates))
    progress.done()
    document: dict[str, Any] = build_plan_report(
        plan, results, workload=summarise_workload(local.workload), ingest=local.ingest, kernel_version=code_version()
    )
    return document


def replay_locally(
    trace: Path, spec: ReplaySpec, catalogue: Catalogue, how: IngestOptions
) -> tuple[dict[str, Any], ReplayResult]:
    """The report document and the result of one replay, computed in this process.

    Raises:
        SpecError, TraceError: refusals, with field and cure.
    """
    from models.hashing import code_version
    from replay.deployment import resolve_deployment
    from replay.planning.report import build_replay_report
    from replay.planning.resolve import TraceRef, resolve_replay
    from replay.simulate import simulate

    progress = Progress()
    early = resolve_replay(spec, catalogue, trace=TraceRef(sha256="-", name=trace.name))
    deployment = resolve_deployment(early.spec.deployment, early.model, early.gpu)
    local = read_trace(trace, how, spec.transform, spec.seed, progress)
    resolved = resolve_replay(spec, catalogue, trace=TraceRef(sha256=local.sha256, name=trace.name))
    progress("replaying")
    result = simulate(local.workload, deployment)
    progress.done()
    document: dict[str, Any] = build_replay_report(
        resolved, deployment, result, local.workload, ingest=local.ingest, kernel_version=code_version()
    )
    return document, result


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
