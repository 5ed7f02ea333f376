"""The plan keeps to the budget and the deployment, begins with what tells most, and names what it leaves out."""

from __future__ import annotations

from itertools import pairwise

import pytest
from endpoint_tools import DEPLOYMENT, deployment_of

from replay.errors import SpecError
from replay.experiment.plan import Part, estimated_s, plan_experiment


def test_a_larger_budget_only_adds_parts() -> None:
    plans = [plan_experiment(DEPLOYMENT, max_tokens=n, max_seconds=600) for n in (5_000, 50_000, 300_000, 10**7)]
    for small, large in pairwise(plans):
        assert set(small.parts) < set(large.parts)
        assert small.tokens < large.tokens
        assert small.requests < large.requests
    assert plans[-1].left_out == ()
    assert [part.kind for part in plans[-1].parts[:2]] == ["single", "decode"]


@pytest.mark.parametrize(("tokens", "seconds"), [(5_000, 600.0), (300_000, 3.0), (120_000, 180.0)])
def test_the_budget_is_kept_and_what_it_leaves_out_is_named(tokens: int, seconds: float) -> None:
    plan = plan_experiment(DEPLOYMENT, max_tokens=tokens, max_seconds=seconds)
    assert plan.tokens <= tokens
    assert plan.seconds <= seconds
    assert plan.seconds == pytest.approx(sum(estimated_s(part, DEPLOYMENT) for part in plan.parts))
    assert all("more than --max-" in one for one in plan.left_out)


def test_tokens_are_those_of_all_requests() -> None:
    part = Part("mixed", 8, 128, 60, added=6, added_tokens=1024)
    assert part.sent == 14
    assert part.at_once == 9
    assert part.tokens == 8 * 188 + 6 * 1025


def test_parts_fit_the_deployment() -> None:
    small = deployment_of(
        engine={
            "preset": "vllm-0.11",
            "overrides": {"max_num_seqs": 16, "num_gpu_blocks_override": 1200, "max_num_batched_tokens": 1024},
        },
        max_model_len=4096,
    )
    plan = plan_experiment(small, max_tokens=10**6, max_seconds=600)
    assert all(part.at_once <= 16 for part in plan.parts)
    assert all(part.at_once * (part.prompt_tokens + part.output_tokens) < 1200 * 16 for part in plan.parts)
    assert all(part.added_tokens + part.requests <= 1024 for part in plan.parts)
    assert all(part.prompt_tokens < 4096 for part in plan.parts)
    reasons = " ".join(plan.left_out)
    for said in ("max_num_seqs 16", "KV cache", "cut into several steps", "longer than the 4096"):
        assert said in reasons
    shorter = plan_experiment(small, max_tokens=10**6, max_seconds=600, longest_tokens=1000)
    assert max(part.prompt_tokens for part in shorter.parts) < 1000


def test_engines_that_keep_prompts_and_decodes_apart_have_no_mixed_parts() -> None:
    plan = plan_experiment(deployment_of("sglang"), max_tokens=10**6, max_seconds=600)
    assert {part.kind for part in plan.parts} == {"single", "decode"}
    assert any("sglang does not put prompts and decodes into one step" in one for one in plan.left_out)


@pytest.mark.parametrize(
    ("preset", "overrides", "field"),
    [
        ("vllm-0.11", {"num_speculative_tokens": 3, "acceptance_rate": "0.7"}, "engine.num_speculative_tokens"),
        ("static", {}, "engine.preset"),
    ],
)
def test_servers_whose_steps_are_not_seen_from_outside_are_refused(
    preset: str, overrides: dict[str, object], field: str
) -> None:
    deployment = deployment_of(engine={"preset": preset, "overrides": overrides})
    with pytest.raises(SpecError) as refused:
        plan_experiment(deployment, max_tokens=10**6, max_seconds=600)
    assert refused.value.code == "endpoint.deployment"
    assert refused.value.errors[0].field == field


def test_a_budget_for_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="no experiment fits 600 tokens") as refused:
        plan_experiment(DEPLOYMENT, max_tokens=600, max_seconds=60)
    assert refused.value.code == "endpoint.budget"
