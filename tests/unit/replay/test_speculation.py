"""Speculative decoding as a user sets it: knobs, refusals, and what a replay makes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from replay.deployment import Deployment, resolve_deployment
from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.kernels.state import ONE
from replay.machine import make_machine
from replay.planning.idle import idle_value_s
from replay.simulate import simulate
from replay.specs import DeploymentSpec, parse_objective
from replay.speculation import acceptance, drafting
from replay.workload import Workload

MODEL, GPU = "meta-llama/Llama-3.1-8B-Instruct", "H100-SXM"


def deployment(preset: str = "vllm-0.33", replicas: int = 1, **knobs: object) -> Deployment:
    catalogue = shipped_catalogue()
    engine = {"preset": preset, "overrides": knobs}
    spec = DeploymentSpec.model_validate({"model": MODEL, "gpu": GPU, "replicas": replicas, "engine": engine})
    return resolve_deployment(spec, catalogue.model(MODEL), catalogue.gpu(GPU))


def few_at_a_time(n: int = 200) -> Workload:
    rng = np.random.default_rng(11)
    arrival = np.cumsum(rng.exponential(0.5e12, n)).astype(np.int64)
    return Workload(arrival, rng.integers(50, 900, n), rng.integers(1, 300, n), float(arrival[-1] / 1e12))


def test_one_rate_holds_at_every_place_and_several_are_shares_as_vllm_prints_them() -> None:
    one = deployment(num_speculative_tokens=3, acceptance_rate=0.5).engine
    assert acceptance(one) == (ONE // 2,) * 3
    several = deployment(num_speculative_tokens=3, acceptance_rate="0.8, 0.4, 0").engine
    assert acceptance(several) == (round(0.8 * ONE), ONE // 2, 0)


def test_a_draft_pass_follows_from_the_method_or_is_said() -> None:
    def of(**knobs: object) -> tuple[int, int]:
        return tuple(drafting(deployment(num_speculative_tokens=2, acceptance_rate=0.5, **knobs).engine, 32))

    assert of() == of(speculative_method="mtp") == (0, 31_250)
    assert of(speculative_method="ngram") == (0, 0)
    assert of(speculative_method="draft_model", draft_step_s=0.002) == (2 * 10**9, 0)


@pytest.mark.parametrize(
    ("preset", "knobs", "knob", "cure"),
    [
        ("vllm-0.33", {"num_speculative_tokens": 3}, "acceptance_rate", "0.8,0.6,0.45"),
        ("vllm-0.33", {"num_speculative_tokens": 3, "acceptance_rate": 1.2}, "acceptance_rate", "from 0 to 1"),
        ("vllm-0.33", {"num_speculative_tokens": 3, "acceptance_rate": "0.9,x,0.1"}, "acceptance_rate", "from 0 to 1"),
        ("vllm-0.33", {"num_speculative_tokens": 3, "acceptance_rate": "0.9,0.8"}, "acceptance_rate", "or 3 separated"),
        ("vllm-0.33", {"num_speculative_tokens": 2, "acceptance_rate": "0.5,0.6"}, "acceptance_rate", "vLLM's log"),
        ("vllm-0.33", {"acceptance_rate": 0.7}, "acceptance_rate", "num_speculative_tokens"),
        ("vllm-0.33", {"draft_step_s": 0.1}, "draft_step_s", "num_speculative_tokens"),
        (
            "vllm-0.33",
            {"num_speculative_tokens": 2, "acceptance_rate": 0.5, "async_scheduling": True},
            "async_scheduling",
            "false",
        ),
        (
            "vllm-0.33",
            {"num_speculative_tokens": 2, "acceptance_rate": 0.5, "speculative_method": "draft_model"},
            "draft_step_s",
            "seconds of one pass",
        ),
        ("vllm-0.33", {"speculative_config": "x"}, "speculative_config", "leave"),
        ("vllm-v0", {"num_speculative_tokens": 2}, "num_speculative_tokens", "belongs to vllm"),
        ("static", {"num_speculative_tokens": 2}, "num_speculative_tokens", "belongs to vllm"),
        ("sglang", {"speculative_algorithm": "EAGLE"}, "speculative_algorithm", "leave"),
        ("trtllm", {"max_draft_len": 3}, "max_draft_len", "leave"),
    ],
)
def test_refusals_name_the_knob_and_the_cure(preset: str, knobs: dict[str, object], knob: str, cure: str) -> None:
    with pytest.raises(SpecError) as refusal:
        deployment(preset, **knobs)
    fault = refusal.value.errors[0]
    assert fault.field == f"engine.overrides.{knob}"
    assert cure in fault.cure


def test_good_drafts_shorten_answers_of_few_requests_and_bad_ones_lengthen_them() -> None:
    load = few_at_a_time()
    plain = simulate(load, deployment(async_scheduling=False))
    good = simulate(load, deployment(num_speculative_tokens=3, acceptance_rate=0.8))
    bad = simulate(load, deployment(num_speculative_tokens=3, acceptance_rate=0))
    assert good.loop == "general"
    assert any("speculative" in note for note in good.notes)
    assert good.tpot_s.mean() < 0.6 * plain.tpot_s.mean()
    assert bad.tpot_s.mean() > 1.05 * plain.tpot_s.mean()
    assert (good.finished, good.output_tokens) == (plain.finished, plain.output_tokens)
    assert good.itl.weight.sum() == (load.output_tokens - 1).sum()


def test_any_number_of_threads_and_the_same_seed_accept_the_same_drafts() -> None:
    load = few_at_a_time()
    d = deployment(replicas=3, num_speculative_tokens=3, acceptance_rate=0.6)
    one, two = (simulate(load, d, threads=threads).requests.last_token_ps for threads in (1, 3))
    assert np.array_equal(one, two)
    other = simulate(replace(load, seed=load.seed + 1), d).requests.last_token_ps
    assert not np.array_equal(one, other)


def test_who_fits_only_without_drafts_is_rejected() -> None:
    d = deployment(num_speculative_tokens=4, acceptance_rate=0.5, num_gpu_blocks_override=65)  # 64 blocks of 16
    load = Workload(np.arange(2), np.array([1000, 1000]), np.array([17, 18]), 1.0)
    assert make_machine(d).config.lookahead_tokens == 4
    result = simulate(load, d)
    assert result.rejected == {"too_large_for_kv": 1}
    assert result.finished == 1


def test_the_best_that_a_plan_thinks_possible_is_below_what_drafts_reach() -> None:
    load = few_at_a_time(20)
    d = deployment(num_speculative_tokens=4, acceptance_rate=1, speculative_method="ngram")
    objective = parse_objective("e2e_mean=1s")
    reached = simulate(load, d).value(objective)
    assert reached is not None
    assert 0.3 * reached < idle_value_s(objective, load, d) <= reached
