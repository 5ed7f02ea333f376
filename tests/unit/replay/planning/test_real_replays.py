"""The planner on the real engine: its answers hold when replayed again."""

import numpy as np
from planning_doubles import make_plan

from replay.deployment import Deployment, resolve_deployment
from replay.planning.certainty import at_edge, error_band
from replay.planning.idle import idle_value_s
from replay.planning.search import evaluate_candidate
from replay.results import ReplayResult
from replay.simulate import simulate
from replay.specs import parse_objective
from replay.workload import Workload


def bursty_workload(n: int = 1500, rate: float = 30.0, seed: int = 7) -> Workload:
    rng = np.random.default_rng(seed)
    gaps = rng.gamma(0.4, 1 / (0.4 * rate), n)
    arrival = np.rint(np.cumsum(gaps) * 1e12).astype(np.int64)
    arrival -= arrival[0]
    prompt = np.clip(rng.lognormal(6.5, 0.9, n), 1, 8000).astype(np.int64)
    output = np.clip(rng.lognormal(5.0, 0.7, n), 1, 1000).astype(np.int64)
    return Workload(arrival, prompt, output, float(arrival[-1]) / 1e12)


def run(workload: Workload, deployment: Deployment) -> ReplayResult:
    return simulate(workload, deployment)


def test_n_passes_and_one_less_fails_when_replayed_again() -> None:
    objective = parse_objective("ttft_p95=600ms")
    plan = make_plan(
        gpus=("A100-SXM-80GB",), objectives=(objective,), price={"usd_per_gpu_hour": {"A100-SXM-80GB": 1.0}}
    )
    workload, candidate = bursty_workload(), plan.candidates()[0]
    found = evaluate_candidate(workload, plan, candidate, resolve_deployment, run, lambda progress: None).recommendation
    assert found is not None
    assert found.replicas > 1
    deployment = resolve_deployment(plan.deployment(candidate), plan.model, plan.gpus[0])
    passing = simulate(workload, deployment.with_replicas(found.replicas))
    assert not passing.saturated
    assert (passing.value(objective) or 0.0) <= objective.threshold_s
    failing = simulate(workload, deployment.with_replicas(found.replicas - 1))
    assert failing.saturated or (failing.value(objective) or 0.0) > objective.threshold_s
    assert found.usd_per_hour == float(found.gpus)


def test_the_ends_of_the_range_hold_when_replayed_again() -> None:
    objective = parse_objective("ttft_p95=600ms")
    plan = make_plan(gpus=("A100-SXM-80GB",), objectives=(objective,))
    workload, candidate = bursty_workload(4000, 120.0), plan.candidates()[0]
    found = evaluate_candidate(workload, plan, candidate, resolve_deployment, run, lambda progress: None).recommendation
    assert found is not None
    fewest, most = found.ends
    assert fewest is not None
    assert most is not None
    assert fewest.replicas <= found.replicas <= most.replicas
    assert fewest.replicas < most.replicas
    deployment = resolve_deployment(plan.deployment(candidate), plan.model, plan.gpus[0])
    band = error_band(deployment)
    assert band is not None
    for end, slower in ((fewest, False), (most, True)):
        edge = at_edge(deployment, band, slower=slower)
        passing = simulate(workload, edge.with_replicas(end.replicas))
        assert not passing.saturated
        assert (passing.value(objective) or 0.0) <= objective.threshold_s
        failing = simulate(workload, edge.with_replicas(end.replicas - 1))
        assert failing.saturated or (failing.value(objective) or 0.0) > objective.threshold_s


def test_no_replay_beats_the_idle_bound() -> None:
    plan = make_plan()
    deployment = resolve_deployment(plan.deployment(plan.candidates()[0]), plan.model, plan.gpus[0])
    for rate in (0.2, 30.0):
        workload = bursty_workload(300, rate)
        result = simulate(workload, deployment)
        for text in ("ttft_p50=1s", "ttft_p99=1s", "ttft_mean=1s", "e2e_p50=1s", "e2e_p99=1s", "e2e_mean=1s"):
            objective = parse_objective(text)
            assert idle_value_s(objective, workload, deployment) <= (result.value(objective) or 0.0) * (1 + 1e-9)
    lonely = bursty_workload(50, 0.01)
    idle = idle_value_s(parse_objective("e2e_mean=1s"), lonely, deployment)
    measured = simulate(lonely, deployment).value(parse_objective("e2e_mean=1s"))
    assert measured is not None
    assert measured <= idle * 1.1, "on an idle replica the bound is nearly reached; attention tables are left out of it"
