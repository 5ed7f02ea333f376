"""SGLang, TensorRT-LLM and TGI as presets: defaults by GPU, knobs under their own names, rejections, whole replays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from replay.admission import declared_tokens
from replay.deployment import Deployment, resolve_deployment
from replay.engine_families import FAMILY_PRESETS
from replay.engines import resolve_engine
from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.simulate import simulate
from replay.specs import DeploymentSpec, EngineSpec
from replay.workload import PrefixBlocks, Workload

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
PS = 10**12


def engine(preset: str, gpu: str = "H100-SXM", **knobs: Any) -> Any:
    catalogue = shipped_catalogue()
    return resolve_engine(EngineSpec(preset=preset, overrides=knobs), catalogue.gpu(gpu), catalogue.model(MODEL))


def deployment(preset: str, replicas: int = 1, router: str = "round_robin", **knobs: Any) -> Deployment:
    catalogue = shipped_catalogue()
    spec = DeploymentSpec.model_validate(
        {
            "model": MODEL,
            "gpu": "H100-SXM",
            "replicas": replicas,
            "router": router,
            "max_model_len": 8192,
            "engine": {"preset": preset, "overrides": knobs},
        }
    )
    return resolve_deployment(spec, catalogue.model(MODEL), catalogue.gpu("H100-SXM"))


def workload(n: int = 300, rate_rps: float = 20.0, prompt: int = 600, output: int = 120) -> Workload:
    rng = np.random.default_rng(5)
    arrival_s = np.cumsum(rng.exponential(1 / rate_rps, n))
    arrival_s -= arrival_s[0]
    lengths = rng.integers(1, 2 * prompt, n), rng.integers(1, 2 * output, n)
    return Workload((arrival_s * PS).astype(np.int64), *lengths, float(arrival_s[-1]))


# --- defaults and knobs ---


@pytest.mark.parametrize(("gpu", "chunk"), [("L4", 4096), ("L40S", 4096), ("H100-SXM", 8192), ("B200", 16384)])
def test_sglang_sets_its_chunk_by_gpu_memory(gpu: str, chunk: int) -> None:
    config = engine("sglang", gpu)
    assert (config.own["chunked_prefill_size"], config.max_num_batched_tokens) == (chunk, max(chunk, 2048))
    assert (config.block_size, config.async_scheduling) == (1, True)


def test_sglang_keeps_memory_by_its_own_formula_and_sizes_its_batch_by_the_cache() -> None:
    gpu = shipped_catalogue().gpu("H100-SXM")
    reserved = 512 + 1.5 * 8192 + 1024 / 8 + 2 * 256  # MB at tp 1
    assert engine("sglang").gpu_memory_utilization == round(1 - reserved / (gpu.memory_total_gib * 1024), 3)
    tokens = deployment("sglang").memory.kv_tokens
    assert deployment("sglang").engine.own["max_running_requests"] == min(4096, max(2048, int(tokens / 8192 * 512)))
    assert deployment("sglang", max_running_requests=7).engine.max_num_seqs == 7


def test_defaults_of_the_others() -> None:
    trtllm, v3, v2 = engine("trtllm"), engine("tgi-v3"), engine("tgi-v2")
    assert (trtllm.max_num_seqs, trtllm.max_num_batched_tokens, trtllm.block_size) == (2048, 8192, 32)
    assert (trtllm.enable_chunked_prefill, trtllm.gpu_memory_utilization) == (False, 0.9)
    assert trtllm.own["capacity_scheduler_policy"] == "GUARANTEED_NO_EVICT"
    assert (v3.max_num_seqs, v3.block_size, v3.reserved_blocks, v3.profiled_tokens) == (128, 1, 1, 4096)
    assert (v2.block_size, v2.reserved_blocks, v2.own["waiting_served_ratio"], v2.async_scheduling) == (
        16,
        0,
        0.3,
        False,
    )


@pytest.mark.parametrize("preset", FAMILY_PRESETS)
def test_a_result_says_what_of_the_preset_was_compared_with_recordings(preset: str) -> None:
    notes = " ".join(deployment(preset).notes)
    assert ("not compared with recordings" in notes) == (preset != "sglang")
    assert ("gives the recorded steps of SGLang 0.5.23's scheduler" in notes) == (preset == "sglang")
    assert "max_tokens_default" in notes
    assert ("every prompt is computed in full" in notes) == (preset != "sglang")


@pytest.mark.parametrize(
    ("preset", "knobs", "words"),
    [
        ("sglang", {"chunked_prefil_size": 1}, "unknown engine knob"),
        ("sglang", {"max_num_seqs": 8}, "unknown engine knob"),
        ("sglang", {"chunked_prefill_size": 8, "page_size": 16}, "is below page_size"),
        ("sglang", {"schedule_policy": "dfs-weight"}, "none of fcfs, lpm"),
        ("sglang", {"schedule_policy": "lpm", "disable_radix_cache": True}, "turns the cache off"),
        ("sglang", {"enable_mixed_chunk": True}, "not replayed"),
        ("sglang", {"context_length": 10**6}, "exceeds what the model"),
        ("trtllm", {"capacity_scheduler_policy": "greedy"}, "GUARANTEED_NO_EVICT, MAX_UTILIZATION"),
        ("trtllm", {"max_num_tokens": 100}, "below max_batch_size"),
        ("trtllm", {"max_num_tokens": 16, "max_batch_size": 1, "enable_chunked_prefill": True}, "tokens_per_block"),
        ("tgi-v3", {"max_waiting_tokens": 3}, "tgi-v2 follows it"),
        ("tgi-v2", {"waiting_served_ratio": -1}, "out of range"),
        ("tgi-v2", {"max_concurrent_requests": "many"}, "a whole number"),
    ],
)
def test_bad_knobs_are_named_with_a_cure(preset: str, knobs: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words) as refusal:
        engine(preset, **knobs)
    fault = refusal.value.errors[0]
    assert fault.field is not None
    assert fault.field.startswith("engine.overrides.")
    assert fault.cure


def test_words_of_knobs_are_read_in_any_case() -> None:
    assert engine("trtllm", capacity_scheduler_policy="max_utilization").own["capacity_scheduler_policy"] == (
        "MAX_UTILIZATION"
    )


# --- what a request declares ---


def test_declared_outputs_come_from_the_trace_then_the_knob_and_never_fall_below_the_output() -> None:
    four = Workload(np.zeros(4, np.int64), np.full(4, 100), np.array([5, 50, 500, 5]), 1.0)
    declares = replace(four, max_tokens=np.array([0, 20, 900, 10**6]))
    assert declared_tokens(four, deployment("vllm-0.33")) is None
    for preset in ("trtllm", "tgi-v3"):
        limited = declared_tokens(declares, deployment(preset, max_tokens_default=64))
        assert limited is not None
        assert limited.tolist() == [64, 50, 900, 8092]
    rest = declared_tokens(four, deployment("tgi-v2"))
    assert rest is not None
    assert rest.tolist() == [8092] * 4
    spare = declared_tokens(four, deployment("sglang"))
    assert spare is not None
    assert spare.tolist() == [8090] * 4


# --- replays ---


@pytest.mark.parametrize(
    ("preset", "loop"), [("sglang", "sglang"), ("trtllm", "trtllm"), ("tgi-v3", "tgi-v3"), ("tgi-v2", "tgi-v2")]
)
def test_replays_by_its_own_loop_on_any_replicas_and_threads(preset: str, loop: str) -> None:
    result = simulate(workload(), deployment(preset, max_tokens_default=256))
    assert (result.loop, result.finished, result.rejected) == (loop, 300, {})
    gaps = (result.requests.output_tokens - 1).sum()
    assert result.itl.weight.sum() == gaps
    three = deployment(preset, replicas=3, max_tokens_default=256)
    one_thread, two_threads = (simulate(workload(), three, threads=n) for n in (1, 2))
    assert (one_thread.requests.last_token_ps == two_threads.requests.last_token_ps).all()
    assert one_thread.load_factor == pytest.approx(result.load_factor / 3)
    coupled = simulate(workload(), deployment(preset, replicas=3, router="least_outstanding", max_tokens_default=256))
    assert coupled.finished == 300
    assert set(coupled.requests.replica) == {0, 1, 2}


def test_tgi_turns_away_what_exceeds_its_concurrency_and_counts_it() -> None:
    burst = workload(200, rate_rps=2000.0)
    result = simulate(burst, deployment("tgi-v3", max_concurrent_requests=20, max_tokens_default=256))
    refused = result.rejected["over_max_concurrent_requests"]
    assert refused + result.finished == 200
    assert refused > 100
    gone = result.requests.status > 0
    assert (result.requests.first_token_ps[gone] == -1).all()
    assert len(result.ttft_s) == result.finished
    two = simulate(burst, deployment("tgi-v3", replicas=2, max_concurrent_requests=20, max_tokens_default=256))
    assert two.rejected["over_max_concurrent_requests"] < refused
    assert (two.requests.replica[two.requests.status > 0] == -1).all()


def test_what_is_turned_away_counts_as_offered_load() -> None:
    result = simulate(workload(4000, rate_rps=200.0), deployment("tgi-v3", max_tokens_default=256))
    assert result.rejected["over_max_concurrent_requests"] > 1000
    assert result.saturated


def test_requests_that_can_never_run_are_counted_by_reason() -> None:
    lengths = np.array([100, 8191, 8000]), np.array([10, 1, 500])
    three = Workload(np.zeros(3, np.int64), *lengths, 1.0)
    assert simulate(three, deployment("sglang")).rejected == {"too_long_for_model": 2}
    assert simulate(three, deployment("trtllm", max_num_tokens=4096)).rejected == {
        "too_long_for_model": 1,
        "prompt_over_batch_budget": 1,
    }
    assert simulate(three, deployment("tgi-v2")).rejected == {"too_long_for_model": 1, "prompt_over_batch_budget": 1}
    assert simulate(three, deployment("tgi-v3")).rejected == {"too_long_for_model": 1}


def test_whole_life_reservation_admits_fewer_than_on_demand_blocks() -> None:
    load = workload(400, rate_rps=400.0)
    reserved = simulate(load, deployment("trtllm"))
    on_demand = simulate(load, deployment("trtllm", capacity_scheduler_policy="MAX_UTILIZATION"))
    assert reserved.preemptions == 0
    assert reserved.batch_mean < on_demand.batch_mean
    assert reserved.kv_usage_max < on_demand.kv_usage_max


# --- SGLang's radix cache ---


def chat(turns: int, sessions: int) -> Workload:
    """Sessions that grow by 60 prompt and 40 output tokens a turn, 20 s apart."""
    k, s = np.divmod(np.arange(turns * sessions), sessions)
    arrival = k * 20 * PS + s * PS // 100
    follows = np.where(k > 0, np.arange(len(k)) - sessions, -1)
    return Workload(arrival, 100 * k + 60, np.full(len(k), 40), turns * 20.0, follows=follows)


@pytest.mark.parametrize(("page", "policy"), [(1, "fcfs"), (64, "lpm")])
def test_sglang_finds_the_turn_before_to_the_page(page: int, policy: str) -> None:
    load, k = chat(5, 4), np.arange(20) // 4
    result = simulate(load, deployment("sglang", page_size=page, schedule_policy=policy, max_tokens_default=64))
    assert result.requests.hit_tokens.tolist() == np.where(k, (100 * k - 1) // page * page, 0).tolist()
    assert result.kv_usage_max < 0.01, "cached text that nobody reads is free to be evicted"
    off = simulate(load, deployment("sglang", page_size=page, disable_radix_cache=True, max_tokens_default=64))
    assert off.prefix_hit_rate is None
    assert result.ttft_s[4:].mean() < off.ttft_s[4:].mean()


def test_sglang_shares_by_block_ids_and_on_replicas_of_its_own() -> None:
    n = 12
    start, ids = 2 * np.arange(n + 1), np.stack([np.zeros(n, np.int64), np.arange(n) + 1], axis=1).ravel()
    prefix = PrefixBlocks(start, ids, 512)
    load = Workload(np.arange(n) * PS, np.full(n, 900), np.full(n, 4), float(n), prefix=prefix)
    one = simulate(load, deployment("sglang", max_tokens_default=64)).requests.hit_tokens
    assert one.tolist() == [0] + [512] * (n - 1)
    three = deployment("sglang", replicas=3, router="prefix_aware", max_tokens_default=64)
    assert simulate(load, three).requests.hit_tokens.sum() >= 512 * (n - 3)
