"""Invariants of engine semantics 8.1 about pools and about clients that leave; see ``test_engine_invariants``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_cases import deployment, rng_of

from replay.deployment import Deployment, resolve_deployment
from replay.hardware.catalogue import shipped_catalogue
from replay.results import STATUSES
from replay.simulate import simulate
from replay.workload import STAYS, Leaves, Workload

PS = 10**12


def with_spec(**changes: object) -> Deployment:
    """The deployment of ``engine_cases`` with some of its spec changed."""
    catalogue = shipped_catalogue()
    spec = deployment().spec
    spec = type(spec).model_validate(spec.model_dump() | changes)
    return resolve_deployment(spec, catalogue.model(spec.model), catalogue.gpu(spec.gpu))


def test_28_pools_with_free_transfers_have_the_prefill_pools_ttft_and_no_prefill_in_a_gap() -> None:
    rng, n = rng_of(28), 150
    arrival = np.cumsum(rng.exponential(0.1 * PS, n)).astype(np.int64)
    prompt = np.where(rng.random(n) < 0.1, 8000, 300)
    load = Workload(arrival, prompt, rng.integers(20, 200, n), float(arrival[-1] / PS))
    pools = {"prefill_replicas": 1, "decode_replicas": 1, "kv_transfer_gb_per_s": 1e6}
    apart, mixed = simulate(load, with_spec(disaggregation=pools)), simulate(load, deployment())
    prompts_alone = simulate(replace(load, output_tokens=np.ones(n, np.int64)), deployment())
    assert np.array_equal(apart.requests.first_token_ps, prompts_alone.requests.first_token_ps)
    long_prompt_s = float(np.sort(prompts_alone.ttft_s[prompt == 8000])[0])
    assert (apart.itl.max_s or 0.0) < 0.3 * long_prompt_s < (mixed.itl.max_s or 0.0)


@pytest.mark.parametrize("status", ["client_timeout", "cancelled"])
def test_33_requests_that_are_given_up_leave_their_blocks_and_their_slots(status: str) -> None:
    crowd = 40
    arrival = np.append(np.zeros(crowd, np.int64), 30 * PS)
    prompt, output = np.full(crowd + 1, 1000), np.full(crowd + 1, 3000)
    output[-1] = 50
    load = Workload(arrival, prompt, output, 30.0)
    tiny = with_spec(engine={"preset": "vllm-0.33", "overrides": {"num_gpu_blocks_override": 400}})
    if status == "cancelled":  # each at a time of its own, the last ones first
        after = np.append(np.linspace(9 * PS, PS, crowd).astype(np.int64), STAYS)
        load = replace(load, leaves=Leaves(after, np.ones(crowd + 1, np.bool_)))
    else:
        tiny = with_spec(**tiny.spec.model_dump(include={"engine"}), client_timeout_s=5.0)
    result = simulate(load, tiny)
    assert (result.requests.status[:-1] == STATUSES.index(status)).all()
    assert result.kv_usage_max > 0.9, "the crowd filled the cache"
    last = slice(crowd, None)
    alone = simulate(Workload(arrival[last], prompt[last], output[last], 30.0), tiny)
    assert np.array_equal(result.e2e_s, alone.e2e_s), "who comes after them finds an empty engine"
