import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from planning_doubles import TRACE, LawSimulate, make_plan, make_result, make_workload

from replay.deployment import Deployment, resolve_deployment
from replay.hardware.catalogue import shipped_catalogue
from replay.planning.assumed import assumed_outputs
from replay.planning.document import EngineInfo, PlanReport, ReplayReport, dump_report, parse_report, run_answer
from replay.planning.figures import summarise_workload
from replay.planning.rank import rank
from replay.planning.report import build_plan_report, build_replay_report
from replay.planning.resolve import ResolvedPlan, resolve_replay
from replay.planning.search import evaluate_candidate
from replay.results import ReplayResult, RequestTable
from replay.specs import DeploymentSpec, EngineSpec, ReplaySpec, Scalar, parse_objective
from replay.workload import Labels, Workload

INGEST = {
    "format": "azure-2023",
    "cleaning": {"rows_read": 210, "rows_kept": 200, "rows_rejected": 10},
    "warnings": ["clock of 1 s"],
}


def plan_report(plan: ResolvedPlan, single_load: float = 3.0, *, backwards: bool = False) -> PlanReport:
    workload = make_workload(1000)
    results = [
        evaluate_candidate(
            workload, plan, candidate, resolve_deployment, LawSimulate(single_load), lambda progress: None
        )
        for candidate in plan.candidates()
    ]
    document = build_plan_report(
        plan,
        results[::-1] if backwards else results,
        workload=summarise_workload(workload),
        ingest=INGEST,
        kernel_version="abc123",
    )
    report = parse_report(document)
    assert isinstance(report, PlanReport)
    return report


def two_gpus(**changes: object) -> ResolvedPlan:
    prices = {"usd_per_gpu_hour": {"H100-SXM": 2.0, "A100-SXM-80GB": 1.0}}
    return make_plan(**{"gpus": ("H100-SXM", "A100-SXM-80GB"), "tp": (1, 2, 16), "price": prices, **changes})


def test_recommendations_are_ranked_by_cost_and_the_infeasible_keep_their_reason() -> None:
    report = plan_report(two_gpus())
    costs = [found.usd_per_hour for found in report.recommendations]
    assert costs == sorted(costs)
    assert [found.rank for found in report.recommendations] == [1, 2, 3, 4]
    assert (report.recommendations[0].gpu, report.recommendations[0].tp) == ("A100-SXM-80GB", 1)
    assert {(row.gpu, row.tp) for row in report.infeasible} == {("H100-SXM", 16), ("A100-SXM-80GB", 16)}
    assert all(len(row.reason) > 20 for row in report.infeasible)
    assert report.verdict.status == "recommended"
    best = report.recommendations[0]
    assert f"{best.gpus} x A100-SXM-80GB" in report.verdict.sentence
    assert "ttft_p99 <= 2 s" in report.verdict.sentence


def test_without_a_price_a_recommendation_stands_after_the_priced_ones() -> None:
    report = plan_report(two_gpus(price={"usd_per_gpu_hour": {"H100-SXM": 90.0}, "provider": "genesis-cloud"}, tp=(1,)))
    assert [found.gpu for found in report.recommendations] == ["H100-SXM", "A100-SXM-80GB"]
    unpriced = report.recommendations[1]
    assert unpriced.usd_per_hour is None
    assert unpriced.price is None
    assert unpriced.price_reason is not None
    assert "provider genesis-cloud" in unpriced.price_reason
    assert any(text.startswith("No price") for text in report.warnings)


def test_a_candidate_that_cannot_run_is_no_missed_objective() -> None:
    sentence = plan_report(two_gpus(gpus=("H100-SXM",), tp=(3,))).verdict.sentence
    assert sentence.startswith("The candidate cannot be used; H100-SXM at tp 3: tensor parallelism 3 is impossible")


def test_no_feasible_candidate_is_an_answer_with_a_reason() -> None:
    report = plan_report(two_gpus(max_gpus=1, tp=(1, 2)), single_load=5.0)
    assert report.recommendations == ()
    assert report.verdict.status == "no_feasible_candidate"
    assert "None of the 4 candidates meets" in report.verdict.sentence
    assert "5.00 times the capacity" in report.verdict.sentence


def test_same_bytes_whatever_the_order_of_the_children() -> None:
    plan = two_gpus()
    first = json.dumps(dump_report(plan_report(plan)))
    assert json.dumps(dump_report(plan_report(plan, backwards=True))) == first


def test_a_missing_candidate_is_refused() -> None:
    plan, workload = two_gpus(), make_workload()
    with pytest.raises(ValueError, match="do not match the candidates"):
        build_plan_report(plan, [], workload=summarise_workload(workload), ingest={}, kernel_version="k")


def test_provenance_and_estimates_are_said() -> None:
    report = plan_report(two_gpus())
    assert report.provenance.trace_sha256 == TRACE.sha256
    assert report.provenance.kernel_version == "abc123"
    assert report.provenance.catalogue_version == shipped_catalogue().version
    assert report.provenance.input_hash == two_gpus().input_hash()
    assert {c.gpu for c in report.provenance.calibrations} == {"H100-SXM", "A100-SXM-80GB"}
    assert all(c.provenance == "transported" and c.stated_error for c in report.provenance.calibrations)
    assert {c.calibration_id for c in report.provenance.calibrations} == {"h100_sxm/vllm/1+2", "a100_sxm/vllm/1+2"}
    assert not any("analytic" in text for text in report.warnings)
    assert "clock of 1 s" in report.warnings
    assert any("not measurements" in text for text in report.limits)


def test_memory_parts_add_up() -> None:
    for found in plan_report(two_gpus()).recommendations:
        assert sum(part.gib for part in found.memory.parts) == pytest.approx(found.memory.total_gib, abs=0.01)
        assert found.memory.kv_tokens > 0


def test_command_line_answer_has_its_promised_shape() -> None:
    answer = run_answer(plan_report(two_gpus()))
    assert {"trace", "recommendations", "infeasible", "provenance"} <= set(answer)
    trace = answer["trace"]
    assert isinstance(trace, dict)
    assert (trace["requests"], trace["sha256"], trace["format"], trace["rows_rejected"]) == (
        1000,
        TRACE.sha256,
        "azure-2023",
        10,
    )
    recommendations = answer["recommendations"]
    assert isinstance(recommendations, list)
    first = recommendations[0]
    assert isinstance(first, dict)
    wanted = {"gpu", "tp", "replicas", "gpus", "usd_per_hour", "usd_per_month", "usd_per_1m_output_tokens", "status"}
    assert wanted <= set(first)
    metrics = first["metrics"]
    assert isinstance(metrics, dict)
    for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s", "queue_s"):
        stats = metrics[name]
        assert isinstance(stats, dict)
        assert {"mean", "p50", "p90", "p95", "p99"} <= set(stats)
    json.dumps(answer, allow_nan=False)


def replay_report(
    load: float | None,
    rejected: dict[str, int] | None = None,
    *,
    model: str = "meta-llama/Llama-3.1-8B",
    hit_rate: float | None = None,
    drained: bool = True,
    overrides: dict[str, Scalar] | None = None,
) -> ReplayReport:
    engine = EngineSpec(overrides=overrides or {})
    spec = ReplaySpec(deployment=DeploymentSpec(model=model, gpu="H100-SXM", replicas=2, engine=engine))
    resolved = resolve_replay(spec, shipped_catalogue(), trace=TRACE)
    deployment = resolve_deployment(resolved.spec.deployment, resolved.model, resolved.gpu)
    workload = make_workload()
    result = make_result(
        workload, 2, load_factor=load, ttft_s=0.5, rejected=rejected, prefix_hit_rate=hit_rate, drained=drained
    )
    report = parse_report(
        build_replay_report(resolved, deployment, result, workload, ingest=INGEST, kernel_version="k")
    )
    assert isinstance(report, ReplayReport)
    return report


def test_a_replay_of_two_pools_names_the_calibrations_of_both() -> None:
    pools = {"prefill_replicas": 1, "decode_replicas": 1, "kv_transfer_gb_per_s": 50}
    asked = {"model": "meta-llama/Meta-Llama-3-8B", "gpu": "H100-SXM", "disaggregation": pools}
    spec = ReplaySpec(deployment=DeploymentSpec.model_validate(asked))
    resolved = resolve_replay(spec, shipped_catalogue(), trace=TRACE)
    both = resolve_deployment(resolved.spec.deployment, resolved.model, resolved.gpu)
    assert both.decode is not None
    own = replace(both.decode, step_time=replace(both.decode.step_time, calibration_id="user/0123456789abcdef"))
    workload = make_workload()
    result = make_result(workload, 2, load_factor=0.5, ttft_s=0.5)
    for deployment, named in ((both, 1), (replace(both, decode=own), 2)):
        document = build_replay_report(resolved, deployment, result, workload, ingest=INGEST, kernel_version="k")
        report = parse_report(document)
        assert len(report.provenance.calibrations) == named
    assert "user/0123456789abcdef" in {one.calibration_id for one in report.provenance.calibrations}


def test_replay_report_says_what_happened() -> None:
    served = replay_report(0.5)
    assert served.verdict.status == "served"
    assert served.gpus == 2
    assert served.cost.price is not None
    assert served.cost.price.term == "on_demand"
    assert served.operating.metrics.ttft_s.p99 == 0.5
    saturated = replay_report(1.4)
    assert saturated.verdict.status == "saturated"
    assert "no operating point" in saturated.verdict.sentence
    partly = replay_report(0.5, {"too_large_for_kv": 4})
    assert partly.verdict.status == "some_requests_rejected"
    assert "4 of 200 requests can never be served" in partly.verdict.sentence


def test_a_saturated_replay_has_no_cost_per_token() -> None:
    served, saturated = replay_report(0.5).cost, replay_report(1.4).cost
    assert served.usd_per_1m_output_tokens is not None
    assert served.per_token_reason is None
    assert saturated.usd_per_hour == served.usd_per_hour
    assert saturated.usd_per_1m_output_tokens is None
    assert saturated.usd_per_1m_tokens is None
    assert "cannot keep up" in (saturated.per_token_reason or "")


def test_without_an_offered_rate_no_share_of_capacity_is_said() -> None:
    report = replay_report(None)
    assert report.verdict.status == "served"
    assert "no rate to set against capacity" in report.verdict.sentence
    assert (report.operating.load_factor, report.operating.headroom) == (None, None)
    assert parse_report(dump_report(report)) == report
    endless = replay_report(None, drained=False)
    assert endless.verdict.status == "saturated"
    assert "too long to drain" in endless.verdict.sentence


def test_prompts_are_said_to_be_computed_in_full_only_where_they_were() -> None:
    assert any("computed in full" in text for text in replay_report(0.5).limits)
    cached = replay_report(0.5, hit_rate=0.498)
    assert not any("computed in full" in text for text in cached.limits)
    assert any("Prefix-cache hits" in text for text in cached.limits)


def test_a_plan_whose_replays_hit_the_cache_does_not_deny_it() -> None:
    def cached(workload: Workload, deployment: Deployment) -> ReplayResult:
        return make_result(workload, deployment.replicas, load_factor=0.5, ttft_s=9.0, prefix_hit_rate=0.5)

    plan, workload = make_plan(max_gpus=2), make_workload(100)
    results = [
        evaluate_candidate(workload, plan, candidate, resolve_deployment, cached, lambda progress: None)
        for candidate in plan.candidates()
    ]
    assert results[0].infeasible is not None, "a plan without an answer must say it too"
    document = build_plan_report(plan, results, workload=summarise_workload(workload), ingest={}, kernel_version="k")
    assert not any("computed in full" in text for text in parse_report(document).limits)


def test_an_override_of_the_blocks_is_what_the_memory_shows() -> None:
    sized, forced = replay_report(0.5).memory, replay_report(0.5, overrides={"num_gpu_blocks_override": 9000}).memory
    assert sized.kv_blocks > 9000
    assert forced.kv_blocks == 8999, "one is the engine's null block"
    assert forced.kv_tokens == 8999 * 16
    gib = {part.name: part.gib for part in forced.parts}
    assert gib["KV cache"] == pytest.approx(9000 * 16 * 131072 / 2**30)
    assert gib["left unused"] > {part.name: part.gib for part in sized.parts}["left unused"] + 30
    assert forced.max_concurrency == pytest.approx(9000 * 16 / 131072)
    assert any(f"would hold {sized.kv_blocks} blocks" in note for note in forced.notes)
    too_many = replay_report(0.5, overrides={"num_gpu_blocks_override": 10**6}).memory
    assert any("would run out of memory" in note for note in too_many.notes)


def test_blocks_of_layers_in_groups_are_those_that_are_replayed() -> None:
    memory = replay_report(0.5, model="google/gemma-3-4b-it").memory
    assert memory.kv_tokens == int(memory.max_concurrency * 131_072)
    assert any(f"{memory.kv_blocks} blocks are shared by 7 groups of layers" in note for note in memory.notes)
    forced = replay_report(0.5, model="google/gemma-3-4b-it", overrides={"num_gpu_blocks_override": 90_001}).memory
    assert forced.kv_blocks == 90_000
    assert forced.kv_tokens == int(forced.max_concurrency * 131_072)


def test_a_replay_document_stays_small_and_says_how_time_was_cut() -> None:
    """The largest timeline and splits: 600 bins, and more tenants and priorities than are shown, with long names."""
    rng = np.random.default_rng(0)
    n = 50_000
    spec = ReplaySpec(
        deployment=DeploymentSpec(model="meta-llama/Llama-3.1-8B", gpu="H100-SXM"),
        objectives=tuple(parse_objective(f"ttft_p{q}=2s") for q in range(70, 90)),
        timeline_bin_s=0.001,
    )
    resolved = resolve_replay(spec, shipped_catalogue(), trace=TRACE)
    deployment = resolve_deployment(resolved.spec.deployment, resolved.model, resolved.gpu)
    names = tuple(f"{i:05d}" + "x" * 5000 for i in range(3000))
    labels = Labels(rng.integers(0, 3000, n).astype(np.int32), names)
    arrival = np.sort(rng.integers(0, 599 * 10**12, n))
    later = [arrival + rng.integers(10**11 * i, 10**11 * (i + 1), n) for i in (0, 1, 2)]
    zero = np.zeros(n, np.int64)
    table = RequestTable(arrival, *later, zero + 777, zero + 333, zero, zero, zero, zero, labels, labels)
    workload = make_workload(n)
    result = replace(make_result(workload, 1, load_factor=0.5, ttft_s=0.5), requests=table)
    document = build_replay_report(resolved, deployment, result, workload, ingest=INGEST, kernel_version="k")
    report = parse_report(document)
    assert isinstance(report, ReplayReport)
    assert report.timeline is not None
    assert len(report.timeline.start_s) > 290
    assert any("more than 600" in note for note in report.timeline.notes)
    assert [len(one.rows) for one in report.splits] == [21, 21]
    assert report.splits[0].rows[-1].members == 2980
    assert report.operating.goodput is not None
    assert len(json.dumps(document)) < 300_000


def test_rank_is_independent_of_input_order() -> None:
    found = plan_report(two_gpus()).recommendations
    assert rank(reversed(found)) == rank(found) == found


def test_documents_need_neither_polars_nor_numba() -> None:
    code = (
        "import sys, replay.planning.document, replay.planning.resolve;"
        "print([m for m in ('numba', 'polars') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_verdict_does_not_sell_capacity_as_headroom() -> None:
    assert "capacity" not in plan_report(two_gpus()).verdict.sentence


def test_the_verdict_gives_the_range_and_who_may_be_as_cheap() -> None:
    report = plan_report(two_gpus(tp=(1,), price={"usd_per_gpu_hour": {"H100-SXM": 1.05, "A100-SXM-80GB": 1.0}}), 7.0)
    best, second = report.recommendations
    assert best.certainty is not None
    assert second.certainty is not None
    assert best.ends[0] != best.ends[1]
    assert second.may_be_cheapest is True
    sentence = report.verdict.sentence
    assert f"Within the error of the simulation: {best.certainty.gpus_text(best.gpus)} GPUs" in sentence
    assert f"{best.certainty.usd_text()} USD per hour" in sentence
    assert f"H100-SXM at tp 1 ({second.certainty.usd_text()}) may be as cheap." in sentence
    dear = plan_report(two_gpus(tp=(1,)), 7.0)
    assert dear.recommendations[1].may_be_cheapest is False
    assert "may be as cheap" not in dear.verdict.sentence


def test_what_has_no_range_ranks_after_what_has_one_and_the_headline_says_so() -> None:
    prices = {"usd_per_gpu_hour": {"H100-SXM": 3.0, "MI300X": 1.0}}
    report = plan_report(make_plan(gpus=("MI300X", "H100-SXM"), tp=(1, 2), price=prices))
    assert [(one.gpu, one.measure_first) for one in report.recommendations] == [
        ("H100-SXM", False),
        ("H100-SXM", False),
        ("MI300X", True),
        ("MI300X", True),
    ]
    assert report.recommendations[2].usd_per_hour == 4.0
    assert report.verdict.status == "recommended"
    sentence = report.verdict.sentence
    assert sentence.startswith("4 x H100-SXM")
    assert "at 12.00 USD per hour, the cheapest of 2 feasible candidates with a range (2 have none)." in sentence
    assert sentence.endswith(
        " Cheaper if step times hold whose error bounds no count, so measure first: MI300X at tp 1 (4 GPUs, 4.00) and "
        "MI300X at tp 2 (8 GPUs, 8.00)."
    )
    dearer = plan_report(make_plan(gpus=("MI300X", "H100-SXM"), price={"usd_per_gpu_hour": {"MI300X": 9.0}}))
    assert "measure first" not in dearer.verdict.sentence


def test_a_plan_where_nothing_has_a_range_recommends_nothing() -> None:
    prices = {"usd_per_gpu_hour": {"MI300X": 1.0}}
    report = plan_report(make_plan(gpus=("MI300X",), price=prices))
    best = report.recommendations[0]
    assert best.certainty is not None
    assert best.measure_first
    assert report.verdict.status == "measure_first"
    assert report.verdict.sentence.endswith(
        f"the only feasible candidate. {best.certainty.sentence} Measure its step times before buying."
    )
    unpriced = plan_report(make_plan(gpus=("MI300X",), price={"provider": "genesis-cloud"}))
    assert unpriced.verdict.status == "measure_first"
    assert "no price" in unpriced.verdict.sentence


def test_what_is_assumed_of_undeclared_outputs_is_in_the_headline_and_the_limits() -> None:
    assumed = "that 1000 of 1000 requests, which declare no max_tokens, ask for all that the longest context leaves"
    served = plan_report(make_plan(engine=EngineSpec(preset="trtllm")))
    assert served.verdict.sentence.endswith(f" This assumes {assumed}.")
    assert served.limits[0].startswith(f"It is assumed {assumed}. The engine admits requests by it")
    assert served.workload.undeclared_outputs == 1000
    missed = plan_report(make_plan(engine=EngineSpec(preset="tgi-v3"), max_gpus=1), single_load=5.0)
    assert missed.verdict.status == "no_feasible_candidate"
    assert missed.verdict.sentence.endswith(f" This assumes {assumed}.")
    lengths = EngineSpec(preset="trtllm", overrides={"max_tokens_default": 512})
    told = plan_report(make_plan(engine=lengths))
    assert "ask for 512 output tokens." in told.verdict.sentence
    assert "assume" not in plan_report(two_gpus(tp=(1,))).verdict.sentence


def test_nothing_is_assumed_where_every_request_declares_its_output() -> None:
    engine = EngineInfo(
        preset="trtllm", version="-", settings={"max_tokens_default": 0}, router="-", weight_dtype="-", kv_dtype="-"
    )
    declared = replace(make_workload(3), max_tokens=np.array([64, 0, 64], np.int64))
    some = assumed_outputs(summarise_workload(declared), engine)
    assert some is not None
    assert "1 of 3 requests" in some
    every = replace(declared, max_tokens=np.full(3, 64, np.int64))
    assert assumed_outputs(summarise_workload(every), engine) is None
    assert "the one request" in str(assumed_outputs(summarise_workload(make_workload(1)), engine))


def test_the_range_replaces_the_warning_of_a_small_margin() -> None:
    near = plan_report(two_gpus(objectives=(parse_objective("ttft_p99=502ms"),), tp=(1,)), single_load=0.5)
    assert near.recommendations[0].ends[1] is None
    assert "or more" in near.verdict.sentence
    assert not any("step-time error" in text for text in near.warnings)
    assert any("range beside a count" in text for text in near.limits)
    assert not any("range beside a count" in text for text in replay_report(0.5).limits)
