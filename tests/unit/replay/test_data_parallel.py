"""Data-parallel ranks of models with experts: knobs, memory, step times, replay, cost, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from replay import capacity
from replay.deployment import Deployment, resolve_deployment
from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.hardware.versions import parse_engine_version
from replay.hardware.weights import ONE_RANK, DataParallel, size_weights
from replay.planning.cost import Pricing
from replay.planning.idle import idle_value_s
from replay.planning.wording import whole_text
from replay.simulate import simulate
from replay.specs import DeploymentSpec, PriceFilter, parse_objective
from replay.workload import Workload

CATALOGUE = shipped_catalogue()
MIXTRAL, LLAMA = "mistralai/Mixtral-8x7B-v0.1", "meta-llama/Meta-Llama-3-8B"
N = 40


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "_REQUESTS", 100)


def deployment(ranks: int, model: str = MIXTRAL, expert_parallel: bool = False, **spec: Any) -> Deployment:
    knobs: dict[str, Any] = {"data_parallel_size": ranks}
    if expert_parallel:
        knobs["enable_expert_parallel"] = True
    body = {"model": model, "gpu": "H100-SXM", "engine": {"overrides": knobs | spec.pop("knobs", {})}, **spec}
    found = DeploymentSpec.model_validate(body)
    return resolve_deployment(found, CATALOGUE.model(model), CATALOGUE.gpu(found.gpu))


def workload(gap_s: float = 0.2) -> Workload:
    arrival = np.arange(N, dtype=np.int64) * round(gap_s * 1e12)
    return Workload(arrival, np.full(N, 500, np.int64), np.full(N, 20, np.int64), span_s=N * gap_s)


def test_experts_are_split_and_the_rest_is_on_every_rank() -> None:
    model, engine = CATALOGUE.model(MIXTRAL), parse_engine_version("vllm-0.33")
    one = size_weights(model, 1, "bf16", engine, ONE_RANK)
    for sharing in (DataParallel(4), DataParallel(4, expert_parallel=True)):
        four = size_weights(model, 1, "bf16", engine, sharing)
        assert four.experts == pytest.approx(one.experts / 4, rel=1e-3)
        assert (four.attention, four.embeddings, four.mlp) == (one.attention, one.embeddings, one.mlp)
    uneven = size_weights(model, 1, "bf16", engine, DataParallel(3, expert_parallel=True))
    assert uneven.experts == pytest.approx(one.experts * 3 / 8, rel=1e-3), "the fullest of three holds 3 of 8 experts"


def test_a_replica_is_a_group_of_ranks() -> None:
    found = deployment(4, replicas=2)
    assert (found.tensor_parallel_groups, found.gpus, found.engines, found.replicas) == (((8, 1),), 8, 8, 2)
    assert whole_text(found) == "8 x H100-SXM (2 replicas of 4 data-parallel ranks of tp 1)"
    assert found.engine.settings()["data_parallel_size"] == 4
    assert "data_parallel_size" not in deployment(1, LLAMA).engine.settings()
    assert any("experts are split over all of them" in note for note in found.memory.notes)


def test_shared_work_is_part_of_a_step() -> None:
    found = deployment(4)
    record = found.step_time
    assert len(record.shared_ps) == len(record.rest_ps)
    assert (record.shared_ps[1:] < record.rest_ps[1:]).all()
    assert record.graph_tokens == 512
    assert deployment(4, knobs={"enforce_eager": True}).step_time.graph_tokens == 0
    plain = deployment(1, LLAMA).step_time
    assert len(plain.shared_ps) == 0
    # Each rank reads a quarter of the experts: a small step is shorter than one GPU's alone would be.
    whole = deployment(1, tp=4).step_time
    assert whole.rest_ps[1] < record.rest_ps[1]


def test_ranks_take_turns_and_step_together() -> None:
    result = simulate(workload(), deployment(4))
    assert result.loop == "lockstep"
    assert result.finished == N
    counts = np.bincount(result.requests.replica, minlength=4)
    assert counts.sum() == N
    assert (counts > 0).all()
    two = simulate(workload(), deployment(2, replicas=2))
    assert set(two.requests.replica.tolist()) == {0, 1, 2, 3}, "ranks are numbered through the groups"
    assert two.sustainable_rps > result.sustainable_rps / 4
    assert 0 < result.busy_fraction <= 1


def test_a_group_is_measured_as_a_whole() -> None:
    """Two groups sustain twice what one does."""
    one, two = simulate(workload(), deployment(2)), simulate(workload(), deployment(2, replicas=2))
    assert two.sustainable_rps == pytest.approx(2 * one.sustainable_rps, rel=1e-9)


def test_a_lone_request_is_not_faster_than_the_idle_bound() -> None:
    """Its step shares the experts with ranks that compute one token each, so it is shorter than a step full of it."""
    lonely = Workload(np.zeros(1, np.int64), np.full(1, 8000), np.full(1, 5), 0.0)
    found = deployment(4)
    result = simulate(lonely, found, judge_load=False)
    for text in ("ttft_p50=1s", "e2e_p50=1s"):
        objective = parse_objective(text)
        reached = result.value(objective)
        assert reached is not None
        assert 0.5 * reached < idle_value_s(objective, lonely, found) <= reached


def test_all_ranks_are_paid_for() -> None:
    offers = CATALOGUE.offers("H100-SXM", PriceFilter())
    ranks = Pricing("H100-SXM", 1, PriceFilter(usd_per_gpu_hour={"H100-SXM": 2.0}), offers, ranks=4)
    assert ranks.usd_per_hour(3) == 24.0
    pools = ranks.price(1, ((2, 1), (1, 4)))
    assert pools is not None
    assert pools.paid_gpus == 6


@pytest.mark.parametrize(
    ("ranks", "spec", "says"),
    [
        (4, {"model": LLAMA}, "set replicas to 4 with the router vllm_dp"),
        (16, {}, "set data_parallel_size to 8 or less"),
        (4, {"tp": 4}, "set data_parallel_size to 2 or less"),
        (3, {}, "does not divide by 3 GPUs; set enable_expert_parallel"),
        (4, {"replicas": 2, "router": "least_outstanding"}, "use round_robin, random or session_affinity"),
        (4, {"knobs": {"kv_offload_gib": 8.0}}, "leave kv_offload_gib out, or data_parallel_size"),
        (4, {"knobs": {"max_num_queued_reqs": 8}}, "leave max_num_queued_reqs out, or data_parallel_size"),
        (4, {"knobs": {"max_num_queued_tokens": 8}}, "leave max_num_queued_tokens out, or data_parallel_size"),
        (1, {"expert_parallel": True}, "enable_expert_parallel is replayed with data_parallel_size above 1 only"),
        (
            4,
            {"disaggregation": {"prefill_replicas": 1, "decode_replicas": 1, "kv_transfer_gb_per_s": 50}},
            "leave data_parallel_size out",
        ),
    ],
)
def test_refusals_say_what_works(ranks: int, spec: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError) as caught:
        deployment(ranks, **spec)
    texts = (caught.value.detail, *(fault.cure or "" for fault in caught.value.errors))
    assert any(says in text for text in texts), texts
    assert caught.value.errors[0].field
