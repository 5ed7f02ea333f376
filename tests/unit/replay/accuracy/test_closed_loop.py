"""A limit on requests under way replayed as seats: the same run as one whose arrivals are the sendings it says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from replay.accuracy.closed_loop import sent_ps, with_seats
from replay.deployment import Deployment, resolve_deployment
from replay.hardware.catalogue import shipped_catalogue
from replay.simulate import simulate
from replay.specs import DeploymentSpec
from replay.workload import Workload


def deployment(preset: str, replicas: int = 1, **knobs: object) -> Deployment:
    catalogue = shipped_catalogue()
    spec = DeploymentSpec.model_validate(
        {
            "model": "meta-llama/Llama-3.1-8B",
            "gpu": "H100-SXM",
            "replicas": replicas,
            "engine": {"preset": preset, "overrides": knobs},
        }
    )
    found = resolve_deployment(spec, catalogue.model(spec.model), catalogue.gpu(spec.gpu))
    # The client sends at the instant of an end: what lies before the engine would come on top of it.
    return replace(found, step_time=replace(found.step_time, request_overhead_ps=0))


def workload(n: int = 300, gap_s: float = 0.0) -> Workload:
    rng = np.random.default_rng(5)
    arrival = np.sort(rng.random(n) * n * gap_s)
    arrival -= arrival[0]
    return Workload((arrival * 1e12).astype(np.int64), rng.integers(1, 900, n), rng.integers(1, 200, n), 1.0)


@pytest.mark.parametrize("preset", ["vllm-0.33", "vllm-0.11"])
@pytest.mark.parametrize(("in_flight", "gap_s"), [(1, 0.0), (8, 0.0), (8, 0.05), (40, 0.01)])
def test_arrivals_at_the_sendings_give_the_same_run(preset: str, in_flight: int, gap_s: float) -> None:
    one, load = deployment(preset), workload(gap_s=gap_s)
    limited = simulate(load, with_seats(one, in_flight)).requests
    sent = sent_ps(load.arrival_ps, limited.last_token_ps, in_flight)
    assert (np.diff(sent) >= 0).all()
    again = simulate(replace(load, arrival_ps=sent), one).requests
    assert np.array_equal(again.first_token_ps, limited.first_token_ps)
    assert np.array_equal(again.last_token_ps, limited.last_token_ps)


def test_no_more_than_the_limit_are_ever_under_way() -> None:
    load = workload()
    table = simulate(load, with_seats(deployment("vllm-0.33"), 8)).requests
    sent = sent_ps(load.arrival_ps, table.last_token_ps, 8)
    under_way = [int(((sent <= at) & (table.last_token_ps > at)).sum()) for at in sent]
    assert max(under_way) == 8
    assert min(under_way[8:-8]) == 8  # and always as many, since all are waiting to be sent


def test_a_limit_above_the_engines_own_leaves_requests_waiting_there() -> None:
    one = deployment("vllm-0.33", max_num_seqs=4)
    load = workload(100)
    table = simulate(load, with_seats(one, 16)).requests
    sent = sent_ps(load.arrival_ps, table.last_token_ps, 16)
    assert (sent[:16] == 0).all()
    assert ((table.first_token_ps - sent)[20:] > 0).all()
    again = simulate(replace(load, arrival_ps=sent), one).requests
    assert np.array_equal(again.last_token_ps, table.last_token_ps)


def test_several_replicas_are_refused() -> None:
    with pytest.raises(ValueError, match="one replica"):
        with_seats(deployment("vllm-0.33", replicas=2), 8)
