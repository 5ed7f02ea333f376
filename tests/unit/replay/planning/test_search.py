import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_doubles import BASE_TTFT_S, LawSimulate, make_plan, make_result, make_workload

from replay.deployment import Deployment, resolve_deployment
from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.hardware.feasibility import largest_tensor_parallel
from replay.planning.document import CandidateResult, Infeasible, Recommendation
from replay.planning.resolve import ResolvedPlan
from replay.planning.search import evaluate_candidate
from replay.results import ReplayResult
from replay.specs import EngineSpec, parse_objective
from replay.workload import PrefixBlocks, Workload

THRESHOLD_S = 2.0


def law_answer(single_load: float) -> int:
    """The smallest n with ``BASE / (1 - load / n) <= THRESHOLD`` and ``load / n < 1``, by counting."""
    n = 1
    while single_load / n >= 1.0 or BASE_TTFT_S / (1.0 - single_load / n) > THRESHOLD_S:
        n += 1
    return n


def evaluate(plan: ResolvedPlan, simulate: LawSimulate, workload: Workload | None = None) -> CandidateResult:
    return evaluate_candidate(
        workload or make_workload(1000), plan, plan.candidates()[0], resolve_deployment, simulate, lambda progress: None
    )


def feasible(result: CandidateResult) -> Recommendation:
    assert result.recommendation is not None, result.infeasible
    return result.recommendation


def infeasible(result: CandidateResult) -> Infeasible:
    assert result.infeasible is not None
    return result.infeasible


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 250.0))
def test_finds_the_smallest_passing_count_with_both_sides_replayed(single_load: float) -> None:
    simulate = LawSimulate(single_load)
    found = feasible(evaluate(make_plan(), simulate))
    assert found.replicas == law_answer(single_load)
    assert found.evidence.passes.passed
    assert found.evidence.monotone
    if found.replicas == 1:
        assert found.evidence.fails is None
    else:
        assert found.evidence.fails is not None
        assert found.evidence.fails.replicas == found.replicas - 1
        assert not found.evidence.fails.passed
    assert len(simulate.asked) == len(set(simulate.asked)), "no count is replayed twice"
    assert len(simulate.asked) <= 8 + 2 * math.log2(found.replicas + 1)


def test_lower_bound_comes_from_the_load_factor() -> None:
    found = feasible(evaluate(make_plan(), LawSimulate(7.3)))
    assert found.evidence.lower_bound_replicas == 8
    assert 7 not in {point.replicas for point in found.curve if point.passed}


def test_figures_are_those_of_the_recommended_count() -> None:
    found = feasible(evaluate(make_plan(), LawSimulate(3.0)))
    load = 3.0 / found.replicas
    assert found.metrics.ttft_s.p99 == pytest.approx(BASE_TTFT_S / (1 - load))
    assert found.load_factor == pytest.approx(load)
    assert found.headroom == pytest.approx(1 / load - 1)
    assert found.objectives[0].margin == pytest.approx(1 - BASE_TTFT_S / (1 - load) / THRESHOLD_S)
    assert found.gpus == found.replicas
    assert found.evidence.one_more is not None
    assert found.evidence.one_more.objectives[0].value_s == pytest.approx(
        BASE_TTFT_S / (1 - 3.0 / (found.replicas + 1))
    )


def test_a_saturated_count_is_never_recommended_even_if_latencies_pass() -> None:
    simulate = LawSimulate(2.5, law=lambda load: 0.1)
    found = feasible(evaluate(make_plan(), simulate))
    assert found.replicas == 3
    assert found.evidence.fails is not None
    assert found.evidence.fails.saturated
    assert "saturated" in found.evidence.sentence


def test_a_hole_above_the_answer_moves_the_answer_above_it_and_says_so() -> None:
    alone = feasible(evaluate(make_plan(), LawSimulate(3.0))).replicas
    found = feasible(evaluate(make_plan(), LawSimulate(3.0, broken=frozenset({alone + 1}))))
    assert found.replicas == alone + 2
    assert not found.evidence.monotone
    assert "larger one failed" in found.evidence.sentence
    lone = feasible(evaluate(make_plan(), LawSimulate(0.2, broken=frozenset({2}))))
    assert lone.replicas == 3


@pytest.mark.parametrize(("cap", "replicas"), [(6, 6), (7, 6), (8, 8), (9, 8), (20, 8)])
def test_a_larger_budget_never_turns_feasible_into_infeasible(cap: int, replicas: int) -> None:
    found = feasible(evaluate(make_plan(max_gpus=cap), LawSimulate(4.0, broken=frozenset({7}))))
    assert found.replicas == replicas
    assert found.evidence.monotone == (cap != 7)
    if cap == 7:
        assert "With 7, ttft_p99 is 900 s" in found.evidence.sentence


def test_a_larger_count_that_passed_before_the_hole_is_found_again() -> None:
    found = feasible(evaluate(make_plan(), LawSimulate(7.0, broken=frozenset({11}))))
    assert found.replicas == 12
    assert found.metrics.ttft_s.p99 == pytest.approx(BASE_TTFT_S / (1 - 7.0 / 12))


@settings(max_examples=200, deadline=None)
@given(st.floats(0.1, 30.0), st.frozensets(st.integers(1, 40), max_size=12), st.integers(1, 60))
def test_holes_never_break_the_search(single_load: float, broken: frozenset[int], cap: int) -> None:
    simulate = LawSimulate(single_load, broken)
    result = evaluate(make_plan(max_gpus=cap), simulate)
    assert max(simulate.asked) <= cap
    assert len(simulate.asked) == len(set(simulate.asked)), "no count is replayed twice"
    if result.recommendation is None:
        assert not any(point.passed for point in infeasible(result).curve)
        return
    found = result.recommendation
    assert found.evidence.passes.passed
    assert found.evidence.fails is None or not found.evidence.fails.passed
    assert found.metrics.ttft_s.p99 == pytest.approx(BASE_TTFT_S / (1 - single_load / found.replicas))


def test_the_best_that_was_reached_is_shown_not_the_last() -> None:
    law = LawSimulate(5.0, broken=frozenset({8}), law=lambda load: 3.0)
    row = infeasible(evaluate(make_plan(max_gpus=8), law))
    assert row.best is not None
    assert row.best.objectives[0].value_s == 3.0
    assert row.code == "budget.max_gpus"
    assert row.reason == "at 6 replicas (6 GPUs), the best within the cap of 8 GPUs, ttft_p99 is 3 s against 2 s"


def test_one_hole_is_no_stall() -> None:
    law = LawSimulate(12.0, broken=frozenset({38}), law=lambda load: 1.2 / (1.0 - min(load, 0.99)))
    found = feasible(evaluate(make_plan(), law))
    assert found.replicas == 39


def test_a_count_that_is_merely_saturated_is_not_said_to_be_out_of_reach() -> None:
    row = infeasible(evaluate(make_plan(), LawSimulate(500.0), make_workload(100)))
    assert row.code == "limit.replicas"
    assert "one replica for each of the 100 requests" in row.reason
    assert "5.00 times the capacity" in row.reason
    assert "do not help" not in row.reason


def test_a_queue_of_nothing_is_no_distance() -> None:
    def no_queue(workload: Workload, deployment: Deployment) -> ReplayResult:
        result = make_result(workload, deployment.replicas, load_factor=0.5, ttft_s=3.0)
        object.__setattr__(result, "queue_s", result.queue_s * 0.0)
        return result

    plan = make_plan(objectives=(parse_objective("queue_p99=1s"), parse_objective("ttft_p99=2s")))
    result = evaluate_candidate(
        make_workload(1000), plan, plan.candidates()[0], resolve_deployment, no_queue, lambda progress: None
    )
    assert infeasible(result).code == "slo.unreachable"
    assert "more replicas do not help" in infeasible(result).reason


def test_without_an_offered_rate_the_objectives_alone_decide() -> None:
    def burst(workload: Workload, deployment: Deployment) -> ReplayResult:
        return make_result(workload, deployment.replicas, load_factor=None, ttft_s=10.0 / deployment.replicas)

    plan = make_plan()
    found = feasible(
        evaluate_candidate(
            make_workload(1000), plan, plan.candidates()[0], resolve_deployment, burst, lambda progress: None
        )
    )
    assert found.replicas == 5
    assert found.load_factor is None
    assert found.headroom is None
    assert found.evidence.lower_bound_replicas == 1
    assert found.usd_per_hour is not None
    assert found.usd_per_1m_output_tokens is None
    assert "one burst" in (found.per_token_reason or "")
    assert all(point.load_factor is None and not point.saturated for point in found.curve)


@pytest.mark.parametrize("load", [1e6, None])
def test_a_load_that_one_replica_would_drain_for_years_is_no_missing_sample(load: float | None) -> None:
    def endless(workload: Workload, deployment: Deployment) -> ReplayResult:
        n = deployment.replicas
        return make_result(workload, n, load_factor=None if load is None else 20 / n, ttft_s=10.0 / n, drained=n >= 8)

    plan = make_plan()
    result = evaluate_candidate(
        make_workload(1000), plan, plan.candidates()[0], resolve_deployment, endless, lambda progress: None
    )
    assert feasible(result).replicas == (8 if load is None else 21)
    few = make_plan(max_gpus=4)
    row = infeasible(
        evaluate_candidate(
            make_workload(1000), few, few.candidates()[0], resolve_deployment, endless, lambda progress: None
        )
    )
    assert ("too long to drain" if load is None else "times the capacity") in row.reason


def test_with_prefix_caching_only_replays_say_where_the_work_fits() -> None:
    workload = make_workload(1000)
    ids = np.arange(1000, dtype=np.int64)
    prefix = PrefixBlocks(np.arange(1001, dtype=np.int64), ids, 16)
    shared = dataclasses.replace(workload, prefix=prefix)
    plan = make_plan(engine={"preset": "vllm-0.33", "overrides": {"enable_prefix_caching": True}})

    def caches(workload: Workload, deployment: Deployment) -> ReplayResult:
        load = 9.0 if deployment.replicas == 1 else 2.5 / deployment.replicas
        return make_result(workload, deployment.replicas, load_factor=load, ttft_s=0.1, prefix_hit_rate=0.5)

    result = evaluate_candidate(shared, plan, plan.candidates()[0], resolve_deployment, caches, lambda progress: None)
    found = feasible(result)
    assert found.replicas == 3
    assert found.evidence.lower_bound_replicas == 3
    assert found.curve[0].prefix_hit_rate == 0.5


def test_gpu_cap_is_hard() -> None:
    simulate = LawSimulate(20.0)
    row = infeasible(evaluate(make_plan(max_gpus=10), simulate))
    assert row.code == "budget.max_gpus"
    assert "10 GPUs" in row.reason
    assert row.best is not None
    assert row.best.replicas == 10
    assert max(simulate.asked) == 10


def test_cost_cap_is_hard() -> None:
    simulate = LawSimulate(20.0)
    row = infeasible(evaluate(make_plan(max_usd_per_hour=9.0), simulate))
    assert row.code == "budget.max_usd_per_hour"
    assert max(simulate.asked) == 4, "4 x 2 USD fit under 9 USD"
    free = feasible(evaluate(make_plan(max_usd_per_hour=9.0), LawSimulate(1.2)))
    assert free.usd_per_hour is not None
    assert free.usd_per_hour <= 9.0


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"max_gpus": 1, "tp": (2,)}, "budget.max_gpus"),
        ({"max_usd_per_hour": 1.5}, "budget.max_usd_per_hour"),
        ({"max_usd_per_hour": 1.5, "price": {"provider": "genesis-cloud"}}, "budget.unpriced"),
        ({"tp": (3,)}, "deployment.infeasible"),
        ({"tp": (64,)}, "parallelism.scale_up"),
        ({"model": "meta-llama/Llama-3.1-70B"}, "deployment.infeasible"),
    ],
)
def test_what_cannot_run_is_said_without_a_replay(changes: dict[str, object], code: str) -> None:
    simulate = LawSimulate(0.5)
    row = infeasible(evaluate(make_plan(**changes), simulate))
    assert row.code == code
    assert len(row.reason) > 20
    assert simulate.asked == []


def test_a_context_that_the_memory_shortened_says_so() -> None:
    plan = make_plan(gpus=("L4",), price={"usd_per_gpu_hour": {"L4": 1.0}})
    row = infeasible(evaluate(plan, LawSimulate(0.5, rejected={"too_long_for_model": 3})))
    assert "all that the memory beside the weights holds on L4 at tp 1: use a larger tp, or fp8" in row.reason


def test_requests_that_can_never_run_make_a_candidate_infeasible() -> None:
    simulate = LawSimulate(0.5, rejected={"too_long_for_model": 3})
    row = infeasible(evaluate(make_plan(max_model_len=4096), simulate))
    assert row.code == "requests.rejected"
    assert row.reason == (
        "3 of 1000 requests can never be served: 3 longer than max_model_len 4096: raise it, meta-llama/Llama-3.1-8B "
        "takes 131072"
    )
    assert simulate.asked == [1]


@pytest.mark.parametrize(
    ("changes", "reason", "cure"),
    [
        ({}, "too_long_for_model", "use a model with a longer context, or cap them with prompt_cap_tokens"),
        ({"engine": EngineSpec(preset="trtllm")}, "prompt_over_batch_budget", "raise max_num_tokens to the longest"),
        ({}, "prompt_over_batch_budget", "raise max_num_batched_tokens to the longest prompt"),
        ({"engine": EngineSpec(preset="trtllm")}, "reservation_over_kv", "set max_tokens_default to what clients send"),
    ],
)
def test_what_would_let_rejected_requests_run_is_said(changes: dict[str, object], reason: str, cure: str) -> None:
    row = infeasible(evaluate(make_plan(**changes), LawSimulate(0.5, rejected={reason: 3})))
    assert cure in row.reason


def test_requests_turned_away_at_one_replica_are_no_reason_to_give_up() -> None:
    """Refusals for too many in the system go away with more replicas, so the search goes on past the first."""
    simulate = LawSimulate(0.5, rejected={"over_max_concurrent_requests": 3})
    row = infeasible(evaluate(make_plan(max_gpus=4), simulate))
    assert row.code == "budget.max_gpus"
    assert "3 requests are not served" in row.reason
    assert max(simulate.asked) > 1


@pytest.mark.parametrize("spare", [1, 3])
def test_replicas_that_may_fail_are_bought_and_not_replayed(spare: int) -> None:
    simulate, plain = LawSimulate(3.5), LawSimulate(3.5)
    found, alone = (
        feasible(evaluate(make_plan(survive_failures=spare), simulate)),
        feasible(evaluate(make_plan(), plain)),
    )
    assert simulate.asked == plain.asked
    assert (found.replicas, found.gpus, found.survive_failures) == (alone.replicas + spare,) * 2 + (spare,)
    assert found.usd_per_hour == 2.0 * found.gpus
    assert found.evidence.passes.replicas == alone.replicas
    assert (found.evidence.passes.gpus, found.evidence.passes.usd_per_hour) == (found.gpus, found.usd_per_hour)
    assert f"{found.replicas} are bought: the objectives are met while any {spare} of them" in found.evidence.sentence


def test_budgets_count_the_replicas_that_may_fail() -> None:
    needed = feasible(evaluate(make_plan(), LawSimulate(3.5))).replicas
    for changes in ({"max_gpus": needed + 1}, {"max_usd_per_hour": 2.0 * (needed + 1)}):
        assert feasible(evaluate(make_plan(survive_failures=1, **changes), LawSimulate(3.5))).gpus == needed + 1
        row = infeasible(evaluate(make_plan(survive_failures=2, **changes), LawSimulate(3.5)))
        assert row.code == f"budget.{next(iter(changes))}"
        assert "and 2 to spare" in row.reason
    row = infeasible(evaluate(make_plan(survive_failures=2, max_gpus=2), LawSimulate(3.5)))
    assert row.reason == "one replica and 2 to spare need 3 GPUs, over the cap of 2 GPUs"


def test_clients_that_give_up_leave_no_deployment_to_recommend() -> None:
    simulate = LawSimulate(0.5, rejected={"client_timeout": 3})
    row = infeasible(evaluate(make_plan(max_gpus=2, client_timeout_s=5.0), simulate))
    assert row.code == "budget.max_gpus"
    assert "3 requests are not served" in row.reason


def test_an_attainment_that_too_few_reach_is_no_missing_sample() -> None:
    """Of two replicas' clients 30 % give up, so no time holds for 90 %; three replicas serve all."""

    def simulate(workload: Workload, deployment: Deployment) -> ReplayResult:
        few = deployment.replicas < 3
        lost = 300 if few else 0
        rejected = {"client_timeout": lost} if few else {}
        made = make_result(workload, deployment.replicas, load_factor=0.5, ttft_s=0.1, rejected=rejected)
        last = np.where(np.arange(workload.n) < lost, -1, 0)
        return dataclasses.replace(made, requests=dataclasses.replace(made.requests, last_token_ps=last))

    plan = make_plan(objectives=(parse_objective("ttft<=2s@90%"),), client_timeout_s=60.0)
    assert feasible(evaluate(plan, simulate)).replicas == 3


def test_clients_less_patient_than_an_idle_replica_need_one_replay_only() -> None:
    simulate = LawSimulate(5.0, rejected={"client_timeout": 3})
    row = infeasible(evaluate(make_plan(client_timeout_s=0.05), simulate))
    assert row.code == "slo.unreachable"
    assert "clients give up after 50 ms" in row.reason
    assert simulate.asked == [1]


def test_an_objective_below_the_idle_bound_needs_one_replay_only() -> None:
    plan = make_plan(objectives=(parse_objective("e2e_p99=5ms"),))
    simulate = LawSimulate(5.0)
    row = infeasible(evaluate(plan, simulate))
    assert row.code == "slo.unreachable"
    assert "even with every request alone" in row.reason
    assert simulate.asked == [1]


def test_a_latency_that_replicas_do_not_move_stops_the_search() -> None:
    simulate = LawSimulate(0.9, law=lambda load: 3.0)
    row = infeasible(evaluate(make_plan(), simulate))
    assert row.code == "slo.unreachable"
    assert "more replicas do not help" in row.reason
    assert len(simulate.asked) < 8


def test_an_objective_without_samples_is_not_met() -> None:
    def without_tpot(workload: Workload, deployment: Deployment) -> ReplayResult:
        result = make_result(workload, deployment.replicas, load_factor=0.1, ttft_s=0.1)
        object.__setattr__(result, "tpot_s", result.tpot_s[:0])
        return result

    plan = make_plan(objectives=(parse_objective("tpot_p99=1s"),))
    result = evaluate_candidate(
        make_workload(), plan, plan.candidates()[0], resolve_deployment, without_tpot, lambda progress: None
    )
    assert infeasible(result).code == "slo.no_sample"


def test_an_empty_workload_is_refused() -> None:
    with pytest.raises(SpecError, match="no request"):
        evaluate(make_plan(), LawSimulate(1.0), make_workload(0))


def test_checkpoint_sees_progress_before_each_replay_and_cancels() -> None:
    class CancelledError(Exception):
        pass

    seen: list[float] = []

    def checkpoint(progress: float) -> None:
        seen.append(progress)
        if len(seen) == 3:
            raise CancelledError

    plan, simulate = make_plan(), LawSimulate(20.0)
    with pytest.raises(CancelledError):
        evaluate_candidate(make_workload(), plan, plan.candidates()[0], resolve_deployment, simulate, checkpoint)
    assert len(simulate.asked) == 2
    assert seen == sorted(seen)
    assert all(0.0 <= progress < 1.0 for progress in seen)


def test_a_repeat_gives_the_same_bytes() -> None:
    first = evaluate(make_plan(), LawSimulate(6.7)).model_dump_json()
    assert evaluate(make_plan(), LawSimulate(6.7)).model_dump_json() == first


def test_a_result_survives_json() -> None:
    result = evaluate(make_plan(), LawSimulate(6.7))
    assert CandidateResult.model_validate_json(result.model_dump_json()) == result


def test_cards_in_pcie_slots_may_form_groups_within_a_host() -> None:
    catalogue = shipped_catalogue()
    assert largest_tensor_parallel(catalogue.gpu("L40S")) == 8
    assert largest_tensor_parallel(catalogue.gpu("H100-SXM")) == 8
    assert largest_tensor_parallel(catalogue.gpu("GB200")) == 72
