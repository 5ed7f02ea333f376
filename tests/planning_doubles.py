"""Test doubles of the planner: a small workload, and a ``simulate`` that follows a known law instead of an engine."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from replay.deployment import Deployment
from replay.hardware.catalogue import shipped_catalogue
from replay.planning.resolve import ResolvedPlan, TraceRef, resolve_plan
from replay.results import Histogram, ReplayResult, RequestTable
from replay.specs import PlanSpec, parse_objective
from replay.workload import Workload

TRACE = TraceRef(sha256="ab" * 32, name="test trace")
BASE_TTFT_S = 0.5


def make_workload(n: int = 200, span_s: float = 100.0, prompt: int = 100, output: int = 50) -> Workload:
    """``n`` equal requests, evenly spaced over ``span_s``."""
    arrival = np.arange(n, dtype=np.int64) * round(span_s * 1e12 / max(n, 1))
    return Workload(arrival, np.full(n, prompt, np.int64), np.full(n, output, np.int64), span_s)


def make_plan(**changes: object) -> ResolvedPlan:
    """A plan of Llama-3.1-8B on one H100 at tp 1, priced by the user, with ``changes``."""
    fields: dict[str, object] = {
        "model": "meta-llama/Llama-3.1-8B",
        "gpus": ("H100-SXM",),
        "tp": (1,),
        "objectives": (parse_objective("ttft_p99=2s"),),
        "price": {"usd_per_gpu_hour": {"H100-SXM": 2.0}},
    }
    return resolve_plan(PlanSpec.model_validate({**fields, **changes}), shipped_catalogue(), trace=TRACE)


def make_result(
    workload: Workload,
    replicas: int,
    *,
    load_factor: float | None,
    ttft_s: float,
    rejected: dict[str, int] | None = None,
    prefix_hit_rate: float | None = None,
    drained: bool = True,
) -> ReplayResult:
    """A result in which every request that is served has the same latencies."""
    lost = sum((rejected or {}).values())
    n = workload.n - lost if drained else 0
    same = np.full(n, ttft_s)
    nothing = np.zeros(workload.n, np.int64)
    return ReplayResult(
        requests=RequestTable(*(nothing for _ in range(10))),
        itl=Histogram(np.array([0.02]), np.array([int(workload.output_tokens.sum())]), 0.02, 0.02),
        ttft_s=same,
        ttft_from_admission_s=same / 2,
        tpot_s=np.full(n, 0.02),
        e2e_s=same + 1.0,
        queue_s=same / 2,
        finished=n,
        rejected=rejected or {},
        preemptions=0,
        steps=10,
        replicas=replicas,
        duration_s=workload.span_s,
        output_tokens=int(workload.output_tokens.sum()),
        prompt_tokens=int(workload.prompt_tokens.sum()),
        offered_rps=None if load_factor is None else n / workload.span_s,
        load_factor=load_factor,
        sustainable_rps=workload.n / workload.span_s / load_factor if load_factor else 5.0,
        saturated=load_factor is not None and load_factor >= 1.0,
        prefix_hit_rate=prefix_hit_rate,
        kv_usage_mean=0.1,
        kv_usage_max=0.2,
        batch_mean=3.0,
        busy_fraction=0.5,
        loop="double",
        kernel_s=0.0,
    )


@dataclass
class LawSimulate:
    """TTFT is ``BASE_TTFT_S / (1 - load)``, the load ``single_load / replicas``; counts in ``broken`` miss by far.

    Steps that are longer than those of the first replay raise load and TTFT alike; such replays are in ``edges``."""

    single_load: float
    broken: frozenset[int] = frozenset()
    rejected: dict[str, int] = field(default_factory=dict)
    law: Callable[[float], float] = lambda load: BASE_TTFT_S / (1.0 - load) if load < 1.0 else 1000.0
    asked: list[int] = field(default_factory=list)
    edges: list[tuple[float, int, int]] = field(default_factory=list)
    """Of replays with other step times or blocks than the first: times as long, KV blocks, replicas."""
    first: Deployment | None = None

    def __call__(self, workload: Workload, deployment: Deployment) -> ReplayResult:
        replicas = deployment.replicas
        self.first = self.first or deployment
        longer = float(deployment.step_time.rest_ps[-1] / self.first.step_time.rest_ps[-1])
        if deployment.step_time is self.first.step_time:
            self.asked.append(replicas)
        else:
            self.edges.append((longer, deployment.memory.kv_blocks, replicas))
        load = self.single_load * longer / replicas
        ttft = 900.0 if replicas in self.broken else self.law(load) * longer
        return make_result(workload, replicas, load_factor=load, ttft_s=ttft, rejected=self.rejected)
