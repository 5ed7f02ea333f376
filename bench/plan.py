"""Speed of plans: CPU and wall seconds of whole plans, what the kernels are of them, and a fresh process' first answer.

Run: ``python bench/plan.py [--only NAME] [--threads N] [--traces DIR]``. A plan tries 4 GPU types at tensor-parallel
sizes 1, 2, 4 and 8. "CPU" is the time of all threads; "reading" is the ingest before the plan; "kernels" is the share
of the CPU time in compiled loops. They are compiled, or loaded, before the clock starts. The first answer is
``capreplay run`` with one candidate in a process of its own, kernels compiled before, with and without Python's
bytecode on disk.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock

from replay.deployment import Deployment, resolve_deployment
from replay.first_runs import run_loops
from replay.hardware.catalogue import shipped_catalogue
from replay.planning.document import CandidateResult
from replay.planning.resolve import Candidate, TraceRef, resolve_plan
from replay.planning.search import evaluate_candidate
from replay.results import ReplayResult
from replay.simulate import simulate
from replay.specs import PlanSpec, Transform
from replay.traces.ingest import ingest
from replay.traces.options import IngestOptions
from replay.traces.transforms import load_workload
from replay.workload import Workload

ROOT = Path(__file__).parent.parent
MODEL = "meta-llama/Llama-3.1-8B"
PLAN = {
    "name": "bench",
    "gpus": ["H100-SXM", "H200-SXM", "A100-SXM-80GB", "L40S"],
    "tp": [1, 2, 4, 8],
    "objectives": [
        {"metric": "ttft", "percentile": 99, "threshold_s": 2.0},
        {"metric": "itl", "percentile": 99, "threshold_s": 0.1},
    ],
}
HOUR, WEEK = "azure-2023/AzureLLMInferenceTrace_conv.csv.gz", "servegen/m-large_week1_scale0.005.csv.gz"
FIRST_RUNS = 3


@dataclass(frozen=True)
class Case:
    """One plan and what it should take on two cores."""

    name: str
    trace: str
    reach: str
    model: str = MODEL
    growth: float = 1.0


CASES = (
    Case("hour", HOUR, "<= 10 s"),
    Case("week", WEEK, "<= 60 s"),
    Case("hour, 70B, 8 times the load", HOUR, "", "meta-llama/Llama-3.1-70B", 8.0),
)


@dataclass
class Counted:
    """``simulate``, with a count of what it did."""

    replays: int = 0
    steps: int = 0
    kernel_s: float = 0.0
    lock: Lock = field(default_factory=Lock)

    def __call__(self, workload: Workload, deployment: Deployment) -> ReplayResult:
        result = simulate(workload, deployment)
        with self.lock:
            self.replays += 1
            self.steps += result.steps
            self.kernel_s += result.kernel_s
        return result


def plan_row(case: Case, traces: Path, threads: int) -> str:
    """Reads the trace, plans, and says what it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    spec = PlanSpec.model_validate(PLAN | {"model": case.model, "transform": Transform(growth=case.growth)})
    with tempfile.TemporaryDirectory() as folder:
        canonical = Path(folder) / "trace.parquet"
        ingest(traces / case.trace, canonical, IngestOptions())
        workload = load_workload(canonical, spec.transform, spec.seed)
    reading_s = time.process_time() - cpu
    plan = resolve_plan(spec, shipped_catalogue(), trace=TraceRef(sha256="-", name=case.trace))
    counted = Counted()

    def evaluate(candidate: Candidate) -> CandidateResult:
        return evaluate_candidate(workload, plan, candidate, resolve_deployment, counted, lambda _progress: None)

    candidates = plan.candidates()
    with ThreadPoolExecutor(threads) as pool:
        results = list(pool.map(evaluate, candidates))
    wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    answers = sum(result.recommendation is not None for result in results)
    return (
        f"{case.name:28} {workload.n:>9,} {len(candidates):>6} {answers:>8} {counted.replays:>8} "
        f"{counted.steps / 1e6:>9,.1f} {wall_s:>7.1f} {cpu_s:>7.1f} {reading_s:>8.1f} "
        f"{counted.kernel_s / cpu_s:>8.0%}  {case.reach}"
    )


def first_rows() -> Iterator[str]:
    """The first answer of a fresh process, the best of a few."""
    run = [sys.executable, "-c", "from api.cli import main; main()", "run", str(ROOT / "examples" / "chat-hour.csv.gz")]
    command = [*run, "--model", MODEL, "--gpu", "H100-SXM", "--tp", "1", "--json"]
    with tempfile.TemporaryDirectory() as bytecode:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        kept |= {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": bytecode}
        for name, more in (
            ("first answer, no bytecode", {"PYTHONDONTWRITEBYTECODE": "1"}),
            ("first answer", {}),
        ):
            once = partial(subprocess.run, command, env=kept | more, capture_output=True, check=True)
            once()  # writes the bytecode, where it may
            wall_s, cpu_s = min((_timed(once) for _ in range(FIRST_RUNS)), key=lambda took: took[1])
            yield f"{name:28} {'':>44} {wall_s:>7.1f} {cpu_s:>7.1f} {'':>17}  <= 3 s"


def _timed(once: partial[subprocess.CompletedProcess[bytes]]) -> tuple[float, float]:
    """Wall and CPU seconds of one run of a process."""
    wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    once()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - wall, cpu_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="NAME", default="", help="only rows whose names begin with this")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="candidates at once")
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces", help="folder of the traces")
    options = parser.parse_args()
    list(run_loops(["fast"]))
    print(
        f"{'plan':28} {'requests':>9} {'cand.':>6} {'answers':>8} {'replays':>8} {'M steps':>9} {'wall s':>7} "
        f"{'CPU s':>7} {'reading':>8} {'kernels':>8}  reach",
        flush=True,
    )
    for case in CASES:
        if case.name.startswith(options.only):
            is_here = (options.traces / case.trace).exists()
            row = plan_row(case, options.traces, options.threads) if is_here else f"{case.name:28} no {case.trace}"
            print(row, flush=True)
    if "first answer".startswith(options.only):
        for line in first_rows():
            print(line, flush=True)


if __name__ == "__main__":
    main()
