"""Prefill and decode pools from a spec to a result: resolution, capacity, refusals, figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from replay import capacity, disaggregation
from replay.deployment import Deployment, resolve_deployment
from replay.disaggregation import make_pools
from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.planning.pools import pools_part
from replay.planning.wording import whole_text
from replay.results import ReplayResult
from replay.simulate import simulate
from replay.specs import DeploymentSpec
from replay.workload import PrefixBlocks, Workload

CATALOGUE = shipped_catalogue()
MODEL, GPU = "meta-llama/Meta-Llama-3-8B", "H100-SXM"
POOLS: dict[str, Any] = {"prefill_replicas": 1, "decode_replicas": 1, "kv_transfer_gb_per_s": 50}
N = 40


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "_REQUESTS", 200)


def deployment(pools: dict[str, Any] | None = None, **spec: Any) -> Deployment:
    body = {"model": MODEL, "gpu": GPU, "disaggregation": {**POOLS, **(pools or {})}, **spec}
    found = DeploymentSpec.model_validate(body)
    return resolve_deployment(found, CATALOGUE.model(MODEL), CATALOGUE.gpu(GPU))


def workload(prompt: int = 1000, output: int = 30, gap_s: float = 0.2, prefix: PrefixBlocks | None = None) -> Workload:
    arrival = np.arange(N, dtype=np.int64) * round(gap_s * 1e12)
    lengths = np.full(N, prompt, np.int64), np.full(N, output, np.int64)
    return Workload(arrival, *lengths, span_s=N * gap_s, prefix=prefix)


def run(pools: dict[str, Any] | None = None, load: Workload | None = None, **spec: Any) -> ReplayResult:
    return simulate(load or workload(), deployment(pools, **spec))


def refusal(pools: dict[str, Any] | None = None, **spec: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        deployment(pools, **spec)
    return caught.value


def test_each_pool_has_its_own_parallelism_memory_and_knobs() -> None:
    found = deployment({"prefill_tp": 2, "decode_replicas": 3, "decode_overrides": {"max_num_seqs": 64}})
    assert found.decode is not None
    assert (found.memory.tp, found.decode.memory.tp) == (2, 1)
    assert found.usable_blocks > 2 * found.decode.usable_blocks
    assert (found.engine.max_num_seqs, found.decode.engine.max_num_seqs) == (1024, 64)
    assert (found.tensor_parallel_groups, found.gpus, found.replicas) == (((1, 2), (3, 1)), 5, 4)
    assert whole_text(found) == "5 x H100-SXM (1 prefill replica of tp 2, 3 decode replicas of tp 1)"


def test_every_request_is_served_and_every_token_has_its_gap() -> None:
    result = run()
    assert result.loop == "disaggregated"
    assert result.finished == N
    assert int(result.itl.weight.sum()) == N * 29
    table, pools = result.requests, result.pools
    assert pools is not None
    assert table.decode_replica is not None
    assert table.kv_arrived_ps is not None
    assert (table.decode_replica == 0).all()
    assert (table.first_token_ps < table.kv_arrived_ps).all()
    assert (table.kv_arrived_ps < table.last_token_ps).all()
    assert pools.kv_transfer_s == pytest.approx((table.kv_arrived_ps - table.first_token_ps) / 1e12)


def test_a_transfer_takes_the_prompts_blocks_over_the_bandwidth() -> None:
    """1000 tokens are 63 blocks of 16 tokens, of 131072 bytes each (32 layers, 8 KV heads of 128, 2 bytes, K and V)."""
    slow = run({"kv_transfer_gb_per_s": 1, "kv_transfer_latency_s": 0.01}, workload(gap_s=2.0)).pools
    assert slow is not None
    assert slow.kv_transfer_s == pytest.approx(np.full(N, 63 * 16 * 131072 / 1e9 + 0.01), rel=1e-9)
    assert slow.transfer_rps == pytest.approx(1e9 / (63 * 16 * 131072), rel=1e-9)


def test_free_transfers_leave_ttft_to_the_prefill_pool() -> None:
    apart = run({"kv_transfer_gb_per_s": 1_000_000}, workload(gap_s=0.05))
    prompts = replace(workload(gap_s=0.05), output_tokens=np.ones(N, np.int64))
    alone = simulate(
        prompts, resolve_deployment(deployment().spec.pools()[0], CATALOGUE.model(MODEL), CATALOGUE.gpu(GPU))
    )
    assert np.array_equal(apart.requests.first_token_ps, alone.requests.first_token_ps)


def test_first_token_from_the_decode_side_is_later_and_waits_for_the_transfer() -> None:
    early, late = run(), run({"first_token_from": "decode"})
    assert (late.ttft_s > early.ttft_s).all()
    assert late.requests.kv_arrived_ps is not None
    assert (late.requests.first_token_ps > late.requests.kv_arrived_ps).all()
    assert any("the first token comes from the decode replica" in note for note in late.notes)
    assert any("the first token comes from the prefill replica" in note for note in early.notes)


@pytest.mark.parametrize(
    ("pools", "load", "binding"),
    [
        ({}, workload(prompt=4000, output=4), "prefill"),
        ({}, workload(prompt=50, output=400), "decode"),
        ({"kv_transfer_gb_per_s": 0.5}, workload(prompt=1000, output=4), "transfer"),
    ],
)
def test_the_least_of_three_is_the_capacity(pools: dict[str, Any], load: Workload, binding: str) -> None:
    result = run(pools, load)
    assert result.pools is not None
    assert result.pools.binding == binding
    each = {
        "prefill": result.pools.prefill.sustainable_rps,
        "decode": result.pools.decode.sustainable_rps,
        "transfer": result.pools.transfer_rps,
    }
    assert result.sustainable_rps == min(each.values()) == each[binding]
    if result.offered_rps is not None:
        assert result.load_factor == pytest.approx(result.offered_rps / result.sustainable_rps)


def test_another_replica_where_it_binds_raises_the_capacity() -> None:
    load = workload(prompt=4000, output=4)
    one, two = run({}, load), run({"prefill_replicas": 2}, load)
    assert two.sustainable_rps == pytest.approx(2 * one.sustainable_rps, rel=1e-6)
    more_decodes = run({"decode_replicas": 2}, load)
    assert more_decodes.sustainable_rps == one.sustainable_rps


def test_prefixes_are_cached_by_the_prefill_pool() -> None:
    """All prompts share 60 blocks of 16: the first computes them, and every transfer still carries a whole prompt."""
    ids = np.tile(np.arange(60, dtype=np.int64), N)
    shared = PrefixBlocks(np.arange(N + 1, dtype=np.int64) * 60, ids, 16)
    cold, warm = run(load=workload()), run(load=workload(prefix=shared))
    assert warm.prefix_hit_rate == pytest.approx((N - 1) * 960 / (N * 1000))
    assert warm.pools is not None
    assert cold.pools is not None
    assert warm.pools.prefill.busy_s < 0.5 * cold.pools.prefill.busy_s
    whole_prompt_s = 63 * 16 * 131072 / 50e9
    assert warm.pools.kv_transfer_s.min() == pytest.approx(whole_prompt_s, rel=1e-6)
    assert cold.pools.kv_transfer_s.min() == pytest.approx(whole_prompt_s, rel=1e-6)


def test_a_run_with_too_few_links_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disaggregation, "_ENTRIES_A_BLOCK", 1)
    ids = np.tile(np.arange(60, dtype=np.int64), N)
    shared = PrefixBlocks(np.arange(N + 1, dtype=np.int64) * 60, ids, 16)
    tight: dict[str, Any] = {"kv_transfer_gb_per_s": 0.2, "prefill_overrides": {"num_gpu_blocks_override": 600}}
    tight["decode_overrides"] = {"num_gpu_blocks_override": 600}
    result = run(tight, workload(gap_s=0.01, prefix=shared), max_model_len=2048)
    assert result.finished == N


def test_requests_that_no_pool_can_hold_are_counted() -> None:
    small = {"decode_overrides": {"num_gpu_blocks_override": 64}}
    result = run(small, workload(prompt=1000, output=30), max_model_len=1000)
    assert result.rejected == {"too_long_for_model": N}
    result = run(small, workload(prompt=1000, output=100), max_model_len=2000)
    assert result.rejected == {"too_large_for_kv": N}


def test_replay_is_deterministic_and_routers_that_draw_are_seeded() -> None:
    pools = {"prefill_replicas": 2, "decode_replicas": 2, "decode_router": "power_of_two"}
    one, same = run(pools, router="random"), run(pools, router="random")
    assert np.array_equal(one.requests.last_token_ps, same.requests.last_token_ps)
    assert set(one.requests.replica.tolist()) == {0, 1}


def test_the_report_has_both_pools() -> None:
    found = deployment({"decode_tp": 2})
    part = pools_part(simulate(workload(), found), found)
    assert part is not None
    assert (part.prefill.gpus, part.decode.gpus) == (1, 2)
    assert part.binding == "prefill"
    assert part.kv_transfer_s.n == N
    assert part.prefill.load_factor is not None
    assert part.prefill.memory.kv_blocks < part.decode.memory.kv_blocks


@pytest.mark.parametrize(
    ("pools", "spec", "code", "says"),
    [
        ({}, {"engine": {"preset": "sglang"}}, "deployment.not_replayed", "vLLM V1 scheduler only"),
        ({}, {"engine": {"preset": "vllm-v0"}}, "deployment.not_replayed", "vLLM V1 scheduler only"),
        (
            {},
            {"engine": {"overrides": {"scheduling_policy": "srpt"}}},
            "deployment.not_replayed",
            "first come first served, not by srpt",
        ),
        ({"decode_tp": 3}, {}, "deployment.infeasible", "decode replicas: tensor parallelism 3 is impossible"),
        ({"prefill_overrides": {"max_num_seq": 4}}, {}, "engine.knob", "prefill replicas: unknown engine knob"),
    ],
)
def test_refusals_name_the_pool_and_the_cure(pools: dict[str, Any], spec: dict[str, Any], code: str, says: str) -> None:
    error = refusal(pools, **spec)
    assert error.code == code
    assert says in error.detail
    assert error.errors[0].cure


@pytest.mark.parametrize(
    ("pools", "spec", "field"),
    [
        ({"decode_tp": 3}, {}, "disaggregation.decode_tp"),
        ({}, {"tp": 3}, "tp"),
        ({"decode_overrides": {"max_num_seq": 4}}, {}, "disaggregation.decode_overrides.max_num_seq"),
        ({"decode_overrides": {"max_num_seqs": 0}}, {}, "disaggregation.decode_overrides.max_num_seqs"),
        ({"prefill_overrides": {"kv_offload_gib": 4}}, {}, "disaggregation.prefill_overrides.kv_offload_gib"),
        (
            {"decode_overrides": {"max_num_seqs": 8}},
            {"engine": {"overrides": {"max_num_seqs": 0}}},
            "engine.overrides.max_num_seqs",
        ),
        ({}, {"engine": {"overrides": {"scheduling_policy": "srpt"}}}, "engine.overrides.scheduling_policy"),
        ({}, {"engine": {"preset": "trtllm"}}, "engine.preset"),
    ],
)
def test_a_pool_is_refused_under_the_field_that_gave_the_value(
    pools: dict[str, Any], spec: dict[str, Any], field: str
) -> None:
    assert refusal(pools, **spec).errors[0].field == field


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"replicas": 3, "disaggregation": POOLS}, "leave replicas out"),
        ({"disaggregation": {**POOLS, "decode_router": "prefix_aware"}}, "decode replicas cache no prefixes"),
        ({"disaggregation": {**POOLS, "kv_transfer_gb_per_s": 0}}, "greater than 0"),
    ],
)
def test_impossible_specs(body: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        DeploymentSpec.model_validate({"model": MODEL, "gpu": GPU, **body})


def test_pools_need_a_decode_pool() -> None:
    plain = resolve_deployment(DeploymentSpec(model=MODEL, gpu=GPU), CATALOGUE.model(MODEL), CATALOGUE.gpu(GPU))
    with pytest.raises(RuntimeError, match="decode pool"):
        make_pools(plain)
