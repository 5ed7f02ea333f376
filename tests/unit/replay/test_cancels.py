"""Clients that leave at times of their own through ``simulate``: statuses, times, followers, objectives, plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from planning_doubles import make_result

from replay.closed_loop import ClosedLoop
from replay.deployment import Deployment, resolve_deployment
from replay.errors import SpecError
from replay.goodput import attained, goodput
from replay.hardware.catalogue import shipped_catalogue
from replay.planning.figures import curve_point
from replay.planning.idle import idle_value_s
from replay.results import STATUSES, ReplayResult
from replay.simulate import simulate
from replay.specs import DeploymentSpec, parse_objective
from replay.splits import split
from replay.workload import STAYS, Labels, Leaves, Workload

MODEL, GPU = "meta-llama/Llama-3.1-8B-Instruct", "H100-SXM"
PS = 10**12
CANCELLED, TIMEOUT = STATUSES.index("cancelled"), STATUSES.index("client_timeout")


def deployment(preset: str = "vllm-0.33", knobs: dict | None = None, **more: object) -> Deployment:
    catalogue = shipped_catalogue()
    fields = {"model": MODEL, "gpu": GPU, "engine": {"preset": preset, "overrides": knobs or {}}}
    spec = DeploymentSpec.model_validate(fields | more)
    return resolve_deployment(spec, catalogue.model(MODEL), catalogue.gpu(GPU))


def load(after_s: object = np.inf, *, cancelled: object = True, n: int = 60, output: int = 100) -> Workload:
    """``n`` requests, 20 a second; ``after_s`` and ``cancelled`` of one or of each."""
    seconds = np.broadcast_to(np.asarray(after_s, dtype=np.float64), n)
    finite = np.where(np.isfinite(seconds), seconds, 0.0)
    after = np.where(np.isfinite(seconds), np.rint(finite * PS).astype(np.int64), STAYS)
    leaves = Leaves(after, np.broadcast_to(np.asarray(cancelled, dtype=np.bool_), n).copy())
    arrival = np.arange(n, dtype=np.int64) * (PS // 20)
    return Workload(arrival, np.full(n, 500), np.full(n, output), n / 20, leaves=leaves)


def same(one: ReplayResult, other: ReplayResult) -> None:
    for name, values in vars(one.requests).items():
        if isinstance(values, np.ndarray):
            assert np.array_equal(values, getattr(other.requests, name)), name
    assert (one.rejected, one.finished, one.steps) == (other.rejected, other.finished, other.steps)
    assert np.array_equal(one.itl.weight, other.itl.weight)


@pytest.mark.parametrize("preset", ["vllm-0.33", "tgi-v3", "trtllm"])
def test_clients_that_leave_do_so_at_their_own_time(preset: str) -> None:
    knobs = {"max_concurrent_requests": 500, "max_tokens_default": 128} if preset.startswith("tgi") else {}
    patient = simulate(load(), deployment(preset, knobs))
    assert (patient.finished, patient.cancelled) == (60, 0)
    after_s = np.where(np.arange(60) % 3 == 0, 0.05 + 0.01 * np.arange(60), np.inf)
    result = simulate(load(after_s), deployment(preset, knobs))
    table = result.requests
    left = table.status == CANCELLED
    longer = patient.e2e_s > after_s
    assert left.tolist() == longer.tolist(), "an idle server: who leaves changes nobody's time by much"
    assert result.rejected == {}
    assert result.finished + result.cancelled == 60
    assert table.left_ps is not None
    assert (table.left_ps[left] == table.arrival_ps[left] + np.rint(after_s[left] * PS)).all()
    assert (table.left_ps[~left] == -1).all()
    assert (table.last_token_ps[left] == -1).all()
    told = left & (table.first_token_ps >= 0)
    assert told.any()
    assert (table.first_token_ps[told] <= table.left_ps[told]).all()
    note = next(note for note in result.notes if "cancelled" in note)
    assert note.startswith(f"{result.cancelled} clients left at the time that the trace gives")
    assert f"{int((left & ~told).sum())} of them before the first token; " in note
    tokens = int(note.split("first token; ")[1].split(" ")[0].replace(",", ""))
    assert int(told.sum()) <= tokens < 100 * result.cancelled
    gaps = result.itl.weight.sum() - (table.output_tokens[~left] - 1).sum()
    assert gaps == tokens - told.sum() or preset.startswith("tgi"), "TGI gives tokens in chunks"


@pytest.mark.parametrize("router", ["round_robin", "least_outstanding"])
def test_one_time_for_all_is_the_client_timeout(router: str) -> None:
    more = {"router": router, "replicas": 2}
    knobs = {"max_num_seqs": 2}
    by_log = simulate(load(1.0, cancelled=False), deployment(knobs=knobs, **more))
    by_spec = simulate(replace(load(), leaves=None), deployment(knobs=knobs, client_timeout_s=1.0, **more))
    assert by_spec.rejected["client_timeout"] > 10
    same(by_log, by_spec)


def test_whichever_comes_first_says_why() -> None:
    """Of one slot: who waits long leaves at 1 s by the log, or gives up at 2 s; at the same instant it has given up."""
    after_s = np.resize([1.0, 2.0, 3.0, np.inf], 60)
    result = simulate(load(after_s), deployment(knobs={"max_num_seqs": 1}, client_timeout_s=2.0))
    status = result.requests.status[20:]
    assert (status[after_s[20:] == 1.0] == CANCELLED).all()
    assert (status[after_s[20:] > 1.0] == TIMEOUT).all()
    assert result.requests.left_ps is not None
    waited = (result.requests.left_ps - result.requests.arrival_ps)[20:]
    assert (waited == np.where(after_s[20:] == 1.0, 1, 2) * PS).all()


def test_a_client_that_leaves_on_the_way_is_cancelled_as_its_request_comes() -> None:
    overhead_ps = deployment().step_time.request_overhead_ps
    assert overhead_ps > 1
    result = simulate(load(np.where(np.arange(60) == 7, 1 / PS, np.inf)), deployment())
    assert result.cancelled == 1
    assert result.requests.left_ps is not None
    assert result.requests.left_ps[7] - result.requests.arrival_ps[7] == overhead_ps + 1


def test_sessions_go_on_when_a_client_leaves() -> None:
    n = 40
    after = np.where(np.arange(n) < 20, -1, np.arange(n) - 20)
    delay = np.where(after >= 0, PS, 0)
    arrival = np.where(after >= 0, PS, 0).astype(np.int64)
    chain = ClosedLoop(after, delay)
    plain = Workload(arrival, np.full(n, 500), np.full(n, 200), 1.0, closed_loop=chain)
    leaves = Leaves(np.where(np.arange(n) < 10, PS // 2, STAYS), np.ones(n, np.bool_))
    result = simulate(replace(plain, leaves=leaves), deployment())
    table = result.requests
    assert result.cancelled == 10
    assert (table.arrival_ps[20:30] == PS // 2 + PS).all()
    assert (table.arrival_ps[30:] == table.last_token_ps[10:20] + PS).all()
    too_long = np.full(n, 500)
    too_long[20:30] = 10**6
    table = simulate(replace(plain, leaves=leaves, prompt_tokens=too_long), deployment()).requests
    assert (table.arrival_ps[20:30] == PS // 2 + PS).all(), "also where the follower itself cannot run"


def test_a_client_that_leaves_makes_room_for_others() -> None:
    crowd = load(np.where(np.arange(60) < 30, 0.2, np.inf), output=2000)
    one = deployment(knobs={"max_num_seqs": 8})
    patient = simulate(replace(crowd, leaves=None), one)
    result = simulate(crowd, one)
    assert result.cancelled == 30
    assert result.requests.first_token_ps[30:].max() < patient.requests.first_token_ps[30:].max() / 2


# --- objectives: 10 finished with a TTFT of 0.1 s; 2 cancelled, one with a first token, one that had waited 5 s ---


def judged() -> ReplayResult:
    arrival = np.arange(12) * PS
    made = make_result(Workload(arrival, np.full(12, 10), np.full(12, 5), 12.0), 1, load_factor=0.5, ttft_s=0.1)
    finished, told = np.arange(12) < 10, np.arange(12) < 11
    table = replace(
        made.requests,
        arrival_ps=arrival,
        admitted_ps=np.where(told, arrival + PS // 20, -1),
        first_token_ps=np.where(told, arrival + PS // 10, -1),
        last_token_ps=np.where(finished, arrival + PS, -1),
        output_tokens=np.full(12, 5),
        status=np.where(finished, 0, CANCELLED),
        left_ps=np.where(finished, -1, arrival + 5 * PS),
        tenant=Labels(np.repeat(np.arange(2, dtype=np.int32), 6), ("a", "b")),
    )
    ten = {name: getattr(made, name)[:10] for name in ("ttft_s", "e2e_s", "tpot_s", "queue_s")}
    return replace(made, requests=table, finished=10, **ten)


def test_a_cancelled_request_is_a_miss_only_where_it_had_waited_too_long() -> None:
    result = judged()
    assert result.cancelled == 2
    slow, quick = parse_objective("ttft<=6s@99%"), parse_objective("ttft<=1s@99%")
    assert (attained(result, slow), attained(result, quick)) == (1.0, 10 / 11)
    assert result.value(slow) == pytest.approx(0.1)
    assert result.value(quick) is None
    assert result.value(parse_objective("ttft_p99<=6s")) == pytest.approx(0.1)
    assert (result.value(parse_objective("ttft_p99<=1s")) or 0) > 1
    assert result.value(parse_objective("ttft_p50<=1s")) == pytest.approx(0.1)
    assert attained(result, parse_objective("tpot<=10s@99%")) == 1.0
    whole = parse_objective("e2e<=4s@50%")
    assert attained(result, whole) == 10 / 12, "both were open for 5 s"


def test_goodput_and_splits_leave_out_what_nobody_knows() -> None:
    result = judged()
    found = goodput(result, [parse_objective("ttft<=6s@99%")])
    assert found is not None
    assert (found.good, found.scored) == (10, 10)
    strict = goodput(result, [parse_objective("ttft<=1s@99%"), parse_objective("tpot<=1s@99%")])
    assert strict is not None
    assert (strict.good, strict.scored) == (10, 11)
    assert result.requests.tenant is not None
    groups = split(result, result.requests.tenant, [parse_objective("ttft<=1s@99%")])
    assert [(g.name, g.requests, g.finished, g.cancelled, g.good, g.counted) for g in groups] == [
        ("a", 6, 6, 0, 6, 6),
        ("b", 6, 4, 2, 4, 5),
    ]


def test_a_plan_passes_with_cancelled_requests_and_not_with_clients_that_gave_up() -> None:
    result = judged()
    how = {"requests": 12, "replica_gpus": 1, "usd_per_hour": None}
    point = curve_point(result, objectives=[parse_objective("ttft_p99<=6s")], **how)
    assert (point.passed, point.finished, point.cancelled) == (True, 10, 2)
    assert not curve_point(result, objectives=[parse_objective("ttft_p99<=1s")], **how).passed
    gave_up = replace(result, rejected={"client_timeout": 1})
    assert not curve_point(gave_up, objectives=[parse_objective("ttft_p99<=6s")], **how).passed


def test_no_objective_is_called_unreachable_for_answers_that_nobody_waits_for() -> None:
    workload, whole = load(0.5, output=20_000), parse_objective("e2e_p99<=1s")
    assert idle_value_s(whole, replace(workload, leaves=None), deployment()) > 1
    assert idle_value_s(whole, workload, deployment()) == 0


@pytest.mark.parametrize(
    ("preset", "more", "says", "cure"),
    [
        ("static", {}, "static batches", "cancels=as_logged, or use another engine preset"),
        ("vllm-v0", {}, "V0 scheduler", "cancels=as_logged, or use another engine preset"),
        (
            "vllm-0.33",
            {"disaggregation": {"prefill_replicas": 1, "decode_replicas": 1, "kv_transfer_gb_per_s": 50}},
            "prefill and decode apart",
            "cancels=as_logged",
        ),
    ],
)
def test_what_is_not_replayed_is_refused(preset: str, more: dict, says: str, cure: str) -> None:
    with pytest.raises(SpecError, match=says) as refusal:
        simulate(load(1.0), deployment(preset, **more))
    fault = refusal.value.errors[0]
    assert (refusal.value.code, fault.field) == ("deployment.not_replayed", "transform.cancels")
    assert fault.cure is not None
    assert fault.cure.endswith(cure)
