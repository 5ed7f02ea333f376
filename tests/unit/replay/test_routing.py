"""Routers by name: dealing out, exact splits, what each needs, and its refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from engines import SEED, law_of, random_case, run_general
from pydantic import ValidationError

from replay.deployment import Deployment, resolve_deployment
from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.kernels.state import VLLM_DP, VLLM_DP_OLD
from replay.machine import Machine, make_machine, run_deployment
from replay.routing import deal, draw_pairs, router_code
from replay.simulate import simulate
from replay.specs import DeploymentSpec, Router, reads_state
from replay.workload import PrefixBlocks, Workload

MODEL, GPU = "meta-llama/Meta-Llama-3-8B", "H100-SXM"


def deployment(router: str, *, preset: str = "vllm-0.33", replicas: int = 3, **more: object) -> Deployment:
    catalogue = shipped_catalogue()
    fields = {"model": MODEL, "gpu": GPU, "replicas": replicas, "router": router, "engine": {"preset": preset}}
    spec = DeploymentSpec.model_validate(fields | more)
    return resolve_deployment(spec, catalogue.model(MODEL), catalogue.gpu(GPU))


def workload(n: int = 300, rate_rps: float = 60.0) -> Workload:
    rng = np.random.default_rng(3)
    arrival_s = np.cumsum(rng.exponential(1 / rate_rps, n))
    arrival_ps = ((arrival_s - arrival_s[0]) * 1e12).astype(np.int64)
    session = rng.integers(-1, 40, n)
    return Workload(
        arrival_ps,
        rng.integers(100, 900, n),
        rng.integers(1, 200, n),
        float(arrival_s[-1] - arrival_s[0]),
        prefix=PrefixBlocks(np.arange(n + 1), rng.integers(0, 20, n), 64),
        session=session,
    )


def test_random_is_even_and_the_seed_decides() -> None:
    dealt = deal("random", 40_000, 4, 1, None)
    assert np.abs(np.bincount(dealt, minlength=4) / 10_000 - 1).max() < 0.04
    assert np.array_equal(dealt, deal("random", 40_000, 4, 1, None))
    assert not np.array_equal(dealt, deal("random", 40_000, 4, 2, None))


def test_a_session_stays_on_its_replica() -> None:
    session = np.random.default_rng(5).integers(0, 3000, 20_000)
    session[::50] = -1
    dealt = deal("session_affinity", len(session), 7, 0, session)
    for k in range(200):
        assert len(set(dealt[session == k].tolist())) <= 1
    _, first = np.unique(session, return_index=True)
    assert np.abs(np.bincount(dealt[first[1:]], minlength=7) / (3000 / 7) - 1).max() < 0.2
    assert len(set(dealt[session == -1].tolist())) == 7, "requests without a session are spread"
    other_seed = deal("session_affinity", len(session), 7, 1, session)
    assert np.array_equal(dealt[session >= 0], other_seed[session >= 0])


def test_two_choices_are_two() -> None:
    pairs = draw_pairs(30_000, 3, 9)
    assert (pairs[:, 0] != pairs[:, 1]).all()
    counts = np.bincount(pairs[:, 0] * 3 + pairs[:, 1], minlength=9)
    assert np.abs(counts[[1, 2, 3, 5, 6, 7]] / 5000 - 1).max() < 0.06
    assert (draw_pairs(10, 1, 9) == 0).all()


@pytest.mark.parametrize("router", ["round_robin", "random", "session_affinity"])
def test_a_split_is_each_replica_alone(router: Router) -> None:
    rng = np.random.default_rng(6)
    for _ in range(20):
        c, r, cost = random_case(rng)
        n = len(r.arrival_ps)
        session = rng.integers(-1, 6, n)
        machine = Machine(c, law_of(c, cost), router=router, seed=SEED)
        run = run_deployment(machine, r, 3, 2, lambda: None, session)
        dealt = deal(router, n, 3, SEED, session)
        assert np.array_equal(run.replica, dealt)
        for k in range(3):
            mine = np.flatnonzero(dealt == k)
            columns = {name: getattr(r, name)[mine] for name in ("arrival_ps", "prompt_tokens", "output_tokens")}
            alone, _ = run_general(c, r._replace(**columns), law_of(c, cost))
            assert np.array_equal(run.last_ps[mine], alone.last_ps)
            assert np.array_equal(run.first_ps[mine], alone.first_ps)


@pytest.mark.parametrize("router", get_args(Router))
def test_every_router_serves_every_request_the_same_way_twice(router: str) -> None:
    d = deployment(router)
    one, two = simulate(workload(), d), simulate(workload(), d, threads=2)
    assert one.finished == 300
    assert set(one.requests.replica.tolist()) == {0, 1, 2}
    assert np.array_equal(one.requests.replica, two.requests.replica)
    assert np.array_equal(one.requests.last_token_ps, two.requests.last_token_ps)


@pytest.mark.parametrize("router", [router for router in get_args(Router) if router != "prefix_aware"])
def test_one_replica_needs_no_router(router: str) -> None:
    load = replace(workload(), prefix=None)
    plain = simulate(load, deployment("round_robin", replicas=1))
    assert np.array_equal(
        simulate(load, deployment(router, replicas=1)).requests.last_token_ps, plain.requests.last_token_ps
    )


def test_the_seed_of_the_workload_decides_the_draws() -> None:
    for router in ("random", "power_of_two"):
        d = deployment(router)
        one, two = simulate(workload(), d), simulate(replace(workload(), seed=1), d)
        assert not np.array_equal(one.requests.replica, two.requests.replica)


def test_state_dependent_replicas_take_the_fast_loop_where_one_does() -> None:
    assert make_machine(deployment("least_kv_usage")).loop == "fast"
    assert make_machine(deployment("prefix_aware"), 64).loop == "general"
    assert make_machine(deployment("random")).config.replicas == 1


def test_vllm_weighs_by_its_release_and_looks_every_100_ms() -> None:
    assert router_code("vllm_dp", "vllm-0.33") == VLLM_DP
    assert router_code("vllm_dp", "vllm-0.11") == VLLM_DP_OLD
    assert make_machine(deployment("vllm_dp")).config.router_snapshot_ps == 10**11
    assert make_machine(deployment("vllm_dp", router_snapshot_s=0)).config.router_snapshot_ps == 0
    assert make_machine(deployment("least_outstanding")).config.router_snapshot_ps == 0
    assert make_machine(deployment("least_outstanding", router_snapshot_s=0.5)).config.router_snapshot_ps == 5 * 10**11


def test_an_old_view_costs_latency() -> None:
    load = replace(workload(n=3000, rate_rps=150.0), prefix=None)
    means = [simulate(load, deployment("least_outstanding", router_snapshot_s=age)).ttft_s.mean() for age in (0.0, 2.0)]
    assert means[0] < means[1]


def test_a_snapshot_that_nobody_reads_is_refused() -> None:
    with pytest.raises(ValidationError, match="random reads no state: leave router_snapshot_s out"):
        deployment("random", router_snapshot_s=1.0)
    assert [router for router in get_args(Router) if not reads_state(router)] == [
        "round_robin",
        "random",
        "session_affinity",
    ]


@pytest.mark.parametrize(
    ("d", "without", "says"),
    [
        (deployment("session_affinity"), "session", "needs session ids"),
        (deployment("prefix_aware"), "prefix", "needs prompts' block ids"),
        (
            deployment("prefix_aware", engine={"overrides": {"enable_prefix_caching": False}}),
            "notes",
            "caches no prefixes",
        ),
        (deployment("power_of_two", preset="static"), "notes", "static batching"),
    ],
)
def test_a_router_without_what_it_needs_is_refused_with_the_cure(d: Deployment, without: str, says: str) -> None:
    load = replace(workload(), **{without: () if without == "notes" else None})
    with pytest.raises(SpecError, match=says) as caught:
        simulate(load, d)
    assert caught.value.code == "deployment.router"
    assert caught.value.errors[0].cure


def test_static_batching_behind_a_router_that_reads_no_state() -> None:
    result = simulate(replace(workload(n=60), prefix=None), deployment("random", preset="static"))
    assert result.finished == 60
