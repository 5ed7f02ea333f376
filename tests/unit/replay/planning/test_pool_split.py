"""Plans of prefill and decode pools: the fewest replicas of both, and which of them prefill."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_doubles import make_plan, make_result, make_workload
from pydantic import ValidationError

from replay.deployment import Deployment, resolve_deployment
from replay.errors import SpecError
from replay.planning.document import CandidateResult, Recommendation
from replay.planning.idle import idle_value_s
from replay.planning.pool_split import MOST_SPLITS
from replay.planning.resolve import ResolvedPlan
from replay.planning.search import evaluate_candidate
from replay.results import Histogram, PoolsOutcome, PoolUse, ReplayResult
from replay.simulate import simulate as real_simulate
from replay.specs import PoolsSpec, parse_objective
from replay.workload import Workload

LINKS = PoolsSpec(kv_transfer_gb_per_s=50)
OBJECTIVES = (parse_objective("ttft_p99=2s"), parse_objective("itl_mean=50ms"))


@dataclass
class PoolsLaw:
    """TTFT is ``0.5 / (1 - load)`` of the prefill pool, ITL ``0.02 / (1 - load)`` of the decode pool."""

    prefill: float
    decode: float
    asked: list[tuple[int, int]] = field(default_factory=list)
    first: Deployment | None = None

    def loads(self, prefill: int, decode: int) -> tuple[float, float]:
        return self.prefill / prefill, self.decode / decode

    def passes(self, prefill: int, decode: int) -> bool:
        one, other = self.loads(prefill, decode)
        return one <= 0.75 and other < 1 and 0.02 / (1 - other) <= 0.05

    def answer(self) -> int:
        """By counting."""
        n = 2
        while not any(self.passes(p, n - p) for p in range(1, n)):
            n += 1
        return n

    def __call__(self, workload: Workload, deployment: Deployment) -> ReplayResult:
        apart = deployment.spec.disaggregation
        assert apart is not None
        self.first = self.first or deployment
        longer = float(deployment.step_time.rest_ps[-1] / self.first.step_time.rest_ps[-1])
        split = apart.prefill_replicas, apart.decode_replicas
        if deployment.step_time is self.first.step_time:
            self.asked.append(split)
        one, other = (load * longer for load in self.loads(*split))
        load, rate = max(one, other), workload.n / workload.span_s
        ttft = 0.5 / (1 - one) if one < 1 else 1000.0
        itl = 0.02 / (1 - other) if other < 1 else 10.0
        result = make_result(workload, sum(split), load_factor=load, ttft_s=ttft)
        use = [
            PoolUse(name, replicas, 1, 5, 0, 0.1, 0.2, 3.0, 1.0, rate / share)
            for name, replicas, share in zip(("prefill", "decode"), split, (one, other), strict=True)
        ]
        pools = PoolsOutcome(use[0], use[1], "prefill" if one >= other else "decode", math.inf, np.zeros(0))
        weight = result.itl.weight
        return replace(result, itl=Histogram(np.array([itl]), weight, itl, itl), pools=pools)


def pools_plan(**changes: Any) -> ResolvedPlan:
    return make_plan(**{"disaggregation": LINKS, "objectives": OBJECTIVES, **changes})


def evaluate(plan: ResolvedPlan, simulate: Callable[..., ReplayResult], n: int = 1000) -> CandidateResult:
    workload = make_workload(n)
    return evaluate_candidate(workload, plan, plan.candidates()[0], resolve_deployment, simulate, lambda progress: None)


def feasible(result: CandidateResult) -> Recommendation:
    assert result.recommendation is not None, result.infeasible
    return result.recommendation


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 40.0), st.floats(0.01, 40.0))
def test_the_fewest_replicas_of_both_pools_are_found(prefill: float, decode: float) -> None:
    law = PoolsLaw(prefill, decode)
    found = feasible(evaluate(pools_plan(), law))
    assert found.replicas == found.gpus == law.answer()
    assert found.pools is not None
    assert law.passes(found.pools.prefill.replicas, found.pools.decode.replicas)
    fails, passes = found.evidence.fails, found.evidence.passes
    assert (passes.prefill_replicas, passes.decode_replicas) == (
        found.pools.prefill.replicas,
        found.pools.decode.replicas,
    )
    if found.replicas > 2:
        assert fails is not None
        assert fails.replicas == found.replicas - 1
        assert not fails.passed
        assert fails.splits_replayed is not None
        assert fails.splits_replayed <= MOST_SPLITS
        assert passes.replicas_text in found.evidence.sentence
        assert fails.replicas_text in found.evidence.sentence
    else:
        assert fails is None
    assert len(law.asked) == len(set(law.asked)), "no split is replayed twice"


def test_figures_are_those_of_the_split_and_costs_of_both_pools() -> None:
    law = PoolsLaw(2.9, 1.1)
    found = feasible(evaluate(pools_plan(), law))
    assert found.pools is not None
    assert (found.pools.prefill.replicas, found.pools.decode.replicas) == (4, 2)
    assert found.metrics.ttft_s.p99 == pytest.approx(0.5 / (1 - 2.9 / 4))
    assert found.metrics.itl_s.mean == pytest.approx(0.02 / (1 - 1.1 / 2))
    assert found.pools.binding == "prefill"
    assert found.usd_per_hour == 12.0
    assert found.evidence.lower_bound_replicas == 3 + 2
    assert [point.replicas for point in found.curve] == sorted({sum(split) for split in law.asked})


def test_the_range_searches_splits_too_and_a_faster_pool_may_need_fewer() -> None:
    found = feasible(evaluate(pools_plan(gpus=("A100-SXM-80GB",)), PoolsLaw(5.8, 11.5)))
    fewest, most = found.ends
    assert fewest is not None
    assert most is not None
    assert fewest.replicas < found.replicas < most.replicas
    assert fewest.gpus == fewest.replicas


def test_each_pool_has_whole_instances_of_its_own_within_the_budget() -> None:
    plan = pools_plan(gpus=("H100-SXM",), price={}, max_usd_per_hour=1e4)
    found = feasible(evaluate(plan, PoolsLaw(3.0, 1.0)))
    assert found.price is not None
    assert found.price.paid_gpus >= found.gpus
    row = evaluate(pools_plan(max_usd_per_hour=11.0), PoolsLaw(3.0, 1.0)).infeasible
    assert row is not None
    assert row.code == "budget.max_usd_per_hour"
    assert "prefill and" in row.reason
    row = evaluate(pools_plan(max_gpus=1), PoolsLaw(0.1, 0.1)).infeasible
    assert row is not None
    assert row.reason == "one prefill and one decode replica need 2 GPUs, over the cap of 1 GPUs"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"client_timeout_s": 5.0}, "client_timeout_s"),
        ({"survive_failures": 1}, "survive_failures"),
        ({"disaggregation": {"kv_transfer_gb_per_s": 50, "prefill_replicas": 2}}, "prefill_replicas"),
    ],
)
def test_what_a_plan_of_pools_does_not_search_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        pools_plan(**changes)


def test_a_mistaken_knob_of_one_pool_is_refused_at_once() -> None:
    with pytest.raises(SpecError, match=r"decode replicas: .*max_num_sequences"):
        pools_plan(disaggregation={"kv_transfer_gb_per_s": 50, "decode_overrides": {"max_num_sequences": 4}})


def test_engines_without_pools_are_no_answer_with_the_cure() -> None:
    row = evaluate(pools_plan(engine={"preset": "sglang"}), PoolsLaw(1.0, 1.0)).infeasible
    assert row is not None
    assert row.code == "deployment.not_replayed"
    assert "use a vLLM preset" in row.reason


def test_a_plan_on_the_real_engine_holds_when_replayed_again() -> None:
    rng = np.random.default_rng(3)
    n, rate = 600, 25.0
    arrival = np.rint(np.cumsum(rng.exponential(1 / rate, n)) * 1e12).astype(np.int64)
    prompt = rng.integers(200, 4000, n)
    load = Workload(arrival - arrival[0], prompt, rng.integers(20, 200, n), float(arrival[-1] - arrival[0]) / 1e12)
    ttft, itl = parse_objective("ttft_p95=400ms"), parse_objective("itl_p99=25ms")
    plan = pools_plan(gpus=("A100-SXM-80GB",), objectives=(ttft, itl))
    candidate = plan.candidates()[0]
    result = evaluate_candidate(load, plan, candidate, resolve_deployment, real_simulate, lambda progress: None)
    found = feasible(result)
    assert found.pools is not None
    deployment = resolve_deployment(plan.deployment(candidate), plan.model, plan.gpus[0])
    split = found.pools.prefill.replicas, found.pools.decode.replicas
    again = real_simulate(load, deployment.with_pools(*split))
    assert not again.saturated
    assert all((again.value(one) or 0.0) <= one.threshold_s for one in (ttft, itl))
    for one in (parse_objective("ttft_p50=1s"), parse_objective("e2e_p50=9s"), parse_objective("e2e_mean=9s")):
        assert 0 < idle_value_s(one, load, deployment) <= (again.value(one) or 0.0)
    assert found.replicas > 2
    for prefill in range(1, found.replicas - 1):
        less = real_simulate(load, deployment.with_pools(prefill, found.replicas - 1 - prefill))
        assert less.saturated or any((less.value(one) or 0.0) > one.threshold_s for one in (ttft, itl))
