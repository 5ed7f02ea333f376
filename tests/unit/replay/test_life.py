"""Closed loops, limits, impatient clients and failures through ``simulate``: times, counts, statuses and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from replay.closed_loop import ClosedLoop, unroll
from replay.deployment import Deployment, resolve_deployment
from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.results import STATUSES, ReplayResult
from replay.simulate import simulate
from replay.specs import DeploymentSpec, parse_objective
from replay.timeline import build_timeline
from replay.workload import Workload

MODEL, GPU = "meta-llama/Llama-3.1-8B-Instruct", "H100-SXM"
PS = 10**12
PRESETS = ("vllm-0.33", "vllm-0.11", "sarathi", "orca", "vllm-v0", "sglang", "trtllm", "tgi-v3", "tgi-v2")


def deployment(preset: str = "vllm-0.33", knobs: dict | None = None, **more: object) -> Deployment:
    catalogue = shipped_catalogue()
    fields = {"model": MODEL, "gpu": GPU, "engine": {"preset": preset, "overrides": knobs or {}}}
    spec = DeploymentSpec.model_validate(fields | more)
    return resolve_deployment(spec, catalogue.model(MODEL), catalogue.gpu(GPU))


def sessions(n: int = 40, turns: int = 4, rate_rps: float = 2.0, delay_s: float = 0.5, span_s: float = 0.0) -> Workload:
    """``n`` sessions of ``turns`` turns; prompts grow."""
    rng = np.random.default_rng(3)
    starts = np.cumsum(rng.exponential(1 / rate_rps, n))
    start = np.rint((starts - starts[0]) * PS).astype(np.int64)
    nominal = np.repeat(start, turns) + np.tile(np.arange(turns), n) * round(delay_s * PS)
    turn = np.tile(np.arange(turns), n)
    order = np.lexsort((turn, nominal))
    place = np.argsort(order)
    before = np.where(turn > 0, np.arange(n * turns) - 1, -1)[order]
    after = np.where(before >= 0, place[before], -1)
    delay = np.where(after >= 0, round(delay_s * PS), 0)
    return Workload(
        nominal[order],
        (200 + 300 * turn)[order],
        rng.integers(1, 100, n * turns),
        span_s or float(start[-1]) / PS,
        closed_loop=ClosedLoop(after, delay),
        session=np.repeat(np.arange(n), turns)[order],
    )


def burst(n: int = 200, prompt: int = 2000, output: int = 100) -> Workload:
    return Workload(np.zeros(n, np.int64), np.full(n, prompt), np.full(n, output), 0.0)


def steady(n: int = 300, rate_rps: float = 10.0) -> Workload:
    return Workload(np.arange(n, dtype=np.int64) * round(PS / rate_rps), np.full(n, 500), np.full(n, 100), n / rate_rps)


def counts_add_up(result: ReplayResult) -> None:
    counts = np.bincount(result.requests.status, minlength=len(STATUSES))
    assert counts[0] == result.finished
    assert {name: n for name, n in zip(STATUSES[1:], counts[1:].tolist(), strict=True) if n} == result.rejected
    assert ((result.requests.last_token_ps >= 0) == (result.requests.status == 0)).all()
    assert len(result.e2e_s) == result.finished


def chains_hold(workload: Workload, result: ReplayResult, timeout_s: float = 0.0) -> None:
    """Every follower was sent its delay after the one before had ended."""
    loop, table = workload.closed_loop, result.requests
    assert loop is not None
    gave_up = table.status == STATUSES.index("client_timeout")
    ended = np.where(table.status == 0, table.last_token_ps, table.arrival_ps + gave_up * round(timeout_s * PS))
    follows = loop.after >= 0
    assert (table.arrival_ps[follows] == (ended[loop.after] + loop.delay_ps)[follows]).all()
    assert (table.arrival_ps[~follows] == workload.arrival_ps[~follows]).all()


@pytest.mark.parametrize("preset", PRESETS)
def test_followers_are_sent_when_the_one_before_has_ended(preset: str) -> None:
    workload = sessions()
    result = simulate(workload, deployment(preset, replicas=2))
    assert result.finished == workload.n
    chains_hold(workload, result)
    counts_add_up(result)
    table = result.requests
    assert np.allclose(result.e2e_s, (table.last_token_ps - table.arrival_ps) / PS)
    assert (table.first_token_ps > table.arrival_ps).all()
    assert any("3 of 4" in note or "120 of 160" in note for note in result.notes)


def test_a_faster_deployment_is_sent_later_requests_earlier() -> None:
    workload = sessions(n=200, rate_rps=30.0)
    one, four = (simulate(workload, deployment(replicas=n)) for n in (1, 4))
    assert one.finished == four.finished == workload.n
    assert four.requests.arrival_ps.sum() < one.requests.arrival_ps.sum()
    assert four.loop == "general"


@pytest.mark.parametrize("router", ["round_robin", "random", "session_affinity", "least_outstanding", "power_of_two"])
def test_any_router_deals_in_a_closed_loop(router: str) -> None:
    workload = sessions()
    result = simulate(workload, deployment(replicas=3, router=router))
    chains_hold(workload, result)
    replica = result.requests.replica
    assert set(replica.tolist()) == {0, 1, 2}
    if router == "session_affinity":
        assert workload.session is not None
        assert all(len(set(replica[workload.session == s].tolist())) == 1 for s in range(40))
    again = simulate(workload, deployment(replicas=3, router=router))
    assert np.array_equal(result.requests.last_token_ps, again.requests.last_token_ps)


def test_what_cannot_run_ends_as_it_is_sent() -> None:
    workload = sessions(n=3)
    loop = workload.closed_loop
    assert loop is not None
    chain = unroll(loop.after, loop.delay_ps)
    prompt = workload.prompt_tokens.copy()
    prompt[chain.depth == 1] = 10**6
    prompt[np.flatnonzero(chain.depth == 0)[0]] = 10**6
    workload = replace(workload, prompt_tokens=prompt)
    result = simulate(workload, deployment())
    assert result.rejected == {"too_long_for_model": 4}
    chains_hold(workload, result)


def test_load_of_a_closed_loop_is_that_of_its_sessions() -> None:
    lasting = simulate(sessions(n=400, rate_rps=4.0), deployment())
    assert lasting.offered_rps == pytest.approx(16.0, rel=0.1)
    assert lasting.load_factor is not None
    crowd = sessions(n=50, rate_rps=1e6)
    result = simulate(crowd, deployment())
    assert (result.offered_rps, result.load_factor, result.saturated) == (None, None, False)
    assert any("saturation is not judged" in note and "sessions" in note for note in result.notes)


def test_limits_refuse_with_503_by_reason() -> None:
    result = simulate(burst(), deployment(knobs={"max_num_queued_reqs": 50}))
    assert result.rejected == {"over_max_num_queued_reqs": 150}
    counts_add_up(result)
    result = simulate(burst(), deployment(knobs={"max_num_queued_tokens": 40_000}))
    assert result.rejected == {"over_max_num_queued_tokens": 180}
    assert simulate(burst(), deployment()).rejected == {}
    assert simulate(steady(), deployment(knobs={"max_num_queued_reqs": 500})).loop == "general"


def test_followers_of_a_refused_request_wait_until_its_client_has_heard() -> None:
    """The refusal comes from the engine, after the overhead; whether or not the follower itself can run."""
    crowd = 20
    after = np.concatenate([np.full(crowd, -1), np.arange(crowd), np.arange(crowd, 2 * crowd)])
    delay = np.where(after >= 0, PS, 0)
    arrival = np.repeat(np.arange(3), crowd) * PS
    prompt = np.where(np.arange(3 * crowd) // crowd == 1, 10**6, 500)
    workload = Workload(arrival, prompt, np.full(3 * crowd, 50), 1.0, closed_loop=ClosedLoop(after, delay))
    limited = deployment(knobs={"max_num_queued_reqs": 8})
    table = simulate(workload, limited).requests
    refused = np.flatnonzero(table.status[:crowd] == STATUSES.index("over_max_num_queued_reqs"))
    assert len(refused) == crowd - 8
    heard = table.arrival_ps[refused] + limited.step_time.request_overhead_ps
    assert (table.arrival_ps[refused + crowd] == heard + PS).all()
    assert (table.arrival_ps[refused + 2 * crowd] == heard + 2 * PS).all()


@pytest.mark.parametrize("preset", [name for name in PRESETS if name != "vllm-v0"])
def test_clients_that_give_up_are_counted_and_in_no_latency(preset: str) -> None:
    knobs = {"max_concurrent_requests": 500, "max_tokens_default": 128} if preset.startswith("tgi") else {}
    patient = simulate(burst(), deployment(preset, knobs))
    timeout_s = float(np.median(patient.e2e_s))
    result = simulate(burst(), deployment(preset, knobs, client_timeout_s=timeout_s))
    assert 0 < result.rejected["client_timeout"] < 200
    counts_add_up(result)
    assert result.e2e_s.max() <= timeout_s
    assert result.requests.arrival_ps.tolist() == [0] * 200
    served = result.requests.status == 0
    wasted = result.itl.weight.sum() > (result.requests.output_tokens[served] - 1).sum()
    assert any("clients that gave up" in note for note in result.notes) or not wasted
    assert result.itl.mean_s is not None
    assert result.itl.max_s is not None
    assert result.itl.mean_s <= result.itl.max_s


def test_in_a_closed_loop_clients_that_give_up_go_on() -> None:
    workload = sessions(n=100, rate_rps=500.0, span_s=1.0)
    result = simulate(workload, deployment(knobs={"max_num_seqs": 4}, client_timeout_s=1.0))
    assert result.rejected["client_timeout"] > 10
    chains_hold(workload, result, timeout_s=1.0)
    counts_add_up(result)


def test_a_timeout_that_no_request_survives_is_refused() -> None:
    overhead_s = deployment().step_time.request_overhead_ps / PS
    with pytest.raises(SpecError, match="until the engine sees it: set client_timeout_s") as refusal:
        deployment(client_timeout_s=overhead_s)
    assert refusal.value.errors[0].field == "deployment.client_timeout_s"
    assert deployment(client_timeout_s=2 * overhead_s).spec.client_timeout_s == 2 * overhead_s


@pytest.mark.parametrize("preset", PRESETS)
def test_the_work_of_a_lost_replica_is_done_by_the_others(preset: str) -> None:
    failures = [{"replica": 1, "at_s": 10.05, "back_after_s": 5.0}]
    result = simulate(steady(), deployment(preset, replicas=2, failures=failures))
    table = result.requests
    assert result.finished == 300
    counts_add_up(result)
    admitted = table.admitted_ps[table.replica == 1] / PS
    assert not ((admitted >= 10.05) & (admitted < 15.05)).any()
    assert (admitted > 15.05).any()
    assert any("sent again" in note for note in result.notes)
    undisturbed = simulate(steady(), deployment(preset, replicas=2))
    assert result.e2e_s.max() > undisturbed.e2e_s.max()


def test_replicas_that_start_late_get_nothing_before() -> None:
    cold = [{"replica": 0, "ready_after_s": 4.0}, {"replica": 1, "ready_after_s": 8.0}]
    result = simulate(steady(), deployment(replicas=2, cold_starts=cold))
    table = result.requests
    assert table.admitted_ps.min() >= 4 * PS
    assert table.admitted_ps[table.replica == 1].min() >= 8 * PS
    assert result.ttft_s[0] > 4.0
    assert result.finished == 300


def test_without_a_replica_that_comes_back_requests_stay_unserved() -> None:
    workload = sessions()
    result = simulate(workload, deployment(failures=[{"replica": 0, "at_s": 5.0}]))
    assert result.rejected["no_replica"] > 50
    counts_add_up(result)
    unsent = result.requests.arrival_ps < 0
    assert unsent.any()
    assert (result.requests.status[unsent] == STATUSES.index("no_replica")).all()
    assert build_timeline(result).arrived.sum() == workload.n - unsent.sum()
    assert result.value(parse_objective("e2e<=1s@99%")) is None


@pytest.mark.parametrize(
    ("preset", "knobs", "more", "closed", "says"),
    [
        ("static", {}, {}, True, "closed loop"),
        ("static", {}, {"client_timeout_s": 5}, False, "client_timeout_s"),
        ("static", {}, {"failures": [{"replica": 0, "at_s": 1}]}, False, "failures"),
        ("static", {}, {"cold_starts": [{"replica": 0, "ready_after_s": 1}]}, False, "cold_starts"),
        ("vllm-v0", {}, {"client_timeout_s": 5}, False, "V0 scheduler"),
        ("vllm-0.33", {"scheduling_policy": "sjf", "ageing_per_s": 1.0}, {}, True, "ageing_per_s"),
    ],
)
def test_what_is_not_replayed_is_refused(preset: str, knobs: dict, more: dict, closed: bool, says: str) -> None:
    with pytest.raises(SpecError, match=says) as refusal:
        simulate(sessions() if closed else steady(), deployment(preset, knobs, **more))
    assert refusal.value.code == "deployment.not_replayed"
    assert refusal.value.errors[0].cure


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {"failures": [{"replica": 2, "at_s": 1}]},
            "replica 2 does not exist: the deployment has 2, counted from 0 to 1",
        ),
        ({"cold_starts": [{"replica": 5, "ready_after_s": 1}]}, "replica 5 does not exist"),
        (
            {"failures": [{"replica": 0, "at_s": 1, "back_after_s": 9}, {"replica": 0, "at_s": 5}]},
            "replica 0 is lost at 5 s, but it is down from 1 s until 10 s",
        ),
        (
            {"failures": [{"replica": 0, "at_s": 5}, {"replica": 0, "at_s": 7}]},
            "replica 0 is lost at 7 s, but it is down from 5 s and does not come back",
        ),
        (
            {"failures": [{"replica": 1, "at_s": 5}], "cold_starts": [{"replica": 1, "ready_after_s": 60}]},
            "replica 1 is lost at 5 s, but it is down from 0 s until 60 s",
        ),
    ],
)
def test_impossible_failures_are_refused(more: dict, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        DeploymentSpec.model_validate({"model": MODEL, "gpu": GPU, "replicas": 2} | more)


@pytest.mark.parametrize("preset", ["vllm-0.11", "sglang", "trtllm"])
@pytest.mark.parametrize(
    "life", [{"client_timeout_s": 0.5}, {"failures": [{"replica": 0, "at_s": 3.0}], "router": "least_outstanding"}]
)
def test_steps_for_clients_that_are_gone_keep_no_replica_busier_than_always(preset: str, life: dict) -> None:
    knobs = {"disable_radix_cache": True} if preset == "sglang" else {}
    result = simulate(burst(prompt=4000), deployment(preset, knobs, **life))
    assert sum(result.rejected.values()) > 50
    assert 0.5 < result.busy_fraction <= 1.0
