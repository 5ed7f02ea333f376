"""What routers that keep prompts together sustain, as far as their load guard lets them."""

from __future__ import annotations

import numpy as np
import pytest

from replay import disaggregation
from replay import simulate as simulate_module
from replay.deployment import resolve_deployment
from replay.hardware.catalogue import shipped_catalogue
from replay.simulate import simulate
from replay.specs import DeploymentSpec
from replay.workload import PrefixBlocks, Workload

MODEL, GPU = "meta-llama/Llama-3.1-8B-Instruct", "H100-SXM"


def few_long_sessions(sessions: int, turns: int, rate_rps: float) -> Workload:
    """Sessions in random turns, each prompt one block of 512 tokens longer than the one before, 40 blocks at most."""
    session = np.random.default_rng(0).permutation(np.repeat(np.arange(sessions), turns))
    seen = np.zeros(sessions, np.int64)
    ids: list[list[int]] = []
    for one in session:
        chat, turn = divmod(int(seen[one]), 40)
        ids.append([(int(one) * 1000 + chat) * 100 + block for block in range(turn + 1)])
        seen[one] += 1
    counts = np.array([len(row) for row in ids])
    numbers = np.unique(np.concatenate(ids), return_inverse=True)[1].astype(np.int64)
    prefix = PrefixBlocks(np.concatenate([[0], np.cumsum(counts)]), numbers, 512)
    n = len(ids)
    arrival = np.rint(np.arange(n) / rate_rps * 1e12).astype(np.int64)
    return Workload(arrival, counts * 512, np.full(n, 20), n / rate_rps, prefix=prefix)


def test_the_load_guard_of_prefix_aware_is_part_of_its_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = shipped_catalogue()
    spec = DeploymentSpec(model=MODEL, gpu=GPU, replicas=4, router="prefix_aware")
    found = resolve_deployment(spec, catalogue.model(MODEL), catalogue.gpu(GPU))
    crowded = few_long_sessions(5, 600, 200.0)
    result = simulate(crowded, found)
    monkeypatch.setattr(simulate_module, "measure_capacity_as_dealt", lambda *_: None)
    kept_together = simulate(crowded, found)
    throughput = result.finished / result.duration_s
    assert result.saturated
    assert throughput < result.sustainable_rps < 0.95 * kept_together.sustainable_rps
    assert abs(result.sustainable_rps - throughput) < 0.5 * abs(kept_together.sustainable_rps - throughput)
    assert np.array_equal(result.requests.last_token_ps, kept_together.requests.last_token_ps)


def test_so_it_is_of_a_prefill_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = shipped_catalogue()
    apart = {"prefill_replicas": 4, "decode_replicas": 1, "kv_transfer_gb_per_s": 1e6}
    spec = DeploymentSpec.model_validate(
        {"model": MODEL, "gpu": GPU, "router": "prefix_aware", "disaggregation": apart}
    )
    found = resolve_deployment(spec, catalogue.model(MODEL), catalogue.gpu(GPU))
    crowded = few_long_sessions(5, 400, 250.0)
    dealt = simulate(crowded, found).pools
    monkeypatch.setattr(disaggregation, "measure_capacity_as_dealt", lambda *_: None)
    kept_together = simulate(crowded, found).pools
    assert dealt is not None
    assert kept_together is not None
    assert dealt.prefill.sustainable_rps < 0.97 * kept_together.prefill.sustainable_rps
    assert dealt.decode.sustainable_rps == kept_together.decode.sustainable_rps
