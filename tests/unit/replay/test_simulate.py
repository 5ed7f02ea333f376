"""simulate: metrics from token times, requests that cannot run, saturation, replicas and threads, prefix caching."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from replay.deployment import Deployment, resolve_deployment
from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.kernels.loglinear import interpolate
from replay.machine import make_requests
from replay.results import ReplayResult
from replay.simulate import simulate
from replay.specs import DeploymentSpec, parse_objective
from replay.workload import PrefixBlocks, Workload

MODEL, GPU = "meta-llama/Llama-3.1-8B-Instruct", "H100-SXM"
PS = 10**12


def deployment(
    preset: str = "vllm-0.33", replicas: int = 1, router: str = "round_robin", **knobs: object
) -> Deployment:
    catalogue = shipped_catalogue()
    spec = DeploymentSpec.model_validate(
        {
            "model": MODEL,
            "gpu": GPU,
            "replicas": replicas,
            "router": router,
            "engine": {"preset": preset, "overrides": knobs},
        }
    )
    return resolve_deployment(spec, catalogue.model(MODEL), catalogue.gpu(GPU))


def workload(n: int = 400, rate_rps: float = 20.0, seed: int = 3, prompt: int = 600, output: int = 120) -> Workload:
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1 / rate_rps, n))
    arrival_s -= arrival_s[0]
    return Workload(
        (arrival_s * PS).astype(np.int64),
        rng.integers(1, 2 * prompt, n),
        rng.integers(1, 2 * output, n),
        float(arrival_s[-1]),
    )


def assert_same(one: ReplayResult, other: ReplayResult) -> None:
    for field in fields(one.requests):
        assert np.array_equal(getattr(one.requests, field.name), getattr(other.requests, field.name)), field.name
    assert np.array_equal(one.itl.weight, other.itl.weight)
    assert (one.steps, one.preemptions, one.load_factor) == (other.steps, other.preemptions, other.load_factor)
    assert (one.kv_usage_mean, one.batch_mean) == (other.kv_usage_mean, other.batch_mean)


def test_metrics_follow_from_the_token_times() -> None:
    result = simulate(workload(), deployment())
    table = result.requests
    assert result.loop == "fast"
    assert result.finished == 400
    assert np.allclose(result.ttft_s, (table.first_token_ps - table.arrival_ps) / PS)
    assert np.allclose(result.e2e_s, (table.last_token_ps - table.arrival_ps) / PS)
    several = table.output_tokens > 1
    tpot = (table.last_token_ps - table.first_token_ps)[several] / PS / (table.output_tokens[several] - 1)
    assert np.allclose(result.tpot_s, tpot)
    gaps = (table.output_tokens - 1).sum()
    assert result.itl.weight.sum() == gaps
    assert result.itl.mean_s == pytest.approx((table.last_token_ps - table.first_token_ps).sum() / PS / gaps)
    assert result.distribution("ttft").percentiles[99.0] == pytest.approx(np.percentile(result.ttft_s, 99))
    assert result.value(parse_objective("e2e_p90=1s")) == pytest.approx(np.percentile(result.e2e_s, 90))
    assert result.value(parse_objective("ttft_mean=1s")) == pytest.approx(result.ttft_s.mean())
    assert result.duration_s == pytest.approx((table.last_token_ps.max() - table.arrival_ps[0]) / PS)


def test_a_lone_request_pays_its_overhead_prefill_and_decodes() -> None:
    d = deployment()
    one = Workload(np.array([0]), np.array([100]), np.array([3]), 1.0)
    result = simulate(one, d)
    record = d.step_time
    prefill = int(record.rest_ps[100]) + record.prefill_linear_ps * 100 * 101
    prefill += record.prefill_step_ps + int(interpolate(record.prefill_table_ps, 100, 0))
    assert result.requests.first_token_ps[0] == record.request_overhead_ps + prefill
    decodes = sum(
        int(record.rest_ps[1])
        + record.decode_request_ps
        + record.decode_linear_ps * (100 + j)
        + int(interpolate(record.decode_table_ps, 1, 100 + j))
        for j in (1, 2)
    )
    assert result.requests.last_token_ps[0] - result.requests.first_token_ps[0] == decodes


def test_the_general_loop_gives_the_same_result() -> None:
    load = workload()
    fast = simulate(load, deployment(max_num_seqs=16))
    general = simulate(load, deployment(max_num_seqs=16, long_prefill_token_threshold=8192))  # above every prompt
    assert (fast.loop, general.loop) == ("fast", "general")
    assert_same(fast, general)


@pytest.mark.parametrize("router", ["round_robin", "random", "least_outstanding", "vllm_dp"])
def test_any_number_of_threads_gives_the_same_bytes(router: str) -> None:
    load, d = workload(n=900, rate_rps=80.0), deployment(replicas=3, router=router)
    assert_same(simulate(load, d), simulate(load, d, threads=3))


def test_round_robin_deals_requests_in_turn() -> None:
    result = simulate(workload(n=100), deployment(replicas=4))
    assert result.requests.replica.tolist() == [i % 4 for i in range(100)]


def test_requests_that_cannot_run_are_counted_by_reason() -> None:
    load = Workload(np.zeros(4, np.int64), np.array([10, 3000, 900, 10]), np.array([5, 5, 5, 2000]), 1.0)
    d = deployment(max_model_len=2500, num_gpu_blocks_override=101)
    assert simulate(load, d).rejected == {"too_long_for_model": 1, "too_large_for_kv": 1}
    result = simulate(load, deployment(max_model_len=2500, num_gpu_blocks_override=41))
    assert result.rejected == {"too_long_for_model": 1, "too_large_for_kv": 2}
    assert result.finished == 1
    assert result.requests.last_token_ps.tolist()[1:] == [-1, -1, -1]
    assert len(result.ttft_s) == 1


def test_a_workload_of_nothing_but_impossible_requests_has_no_latency() -> None:
    load = Workload(np.zeros(2, np.int64), np.array([5000, 6000]), np.array([5, 5]), 1.0)
    result = simulate(load, deployment(max_model_len=1000))
    assert result.finished == 0
    assert result.rejected == {"too_long_for_model": 2}
    assert result.distribution("ttft").mean is None
    assert result.value(parse_objective("ttft_p99=1s")) is None


def test_an_empty_workload_is_refused() -> None:
    nothing = np.zeros(0, np.int64)
    with pytest.raises(SpecError, match="holds no request") as refusal:
        simulate(Workload(nothing, nothing, nothing, 0.0), deployment())
    assert refusal.value.errors[0].cure


def test_saturation_follows_capacity_and_replicas_relieve_it() -> None:
    d = deployment(max_num_seqs=8)
    capacity = simulate(workload(), d).sustainable_rps
    light, heavy = workload(rate_rps=0.5 * capacity), workload(rate_rps=2 * capacity)
    assert not simulate(light, d).saturated
    over = simulate(heavy, d)
    assert over.saturated
    assert over.load_factor > 1.5
    doubled = simulate(heavy, d.with_replicas(4))
    assert not doubled.saturated
    assert doubled.load_factor == pytest.approx(over.load_factor / 4)
    assert doubled.distribution("e2e").mean < over.distribution("e2e").mean  # type: ignore[operator]


def test_a_burst_and_a_smooth_trace_answer_differently() -> None:
    smooth = workload(n=400, rate_rps=10.0)
    burst = replace(smooth, arrival_ps=np.sort(np.where(np.arange(400) < 300, 0, smooth.arrival_ps)))
    d = deployment()
    assert simulate(burst, d).value(parse_objective("ttft_p99=1s")) > 2 * simulate(smooth, d).value(  # type: ignore[operator]
        parse_objective("ttft_p99=1s")
    )


def test_one_instant_has_no_offered_rate() -> None:
    load = Workload(np.zeros(50, np.int64), np.full(50, 100), np.full(50, 10), 0.0)
    result = simulate(load, deployment())
    assert not result.saturated
    assert result.load_factor is None
    assert any("one burst" in note for note in result.notes)


def test_static_batching_runs_by_its_own_loop_behind_routers_that_read_no_state() -> None:
    result = simulate(workload(n=64), deployment("static", replicas=2))
    assert result.loop == "static"
    assert result.finished == 64
    assert result.distribution("itl").n == 0, "without streaming all tokens come at once"
    assert len(result.tpot_s) == 0
    streamed = simulate(workload(n=64), deployment("static", stream_finished=True))
    assert streamed.distribution("itl").n > 0
    with pytest.raises(SpecError, match="static batching is replayed behind round_robin"):
        simulate(workload(n=8), deployment("static", router="least_outstanding"))


def repeated_prompts(n: int = 60, prompt: int = 1600) -> Workload:
    """The same prompt over and over, one block id for each 512 tokens."""
    blocks = -(-prompt // 512)
    start = np.arange(n + 1, dtype=np.int64) * blocks
    ids = np.tile(np.arange(blocks, dtype=np.int64), n)
    arrival = np.arange(n, dtype=np.int64) * PS
    return Workload(arrival, np.full(n, prompt), np.full(n, 20), float(n), prefix=PrefixBlocks(start, ids, 512))


def test_repeated_prompts_hit_all_but_the_last_block() -> None:
    load = repeated_prompts()
    result = simulate(load, deployment())
    assert result.loop == "general"
    assert result.requests.hit_tokens.tolist() == [0] + [(1600 - 1) // 16 * 16] * 59
    assert result.prefix_hit_rate == pytest.approx(59 * 1584 / (60 * 1600))
    cold = simulate(load, deployment(enable_prefix_caching=False))
    assert cold.loop == "fast"
    assert cold.prefix_hit_rate is None
    assert (result.ttft_s[1:] < cold.ttft_s[1:]).all()
    assert result.ttft_s[0] == cold.ttft_s[0]


def test_distinct_prompts_take_the_time_of_no_cache() -> None:
    load = workload(n=200)
    counts = -(-load.prompt_tokens // 512)
    start = np.concatenate([[0], np.cumsum(counts)])
    apart = replace(load, prefix=PrefixBlocks(start, np.arange(start[-1]), 512))
    with_cache, without = simulate(apart, deployment()), simulate(load, deployment())
    assert with_cache.prefix_hit_rate == 0.0
    assert np.array_equal(with_cache.requests.last_token_ps, without.requests.last_token_ps)


@pytest.mark.parametrize("block_tokens", [8, 16, 48, 512])
def test_block_ids_of_any_size_find_the_same_shared_head(block_tokens: int) -> None:
    shared, prompt, n = 480, 700, 6
    shared_blocks, all_blocks = shared // block_tokens, -(-prompt // block_tokens)
    ids = [
        list(range(shared_blocks)) + [10_000 * (i + 1) + j for j in range(all_blocks - shared_blocks)] for i in range(n)
    ]
    start = np.arange(n + 1, dtype=np.int64) * all_blocks
    prefix = PrefixBlocks(start, np.array([x for row in ids for x in row], np.int64), block_tokens)
    load = Workload(np.arange(n) * PS, np.full(n, prompt), np.full(n, 4), float(n), prefix=prefix)
    expected = shared_blocks * block_tokens // 16 * 16
    assert simulate(load, deployment()).requests.hit_tokens.tolist() == [0] + [expected] * (n - 1)


def test_taking_requests_takes_their_block_ids() -> None:
    prefix = PrefixBlocks(np.array([0, 2, 2, 5]), np.array([7, 8, 1, 2, 3]), 16)
    taken = prefix.take(np.array([2, 0]))
    assert taken.start.tolist() == [0, 3, 5]
    assert taken.ids.tolist() == [1, 2, 3, 7, 8]
    assert make_requests(*(np.ones(1, np.int64),) * 3, prefix).prefix_ids is prefix.ids


def test_what_an_endless_cache_would_have_seen() -> None:
    rows = [[1, 2, 3], [1, 2, 9], [], [1, 2, 9, 4], [5, 2]]
    start = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    prefix = PrefixBlocks(start, np.array([x for row in rows for x in row], np.int64), 16)
    assert prefix.reusable_tokens.tolist() == [0, 32, 0, 48, 0]


def mixed_lengths(order: str, n: int = 4000, rate_rps: float = 9.0) -> Workload:
    """Half long requests, half short ones, in one order or another."""
    long = np.arange(n) < n // 2
    if order == "short first":
        long = ~long
    elif order == "alternating":
        long = np.arange(n) % 2 == 0
    elif order == "shuffled":
        long = np.random.default_rng(1).permutation(long)
    arrival = (np.arange(n) * (PS / rate_rps)).astype(np.int64)
    return Workload(arrival, np.where(long, 2000, 200), np.where(long, 800, 50), n / rate_rps)


def test_capacity_does_not_depend_on_the_order_of_the_trace() -> None:
    factors = {
        order: simulate(mixed_lengths(order, n), deployment()).load_factor or 0.0
        for order in ("long first", "short first", "alternating", "shuffled")
        for n in (4000,)
    }
    assert max(factors.values()) / min(factors.values()) < 1.05, factors
    even = simulate(mixed_lengths("alternating", 16_384), deployment()).load_factor or 0.0
    assert even == pytest.approx(factors["shuffled"], rel=0.05), "no stride may pick one kind only"


def test_a_short_burst_is_judged_by_its_latencies_alone() -> None:
    few = Workload(np.arange(20) * (PS // 200), np.full(20, 500), np.full(20, 200), 0.1)
    result = simulate(few, deployment())
    assert result.load_factor is None
    assert not result.saturated
    assert result.value(parse_objective("ttft_p99=1s")) < 0.5  # type: ignore[operator]


def test_capacity_with_a_prefix_cache_is_that_of_a_replicas_own_share() -> None:
    sessions, turns = 40, 12
    order = np.argsort(np.tile(np.arange(turns), sessions) * sessions + np.repeat(np.arange(sessions), turns))
    prompt = (np.tile(np.arange(turns), sessions) + 1)[order] * 512
    ids = [
        [s * 1000 + k for k in range(t + 1)]
        for s, t in zip(
            np.repeat(np.arange(sessions), turns)[order], np.tile(np.arange(turns), sessions)[order], strict=True
        )
    ]
    start = np.concatenate([[0], np.cumsum([len(row) for row in ids])]).astype(np.int64)
    prefix = PrefixBlocks(start, np.array([x for row in ids for x in row], np.int64), 512)
    n = sessions * turns
    arrival = np.arange(n, dtype=np.int64) * PS // 8
    session = np.repeat(np.arange(sessions), turns)[order]
    load = Workload(arrival, prompt, np.full(n, 20), n / 8, prefix=prefix, session=session)
    one, seven = simulate(load, deployment()), simulate(load, deployment(replicas=7))
    assert one.prefix_hit_rate > seven.prefix_hit_rate, "each replica sees a part of each session"  # type: ignore[operator]
    assert seven.sustainable_rps < 7 * one.sustainable_rps * 0.8
    kept = simulate(load, deployment(replicas=7, router="session_affinity"))
    assert kept.prefix_hit_rate == pytest.approx(one.prefix_hit_rate, rel=0.01), "a session stays where its prefix is"
    assert kept.sustainable_rps == pytest.approx(7 * one.sustainable_rps, rel=0.1)
    aware = simulate(load, deployment(replicas=7, router="prefix_aware"))
    assert aware.prefix_hit_rate == pytest.approx(kept.prefix_hit_rate, rel=0.01)
    assert aware.sustainable_rps == pytest.approx(kept.sustainable_rps, rel=0.1)


def test_block_ids_that_share_nothing_leave_capacity_as_it_is() -> None:
    load = workload(n=200)
    load.output_tokens[7] = 8000
    counts = -(-load.prompt_tokens // 512)
    start = np.concatenate([[0], np.cumsum(counts)])
    apart = replace(load, prefix=PrefixBlocks(start, np.arange(start[-1]), 512))
    assert simulate(apart, deployment()).sustainable_rps == pytest.approx(
        simulate(load, deployment()).sustainable_rps, rel=0.15
    )


def test_what_would_take_months_to_drain_is_saturated_without_latencies() -> None:
    days = 60
    n = 500
    arrival = np.linspace(0, days * 86_400, n).astype(np.int64) * PS
    load = Workload(arrival, np.full(n, 100_000), np.full(n, 31_000), days * 86_400.0)
    slow = deployment(max_num_seqs=1)
    slow = replace(slow, step_time=replace(slow.step_time, rest_ps=slow.step_time.rest_ps * 200))
    result = simulate(load, slow)
    assert result.saturated
    assert result.finished == 0
    assert any("days to drain" in note for note in result.notes)
    assert result.distribution("ttft").n == 0


def test_a_group_wider_than_the_fast_domain_is_refused() -> None:
    catalogue = shipped_catalogue()
    spec = DeploymentSpec(model=MODEL, gpu=GPU, tp=16)
    with pytest.raises(SpecError, match="one interconnect domain") as refusal:
        resolve_deployment(spec, catalogue.model(MODEL), catalogue.gpu(GPU))
    assert refusal.value.errors[0].field == "deployment.tp"


def test_priority_needs_priorities_and_follows_them() -> None:
    load = workload(n=200, rate_rps=400.0)
    d = deployment(max_num_seqs=4, scheduling_policy="priority")
    with pytest.raises(SpecError, match="no whole-number priority") as refusal:
        simulate(load, d)
    assert refusal.value.errors[0].field == "engine.overrides.scheduling_policy"
    ranks = np.arange(200, dtype=np.int64) % 2
    result = simulate(replace(load, priority=ranks), d)
    assert result.loop == "general"
    assert result.queue_s[ranks == 0].mean() < 0.7 * result.queue_s[ranks == 1].mean()
    assert result.sustainable_rps == pytest.approx(simulate(load, deployment(max_num_seqs=4)).sustainable_rps)


def mean_wait_s(**knobs: object) -> float:
    seed = int(knobs.pop("seed", 0))  # type: ignore[call-overload]
    load = replace(workload(n=300, rate_rps=400.0), seed=seed)
    return float(simulate(load, deployment(max_num_seqs=2, **knobs)).queue_s.mean())


@pytest.mark.parametrize("policy", ["sjf", "srpt"])
def test_shortest_first_waits_less_the_better_it_predicts(policy: str) -> None:
    fcfs, oracle = mean_wait_s(), mean_wait_s(scheduling_policy=policy)
    fair, wild = (mean_wait_s(scheduling_policy=policy, output_length_sigma=sigma) for sigma in (0.5, 5.0))
    assert oracle < fair < wild
    assert oracle < 0.8 * fcfs
    assert wild == pytest.approx(fcfs, rel=0.15), "predictions that say nothing are a random order"
    again, other = (mean_wait_s(scheduling_policy=policy, output_length_sigma=0.5, seed=seed) for seed in (0, 1))
    assert again == fair
    assert other != fair


def test_ageing_leads_from_shortest_first_to_first_come_first_served() -> None:
    waits = [mean_wait_s(scheduling_policy="sjf", ageing_per_s=w) for w in (0.0, 300.0, 10_000.0)]
    in_turn = mean_wait_s()
    assert waits[0] < waits[1] < waits[2] <= in_turn
    assert waits[2] == pytest.approx(in_turn, rel=0.05)


def test_any_split_over_replicas_keeps_predictions() -> None:
    load = workload(n=300, rate_rps=400.0)
    knobs = {"max_num_seqs": 2, "scheduling_policy": "srpt", "output_length_sigma": 1.0}
    assert_same(
        simulate(load, deployment(replicas=3, **knobs)), simulate(load, deployment(replicas=3, **knobs), threads=3)
    )


def test_sarathi_takes_the_fast_loop_with_steps_of_its_budget() -> None:
    load = workload(n=100)
    sarathi, vllm = simulate(load, deployment("sarathi")), simulate(load, deployment("vllm-0.11"))
    assert sarathi.loop == "fast"
    assert sarathi.finished == 100
    assert sarathi.distribution("itl").percentiles[99.0] < vllm.distribution("itl").percentiles[99.0]


def test_orca_reserves_for_declared_output() -> None:
    load = workload(n=400, rate_rps=200.0)
    knobs = {"max_model_len": 8192, "num_gpu_blocks_override": 20_000}
    tight, loose = (simulate(load, deployment("orca", max_tokens_default=m, **knobs)) for m in (4000, 200))
    assert (tight.loop, tight.preemptions) == ("general", 0)
    assert tight.batch_mean < loose.batch_mean
    assert tight.kv_usage_max <= 1
    wide = Workload(np.zeros(2, np.int64), np.array([100, 100]), np.array([5, 5]), 1.0)
    small = deployment("orca", max_tokens_default=2000, max_model_len=8192, num_gpu_blocks_override=2000)
    assert simulate(wide, small).rejected == {"too_large_for_kv": 2}


def test_v0_stalls_decodes_and_swaps_at_the_price_of_the_link() -> None:
    load = workload(n=300, rate_rps=60.0)
    knobs = {"max_model_len": 4096, "num_gpu_blocks_override": 1200}
    v0 = simulate(load, deployment("vllm-v0", **knobs))
    v1 = simulate(load, deployment("vllm-0.11", **knobs))
    assert (v0.loop, v0.finished) == ("vllm-v0", 300)
    assert v0.preemptions > 0
    assert v0.distribution("itl").percentiles[99.0] > v1.distribution("itl").percentiles[99.0]
    swap = simulate(load, deployment("vllm-v0", preemption_mode="swap", **knobs))
    slow = simulate(load, deployment("vllm-v0", preemption_mode="swap", pcie_gb_per_s=0.5, **knobs))
    assert swap.preemptions > 0
    assert slow.duration_s > swap.duration_s
    with pytest.raises(SpecError, match="swap_space_gib") as refusal:
        simulate(load, deployment("vllm-v0", preemption_mode="swap", swap_space_gib=0.01, **knobs))
    assert refusal.value.errors[0].cure


def test_v0_sets_apart_what_its_watermark_never_admits() -> None:
    load = Workload(np.zeros(2, np.int64), np.array([1560, 1590]), np.array([5, 5]), 1.0)
    result = simulate(load, deployment("vllm-v0", max_model_len=1600, num_gpu_blocks_override=100))
    assert result.rejected == {"too_large_for_kv": 1}, "99 blocks of 16 tokens, one kept back"
    assert result.finished == 1


def test_queue_time_and_time_from_admission_add_up_to_ttft() -> None:
    result = simulate(workload(n=100, rate_rps=60.0), deployment(max_num_seqs=8))
    assert np.allclose(result.queue_s + result.ttft_from_admission_s, result.ttft_s)
