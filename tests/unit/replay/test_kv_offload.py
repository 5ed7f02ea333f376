"""Host memory as a second tier of the prefix cache: what comes back, what it costs, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from replay.deployment import Deployment, resolve_deployment
from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.simulate import simulate
from replay.specs import DeploymentSpec
from replay.workload import Workload

PS = 10**12
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def deployed(model: str = LLAMA, **knobs: float | bool) -> Deployment:
    catalogue = shipped_catalogue()
    engine = {"preset": "vllm-0.33", "overrides": knobs}
    spec = DeploymentSpec.model_validate({"model": model, "gpu": "H100-SXM", "max_model_len": 8192, "engine": engine})
    return resolve_deployment(spec, catalogue.model(model), catalogue.gpu("H100-SXM"))


def three_and_again() -> Workload:
    """Three texts of 4000 tokens, then a prompt that extends the first: 600 blocks hold two of the texts at a time."""
    follows = np.array([-1, -1, -1, 0])
    return Workload(np.arange(4) * 60 * PS, np.full(4, 4000), np.full(4, 17), 180.0, follows=follows)


def test_what_the_gpu_evicted_comes_back_at_the_price_of_a_copy() -> None:
    """The first text leaves 251 full blocks; the third evicts most of them. A token is 131,072 bytes."""
    few = {"num_gpu_blocks_override": 601, "async_scheduling": False}
    without = simulate(three_and_again(), deployed(**few))
    slow, fast = (
        simulate(three_and_again(), deployed(**few, kv_offload_gib=8.0, kv_offload_gb_per_s=rate, **more))
        for rate, more in ((1.0, {}), (2.0, {"kv_offload_latency_s": 0.5}))
    )
    assert without.host_hit_tokens == 0
    assert slow.requests.hit_tokens[3] == 249 * 16, "all but the block of the last token"
    on_host = slow.host_hit_tokens
    assert on_host == slow.requests.hit_tokens[3] - without.requests.hit_tokens[3] > 2000
    copy_s = on_host * 131_072 / 1e9
    ttft = [(x.requests.first_token_ps - x.requests.arrival_ps)[3] / PS for x in (slow, fast)]
    assert ttft[0] - ttft[1] == pytest.approx(copy_s / 2 - 0.5, abs=1e-6)
    assert any(f"{on_host:,} were copied back" in note for note in slow.notes)
    assert any("KV offload, an estimate" in note for note in slow.notes)


def test_a_small_tier_keeps_what_was_evicted_last() -> None:
    tiny = deployed(num_gpu_blocks_override=601, kv_offload_gib=10 * 16 * 131_072 / 2**30)
    result = simulate(three_and_again(), tiny)
    assert result.host_hit_tokens < 11 * 16


@pytest.mark.parametrize(
    ("model", "knobs", "field"),
    [
        (LLAMA, {"kv_offload_gib": 4.0, "enable_prefix_caching": False}, "kv_offload_gib"),
        (LLAMA, {"kv_offload_latency_s": 0.1}, "kv_offload_latency_s"),
        ("openai/gpt-oss-20b", {"kv_offload_gib": 4.0}, "kv_offload_gib"),
    ],
)
def test_knobs_without_effect_are_refused_with_a_cure(model: str, knobs: dict, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        deployed(model, **knobs)
    assert caught.value.errors[0].field == f"engine.overrides.{field}"
    assert caught.value.errors[0].cure
