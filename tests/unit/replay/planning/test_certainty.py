"""The range of a count: what the error of step times and KV cache leaves open."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_doubles import BASE_TTFT_S, LawSimulate, make_plan, make_workload

from replay.deployment import Deployment, resolve_deployment
from replay.hardware.entries import GpuType, ModelSpec
from replay.planning import certainty
from replay.planning.certainty import ErrorBand, at_edge, error_band
from replay.planning.document import Recommendation
from replay.planning.parts import Certainty, RangeEnd
from replay.planning.rank import rank
from replay.planning.resolve import ResolvedPlan
from replay.planning.search import evaluate_candidate
from replay.specs import DeploymentSpec, parse_objective

THRESHOLD_S = 2.0


def resolver(error: str) -> Callable[[DeploymentSpec, ModelSpec, GpuType], Deployment]:
    """Resolves deployments whose step times state ``error``."""

    def resolve(spec: DeploymentSpec, model: ModelSpec, gpu: GpuType) -> Deployment:
        found = resolve_deployment(spec, model, gpu)
        return dataclasses.replace(found, step_time=dataclasses.replace(found.step_time, stated_error=error))

    return resolve


def quoting(share: float) -> str:
    return f"step time: median 1 %, p95 {100 * share:.6f} %"


def find(simulate: LawSimulate, error: str, plan: ResolvedPlan | None = None) -> tuple[Recommendation, Certainty]:
    plan = plan or make_plan()
    result = evaluate_candidate(
        make_workload(1000), plan, plan.candidates()[0], resolver(error), simulate, lambda progress: None
    )
    assert result.recommendation is not None, result.infeasible
    assert result.recommendation.certainty is not None
    assert result.replays == len(simulate.asked) + len(simulate.edges)
    return result.recommendation, result.recommendation.certainty


def law_answer(single_load: float, longer: float) -> int:
    """By counting: the smallest n that passes where steps are ``longer``."""
    n = 1
    while single_load * longer / n >= 1.0 or longer * BASE_TTFT_S / (1.0 - single_load * longer / n) > THRESHOLD_S:
        n += 1
    return n


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 60.0), st.floats(0.001, 0.28))
def test_the_ends_are_the_answers_at_shorter_and_longer_steps(single_load: float, error: float) -> None:
    simulate = LawSimulate(single_load)
    found, sure = find(simulate, quoting(error))
    assert sure.fewest is not None
    assert sure.most is not None
    assert sure.step_time_error == pytest.approx(error, abs=1e-6)
    assert sure.fewest.replicas <= found.replicas <= sure.most.replicas
    # the sentence rounds the error, and the record whole picoseconds
    shorter = [law_answer(single_load, 1 - error + by) for by in (-2e-6, 2e-6)]
    longer = [law_answer(single_load, 1 / (1 - error) + by) for by in (-2e-6, 2e-6)]
    assert sure.fewest.replicas <= shorter[1], "an end that was not narrowed down lies outside"
    assert sure.most.replicas >= longer[0]
    if single_load < 15:
        assert shorter[0] <= sure.fewest.replicas <= shorter[1]
        assert longer[0] <= sure.most.replicas <= longer[1]
    assert sure.replays == len(simulate.edges) <= 2 * certainty.MOST_REPLAYS
    assert (sure.fewest.gpus, sure.most.gpus) == (sure.fewest.replicas, sure.most.replicas)
    assert sure.fewest.usd_per_hour == 2.0 * sure.fewest.gpus
    assert sure.most.usd_per_hour == 2.0 * sure.most.gpus


@settings(max_examples=30, deadline=None)
@given(st.floats(0.5, 12.0), st.lists(st.floats(0.01, 0.4), min_size=2, max_size=4))
def test_a_larger_error_never_narrows_the_range(single_load: float, errors: list[float]) -> None:
    ends = [find(LawSimulate(single_load), quoting(error))[1] for error in sorted(errors)]
    fewest = [one.fewest.replicas for one in ends if one.fewest is not None]
    most = [one.most.replicas for one in ends if one.most is not None]
    assert len(fewest) == len(most) == len(errors)
    assert fewest == sorted(fewest, reverse=True)
    assert most == sorted(most)


def test_without_error_the_range_is_a_point_and_costs_no_replay() -> None:
    exact = make_plan(engine={"preset": "vllm-0.33", "overrides": {"num_gpu_blocks_override": 20000}})
    simulate = LawSimulate(3.0)
    found, sure = find(simulate, quoting(0.0), exact)
    assert sure.fewest == sure.most == RangeEnd(replicas=found.replicas, gpus=found.gpus, usd_per_hour=2.0 * found.gpus)
    assert (sure.step_time_error, sure.kv_error, simulate.edges) == (0.0, 0.0, [])
    assert sure.gpus_text(found.gpus) == str(found.gpus)


def test_an_unknown_error_gives_no_range_and_says_so() -> None:
    simulate = LawSimulate(3.0)
    found, sure = find(simulate, "not measured for dense models on H100-SXM")
    assert (sure.fewest, sure.most, sure.step_time_error, simulate.edges) == (None, None, None, [])
    assert "was not measured" in sure.sentence
    assert sure.gpus_text(found.gpus) == str(found.gpus)
    assert sure.usd_text() == "-"


def test_an_error_as_large_as_the_step_bounds_nothing() -> None:
    simulate = LawSimulate(3.0)
    _, sure = find(simulate, quoting(1.37))
    assert (sure.fewest, sure.most, simulate.edges) == (None, None, [])
    assert sure.step_time_error == pytest.approx(1.37)
    assert "137 %" in sure.sentence


def test_the_sentence_says_what_fails_first() -> None:
    found, sure = find(LawSimulate(3.4), quoting(0.2))
    assert sure.fewest is not None
    assert sure.most is not None
    assert (sure.fewest.replicas, found.replicas, sure.most.replicas) == (4, 5, 7)
    assert sure.gpus_text(found.gpus) == "5 (4 to 7)"
    assert sure.usd_text() == "8.00 to 14.00"
    assert "steps 20 % shorter" in sure.sentence
    assert "4 replicas would do" in sure.sentence
    assert "steps 25 % longer" in sure.sentence
    assert "it fails at 6 replicas: ttft_p99 is" in sure.sentence
    assert "against 2 s; 7 meet every objective" in sure.sentence
    assert sure.how_sure.startswith("Transported")


def test_a_budget_is_never_exceeded_to_find_the_far_end() -> None:
    simulate = LawSimulate(3.4)
    _, sure = find(simulate, quoting(0.2), make_plan(max_gpus=5))
    assert max(replicas for _, _, replicas in simulate.edges) <= 5
    assert sure.most is None
    assert sure.gpus_text(5) == "5 (4 or more)"
    assert sure.usd_text() == "8.00 or more"
    assert "the cap of 5 GPUs" in sure.sentence


def test_an_objective_that_longer_steps_put_out_of_reach_has_no_far_end() -> None:
    simulate = LawSimulate(0.3)
    _, sure = find(simulate, quoting(0.2), make_plan(objectives=(parse_objective("ttft_p99=510ms"),)))
    assert sure.most is None
    assert "the most that were tried" in sure.sentence
    slow = make_plan(objectives=(parse_objective("ttft_p99=18ms"),))  # 15.2 ms on an idle replica
    simulate = LawSimulate(0.3, law=lambda load: 0.017)
    _, sure = find(simulate, quoting(0.9), slow)
    assert sure.most is None
    assert "no number of replicas is enough" in sure.sentence
    assert all(longer < 1 for longer, _, _ in simulate.edges)


def test_an_edge_scales_every_part_of_a_step_and_the_blocks() -> None:
    plan = make_plan()
    deployment = resolve_deployment(plan.deployment(plan.candidates()[0]), plan.model, plan.gpus[0])
    band = ErrorBand(0.25, 0.25, 0.1)
    before, memory = deployment.step_time, deployment.memory
    for slower, sign, factor in ((True, 1, 4 / 3), (False, -1, 0.75)):
        edge = at_edge(deployment, band, slower=slower)
        for field in dataclasses.fields(before):
            value, scaled = getattr(before, field.name), getattr(edge.step_time, field.name)
            if field.name == "request_overhead_ps" or not field.name.endswith("_ps"):
                assert scaled is value or scaled == value, field.name
            else:
                assert scaled == pytest.approx(value * factor, abs=0.51), field.name
        assert edge.memory.kv_blocks == pytest.approx(memory.kv_blocks * (1 - 0.1 * sign), abs=1)
        assert edge.usable_blocks != deployment.usable_blocks
        assert edge.engine == deployment.engine


def test_an_edge_scales_each_phase_by_its_own_error_and_never_makes_more_tokens_faster() -> None:
    plan = make_plan()
    deployment = resolve_deployment(plan.deployment(plan.candidates()[0]), plan.model, plan.gpus[0])
    before, decodes = deployment.step_time, deployment.engine.max_num_seqs
    for slower, sign in ((True, 1), (False, -1)):
        for prefill, decode in ((0.3, 0.1), (0.05, 0.2), (0.1, 0.0), (0.0, 0.1)):
            after = at_edge(deployment, ErrorBand(prefill, decode, 0.0), slower=slower).step_time
            prefill, decode = (abs(certainty.step_factor(one, slower=slower) - 1) for one in (prefill, decode))
            assert after.prefill_step_ps == pytest.approx(before.prefill_step_ps * (1 + sign * prefill), abs=1)
            assert after.decode_table_ps == pytest.approx(before.decode_table_ps * (1 + sign * decode), abs=1)
            assert after.host_ps == pytest.approx(before.host_ps * (1 + sign * max(prefill, decode)), abs=1)
            assert after.request_overhead_ps == before.request_overhead_ps
            assert (np.diff(after.rest_ps)[np.diff(before.rest_ps) >= 0] >= 0).all()
            off = sign * (after.rest_ps[1:] / before.rest_ps[1:] - 1.0)
            assert off[:decodes].min() >= decode - 1e-6, "the outer side of what is stated"
            assert off[decodes:].min() >= prefill - 1e-6


def by_phase(prefill: float, decode: float) -> str:
    return f"x: median 1 %, p95 9 % of 999 timings (prefill p95 {prefill} %, decode p95 {decode} %)"


def test_the_sentence_says_which_phase_drives_the_range() -> None:
    found, sure = find(LawSimulate(3.4), by_phase(20, 2))  # the law goes by the longest step, which is of prefill
    assert (sure.prefill_error, sure.decode_error, sure.step_time_error) == (0.2, 0.02, 0.2)
    assert "prefill steps 25 % and decode steps 2.04 % longer" in sure.sentence
    assert "The error of prefill steps alone makes it fail there." in sure.sentence
    assert sure.gpus_text(found.gpus) == "5 (4 to 7)"
    _, alike = find(LawSimulate(3.4), by_phase(20, 20))
    assert (alike.prefill_error, alike.decode_error) == (None, None)
    assert "alone" not in alike.sentence


def test_the_error_of_the_cache_is_that_of_its_sizing_unless_the_blocks_are_given() -> None:
    plan = make_plan()
    spec = plan.deployment(plan.candidates()[0])
    deployment = resolve_deployment(spec, plan.model, plan.gpus[0])
    band = error_band(deployment)
    assert band is not None
    assert 0 < band.step_time < 1
    assert band.kv_blocks == deployment.memory.kv_uncertainty_gib / deployment.memory.kv_gib
    engine = spec.engine.model_copy(update={"overrides": {"num_gpu_blocks_override": 9000}})
    given_blocks = resolve_deployment(spec.model_copy(update={"engine": engine}), plan.model, plan.gpus[0])
    exact = error_band(given_blocks)
    assert exact is not None
    assert exact.kv_blocks == 0


def _with_usd(found: Recommendation, usd: float, low: float, high: float | None, gpu: str) -> Recommendation:
    ends = [None if at is None else RangeEnd(replicas=1, gpus=1, usd_per_hour=at) for at in (low, high)]
    sure = Certainty(how_sure="-", step_time_error=0.1, fewest=ends[0], most=ends[1], sentence="-")
    return found.model_copy(update={"gpu": gpu, "usd_per_hour": usd, "certainty": sure})


def test_ranking_stays_on_the_central_cost_and_says_where_ranges_overlap() -> None:
    found, _ = find(LawSimulate(3.0), quoting(0.1))
    first = _with_usd(found, 10.0, 8.0, 12.0, "A")
    near = _with_usd(found, 14.0, 11.9, 16.0, "B")
    far = _with_usd(found, 15.0, 12.1, 16.0, "C")
    ranked = rank([far, near, first])
    assert [(one.gpu, one.rank, one.may_be_cheapest) for one in ranked] == [
        ("A", 1, None),
        ("B", 2, True),
        ("C", 3, False),
    ]
    unbounded = rank([far, _with_usd(found, 10.0, 8.0, None, "A")])
    assert [one.may_be_cheapest for one in unbounded] == [None, True]
    unsure = _with_usd(found, 1.0, 1.0, 1.0, "A").model_copy(
        update={"certainty": Certainty(how_sure="-", sentence="No range.")}
    )
    without_price = far.model_copy(update={"usd_per_hour": None})
    assert [(one.gpu, one.measure_first, one.may_be_cheapest) for one in rank([unsure, without_price])] == [
        ("C", False, None),
        ("A", True, None),
    ]
    unknown = rank([far, first.model_copy(update={"certainty": None})])
    assert [one.may_be_cheapest for one in unknown] == [None, None]
