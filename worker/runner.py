"""The computations behind jobs and the command line: files and values in, documents and values out.

No database, no queue, no clock: jobs (``worker.execution``) and ``capreplay run`` share what is here, so that both give
the same bytes. Numba and polars are imported inside the functions, after ``models.process.prepare_process``.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from models.hashing import code_version
from models.settings import load_settings

if TYPE_CHECKING:
    from datetime import date

    from replay.calibration.request import ResolvedCalibration
    from replay.calibration.user import UserCalibration
    from replay.hardware.catalogue import Catalogue
    from replay.planning.document import CandidateResult
    from replay.planning.resolve import Candidate, ResolvedPlan, ResolvedReplay, TraceRef
    from replay.results import ReplayResult, RequestTable
    from replay.specs import PlanSpec, ReplaySpec, Transform
    from replay.traces.options import IngestOptions
    from replay.workload import Workload

Checkpoint = Callable[[float], None]
"""Told the progress (0 to 1), about once a second; may raise to stop the work."""


def no_checkpoint(_progress: float) -> None:
    """Nobody watches."""


def ingest_file(
    source: Path,
    out: Path,
    options: IngestOptions,
    checkpoint: Checkpoint = no_checkpoint,
    *,
    id_key: bytes | None = None,
) -> dict[str, Any]:
    """Cleans ``source`` into the canonical file ``out``; the ingest report as JSON. Raises TraceError, SpecError."""
    from replay.traces.ingest import ingest

    def progress(done_bytes: int, total_bytes: int) -> None:
        checkpoint(min(1.0, done_bytes / total_bytes) if total_bytes > 0 else 0.0)

    return ingest(source, out, options, progress, id_key=id_key).model_dump(mode="json")


def evaluate(
    workload: Workload,
    plan: ResolvedPlan,
    candidate: Candidate,
    checkpoint: Checkpoint = no_checkpoint,
    *,
    threads: int = 1,
) -> CandidateResult:
    """One candidate of a plan: its smallest passing replica count, or why there is none. Raises SpecError."""
    from replay.deployment import resolve_deployment
    from replay.planning.search import evaluate_candidate
    from replay.simulate import simulate

    watched = _Watched(checkpoint)
    return evaluate_candidate(
        workload,
        plan,
        candidate,
        partial(resolve_deployment, calibrations=plan.calibrations),
        partial(simulate, threads=threads, checkpoint=watched.again),
        watched,
    )


def plan_document(
    plan: ResolvedPlan,
    results: Sequence[CandidateResult],
    workload: Workload,
    ingest_report: dict[str, Any],
    code_versions: Sequence[str] = (),
) -> dict[str, Any]:
    """The report document of a plan. ``code_versions``: of the workers that computed ``results``."""
    from replay.planning.figures import summarise_workload
    from replay.planning.report import build_plan_report

    versions = sorted({*code_versions, code_version()})
    document: dict[str, Any] = build_plan_report(
        plan,
        results,
        workload=summarise_workload(workload),
        ingest=ingest_report,
        kernel_version=" + ".join(versions),
    )
    if len(versions) > 1:
        sentence = "Workers of different versions computed parts of this plan: run it again before you rely on it."
        document["warnings"] = [*document["warnings"], sentence]
    return document


def replay(
    resolved: ResolvedReplay,
    workload: Workload,
    ingest_report: dict[str, Any],
    checkpoint: Checkpoint = no_checkpoint,
    *,
    threads: int = 1,
) -> tuple[dict[str, Any], ReplayResult]:
    """One deployment: the report document and the result behind it. Raises SpecError."""
    from replay.deployment import resolve_deployment
    from replay.fields import fields_of_a_replay
    from replay.planning.report import build_replay_report
    from replay.simulate import simulate

    watched = _Watched(checkpoint, 0.02)
    with fields_of_a_replay():
        deployment = resolve_deployment(resolved.spec.deployment, resolved.model, resolved.gpu, resolved.calibrations)
        checkpoint(0.02)
        result = simulate(workload, deployment, threads=threads, checkpoint=watched.again)
    document: dict[str, Any] = build_replay_report(
        resolved, deployment, result, workload, ingest=ingest_report, kernel_version=code_version()
    )
    return document, result


def fit(
    paths: Sequence[Path],
    resolved: ResolvedCalibration,
    options: IngestOptions,
    today: date,
    checkpoint: Checkpoint = no_checkpoint,
) -> UserCalibration:
    """A calibration from measurement files. Raises SpecError, TraceError."""
    from replay.calibration.fit import calibrate
    from replay.deployment import resolve_deployment

    deployment = resolve_deployment(resolved.deployment.spec(), resolved.model, resolved.gpu)
    return calibrate(paths, deployment, options=options, today=today, progress=lambda share: checkpoint(0.99 * share))


def write_requests(table: RequestTable, out: Path) -> None:
    """The per-request table as Parquet: times in int64 picoseconds from the window's start, -1 where never; ``tenant``
    and ``priority`` as the trace names them, null where it does not."""
    import numpy as np
    import polars as pl

    from replay.results import STATUSES
    from replay.workload import NO_LABEL

    texts = ("tenant", "priority")
    columns = {
        name: values for name, values in vars(table).items() if name not in ("status", *texts) and values is not None
    }
    status = pl.Series("status", table.status).replace_strict(
        list(range(len(STATUSES))), list(STATUSES), return_dtype=pl.String
    )
    frame = pl.DataFrame(columns).with_columns(status)
    for name in texts:
        labels = getattr(table, name)
        if labels is None:
            frame = frame.with_columns(pl.lit(None, dtype=pl.String).alias(name))
            continue
        names = pl.Series(name, [None if text == NO_LABEL else text for text in labels.names], dtype=pl.String)
        frame = frame.with_columns(names.gather(labels.code.astype(np.uint32)))
    frame.write_parquet(out, compression="zstd", row_group_size=262_144)


def load(canonical: Path, spec: PlanSpec | ReplaySpec, others: Sequence[Path] = (), *, max_requests: int) -> Workload:
    """The workload of a plan or a replay, of its trace and of those mixed in. Raises TraceError where nothing is left
    of them, or more than ``max_requests``."""
    from replay.traces.transforms import load_workload

    return load_workload(canonical, spec.transform, spec.seed, others, max_requests=max_requests)


def run_plan_locally(
    trace: Path,
    spec: PlanSpec,
    catalogue: Catalogue,
    options: IngestOptions,
    *,
    threads: int = 1,
    calibrations: tuple[UserCalibration, ...] = (),
    progress: Callable[[str, float], None] = lambda _what, _share: None,
    id_key: bytes | None = None,
) -> dict[str, Any]:
    """A whole plan in this process: the same document that the service's jobs store for the same trace and spec.

    ``threads`` candidates are replayed at once (kernels release the interpreter lock); the result is the same.
    ``progress`` is told what happens and its share done; ``id_key`` see ``replay.traces.ingest``.
    Raises SpecError, TraceError, OSError.
    """
    from replay.planning.resolve import TraceRef, resolve_plan

    resolve_plan(spec, catalogue, trace=TraceRef(sha256="-", name=trace.name))  # refuses before a long file is read
    read = _read_locally(trace, spec.transform, spec.seed, options, progress, id_key)
    spec, workload = spec.model_copy(update={"transform": read.transform}), read.workload
    plan = resolve_plan(spec, catalogue, trace=read.trace, mixed=read.mixed, calibrations=calibrations)
    candidates = plan.candidates()
    shares = dict.fromkeys(candidates, 0.0)
    lock = Lock()
    doing = _replaying(f"{len(candidates)} candidate{'s' if len(candidates) > 1 else ''}")

    def evaluate_one(candidate: Candidate) -> CandidateResult:
        def note(share: float) -> None:
            with lock:
                shares[candidate] = share
                progress(doing, sum(shares.values()) / len(shares))

        found = evaluate(workload, plan, candidate, note)
        note(1.0)
        return found

    with ThreadPoolExecutor(threads) as pool:
        results = list(pool.map(evaluate_one, candidates))
    return plan_document(plan, results, workload, read.report)


def run_replay_locally(
    trace: Path,
    spec: ReplaySpec,
    catalogue: Catalogue,
    options: IngestOptions,
    *,
    threads: int = 1,
    calibrations: tuple[UserCalibration, ...] = (),
    progress: Callable[[str, float], None] = lambda _what, _share: None,
    id_key: bytes | None = None,
) -> tuple[dict[str, Any], ReplayResult]:
    """One replay in this process: its document and its result. Raises SpecError, TraceError, OSError."""
    from replay.deployment import resolve_deployment
    from replay.fields import fields_of_a_replay
    from replay.planning.resolve import TraceRef, resolve_replay

    early = resolve_replay(spec, catalogue, trace=TraceRef(sha256="-", name=trace.name))
    with fields_of_a_replay():
        resolve_deployment(early.spec.deployment, early.model, early.gpu)  # refuses before a long file is read
    read = _read_locally(trace, spec.transform, spec.seed, options, progress, id_key)
    spec = spec.model_copy(update={"transform": read.transform})
    resolved = resolve_replay(spec, catalogue, trace=read.trace, mixed=read.mixed, calibrations=calibrations)
    return replay(resolved, read.workload, read.report, partial(progress, _replaying("the trace")), threads=threads)


def _replaying(what: str) -> str:
    """The name of this stage; the first replay of an installation compiles, which looks like standing still."""
    from replay.kernels.jit import is_cached

    once = "" if is_cached("replay.kernels.schedule") else "compiling the engine (once, up to a minute), then "
    return f"{once}replaying {what}"


def warm_up(*, everything: bool) -> float:
    """Compiles the loops of all engines, or only the common ones, or loads them from the cache; the seconds it took."""
    import time
    from collections import deque

    from replay.first_runs import COMMON, LOOPS, run_loops

    started = time.perf_counter()
    deque(run_loops(LOOPS if everything else COMMON), maxlen=0)
    return time.perf_counter() - started


class _Watched:
    """A checkpoint that remembers the progress, for callees that report none of their own."""

    def __init__(self, checkpoint: Checkpoint, progress: float = 0.0) -> None:
        self._checkpoint = checkpoint
        self._progress = progress

    def __call__(self, progress: float) -> None:
        self._progress = progress
        self._checkpoint(progress)

    def again(self) -> None:
        self._checkpoint(self._progress)


@dataclass(frozen=True)
class _Read:
    """Trace files read on the command line: the workload, and what a document says of them."""

    workload: Workload
    report: dict[str, Any]
    trace: TraceRef
    mixed: tuple[TraceRef, ...]
    transform: Transform
    """With a name for each trace that is mixed in."""


def _read_locally(
    trace: Path,
    transform: Transform,
    seed: int,
    options: IngestOptions,
    progress: Callable[[str, float], None],
    id_key: bytes | None,
) -> _Read:
    """The options of the trace tell nothing of those that are mixed in: their formats are recognised."""
    from replay.planning.resolve import TraceRef
    from replay.traces.options import IngestOptions
    from replay.traces.transforms import load_workload

    named = tuple(one.named(Path(one.trace).name.split(".")[0]) for one in transform.mix_with)
    transform = transform.model_copy(update={"mix_with": named})
    with tempfile.TemporaryDirectory(prefix="capreplay-") as folder:
        reports, refs, canonical = [], [], []
        for number, source in enumerate([trace, *(Path(one.trace) for one in named)]):
            out = Path(folder) / f"{number}.parquet"
            chosen = options if number == 0 else IngestOptions(ids=options.ids)
            reports.append(ingest_file(source, out, chosen, partial(progress, f"reading {source.name}"), id_key=id_key))
            with out.open("rb") as file:
                refs.append(TraceRef(sha256=hashlib.file_digest(file, "sha256").hexdigest(), name=source.name))
            canonical.append(out)
        most = load_settings().job_max_requests
        workload = load_workload(canonical[0], transform, seed, canonical[1:], max_requests=most)
    return _Read(workload, reports[0], refs[0], tuple(refs[1:]), transform)
