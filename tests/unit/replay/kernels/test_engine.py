"""The general loop against recordings of the real scheduler, a naive twin, and what must always hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import cases, config, law_of, linear_law, random_case, requests, run_general, run_twin
from naive.vllm import Config, Engine, Request, from_case
from recorders.cases import digest

from replay.kernels.state import (
    FREE_BLOCKS,
    GAP_MAX_PS,
    LEAST_OUTSTANDING,
    MAX_USED_BLOCKS,
    NEVER,
    PREEMPTIONS,
    PREVIOUS_END,
    SCHEDULED_TOKENS,
    STEPS,
)
from replay.verify import read_cases, replay_case, verify

DATA = Path(__file__).parents[3] / "data"
CASES = DATA / "vllm-0.33.0-scheduler-cases.json"
OF_0_8 = ("fcfs", "thr", "model_len", "prefix", "prefix_thr")
OF_0_11 = ("unchunked", "unchunked_prefix", "priority", "priority_thr", "prefix_priority")
ASYNCHRONOUS = ("async", "async_prefix", "async_thr")
OLDER = {"0.8.5": OF_0_8, "0.11.0": (*OF_0_8, *OF_0_11, *ASYNCHRONOUS)}
"""Releases recorded by ``tests/recorders/vllm_v1.py``, and their modes."""
MODES = (
    "fcfs",
    "chunk_only",
    "thr",
    "watermark",
    "unchunked",
    "priority",
    "priority_thr_chunk_only",
    "prefix",
    "prefix_priority",
    "async",
    "async_prefix",
    "async_priority_thr",
)


def test_every_recorded_case_matches() -> None:
    modes = verify(CASES)["modes"]
    assert set(modes) == set(MODES)
    for mode, result in modes.items():
        assert result["first_difference"] is None, f"{mode}: {result['first_difference']}"
        assert result["passed"] == result["total"] == 15


@pytest.mark.parametrize("release", OLDER)
def test_every_case_of_an_older_release_matches(release: str) -> None:
    modes = verify(DATA / f"vllm-{release}-scheduler-cases.json")["modes"]
    assert tuple(modes) == OLDER[release]
    for mode, result in modes.items():
        assert result["first_difference"] is None, f"{mode}: {result['first_difference']}"
        assert result["passed"] == result["total"] == 12


@pytest.mark.parametrize("release", OLDER)
def test_the_twin_takes_every_step_of_an_older_release(release: str) -> None:
    for case in read_cases(DATA / f"vllm-{release}-scheduler-cases.json"):
        settings, rows = from_case(case)
        twin = Logged(settings, rows)
        twin.run()
        assert digest(twin.log) == case["log"], case["mode"]
        assert (twin.steps, twin.end, twin.scheduled) == (case["steps"], case["end"], case["scheduled"])
        assert [(r.first, r.last, r.preemptions) for r in rows] == list(
            zip(case["first"], case["last"], case["preemptions"], strict=True)
        )
        assert twin.hits == case["hits"] or not case["caching"]


class Logged(Engine):
    """A twin that keeps what each step held, as a recording does."""

    def __init__(self, settings: Config, rows: list[Request]) -> None:
        super().__init__(settings, rows)
        self.log: list[Any] = []

    def schedule(self, now: int) -> list[tuple[Request, int, int]]:
        batch = super().schedule(now)
        if batch:
            self.log.append([len(self.pool.free), sorted([r.index, q] for r, q, _ in batch)])
        return batch


def test_verify_reports_the_first_difference(tmp_path: Path) -> None:
    case = json.loads(CASES.read_text())[0]
    case["last"][3] += 1
    altered = tmp_path / "cases.json"
    altered.write_text(json.dumps([case]))
    mode = verify(altered)["modes"]["fcfs"]
    assert mode["passed"] == 0
    assert mode["first_difference"] == f"case 0: last[3]: {case['last'][3] - 1} here, {case['last'][3]} recorded"


def test_the_twin_matches_every_recorded_case() -> None:
    for case in json.loads(CASES.read_text()):
        settings, rows = from_case(case)
        twin = Engine(settings, rows)
        twin.run()
        assert (twin.steps, twin.end, twin.scheduled) == (case["steps"], case["end"], case["scheduled"])
        assert [r.first for r in rows] == case["first"]
        assert [r.last for r in rows] == case["last"]
        assert [r.preemptions for r in rows] == case["preemptions"]


@pytest.mark.parametrize("kind", ["plain", "threshold", "priority", "both", "past the end", "victims stay"])
def test_general_loop_is_the_twin(kind: str) -> None:
    rng = np.random.default_rng(sum(map(ord, kind)))
    for _ in range(cases(150)):
        by_priority = kind in ("priority", "both", "victims stay")
        c, r, cost = random_case(rng, threshold=kind not in ("plain", "priority"), priority=by_priority)
        if kind == "past the end":
            c = c._replace(runs_past_end=int(c.batches_in_flight == 2))
        elif kind == "victims stay":
            c = c._replace(victims_stay=1, batches_in_flight=1)
        outcome, meters = run_general(c, r, law_of(c, cost))
        twin = run_twin(c, r, cost)
        reg = meters.regs[0]
        assert outcome.first_ps.tolist() == [x.first for x in twin.requests]
        assert outcome.last_ps.tolist() == [x.last for x in twin.requests]
        assert outcome.admitted_ps.tolist() == [x.admitted for x in twin.requests]
        assert outcome.preemptions.tolist() == [x.preemptions for x in twin.requests]
        assert (reg[STEPS], reg[SCHEDULED_TOKENS], reg[PREVIOUS_END]) == (twin.steps, twin.scheduled, twin.end)
        assert int(meters.gaps.sum()) == len(twin.gaps)
        assert int(meters.cluster[GAP_MAX_PS]) == max(twin.gaps, default=0)


def test_prefix_hits_of_the_twin_in_every_caching_case() -> None:
    for case in json.loads(CASES.read_text()):
        if case["caching"]:
            settings, rows = from_case(case)
            twin = Engine(settings, rows)
            twin.run()
            assert twin.hits == case["hits"]
            assert replay_case(case)[0]["hits"] == case["hits"]


def test_how_a_run_is_cut_into_calls_changes_nothing() -> None:
    rng = np.random.default_rng(5)
    for _ in range(cases(60)):
        c, r, cost = random_case(rng, threshold=True)
        whole, whole_meters = run_general(c, r, law_of(c, cost))
        cut, cut_meters = run_general(c, r, law_of(c, cost), events_a_call=int(rng.integers(1, 9)))
        for one, other in zip(whole, cut, strict=True):
            assert np.array_equal(one, other)
        for one, other in zip(whole_meters, cut_meters, strict=True):
            assert np.array_equal(one, other)


def test_what_always_holds() -> None:
    rng = np.random.default_rng(6)
    for _ in range(cases(150)):
        c, r, cost = random_case(rng)
        outcome, meters = run_general(c, r, law_of(c, cost))
        reg = meters.regs[0]
        assert reg[FREE_BLOCKS] == c.num_blocks, "every block comes back"
        assert reg[MAX_USED_BLOCKS] <= c.num_blocks
        assert (outcome.generated == r.output_tokens).all(), "every token comes out"
        assert (r.arrival_ps <= outcome.admitted_ps).all()
        assert (outcome.admitted_ps <= outcome.first_ps).all()
        assert (outcome.first_ps <= outcome.last_ps).all()
        assert int(meters.gaps.sum()) == int((r.output_tokens - 1).sum())
        if reg[PREEMPTIONS] == 0:
            assert reg[SCHEDULED_TOKENS] == (r.prompt_tokens + r.output_tokens - 1).sum(), "each token computed once"
            assert (np.diff(outcome.admitted_ps) >= 0).all(), "first come first served"


def test_one_request_on_an_idle_engine_is_the_closed_form() -> None:
    c = config(max_num_batched_tokens=16)
    law = linear_law(16, floor=50, per_token=10, constant=3, context=7, pair=2)
    outcome, _ = run_general(c, requests([1000], [10], [4]), law)
    prefill = 100 + 3 + 2 * (10 * 11)
    decodes = [50 + 3 + 7 * (10 + j) for j in (1, 2, 3)]
    assert outcome.first_ps[0] == 1000 + prefill
    assert outcome.last_ps[0] == 1000 + prefill + sum(decodes)


def test_a_prompt_over_the_budget_takes_the_least_number_of_chunks() -> None:
    c = config(max_num_batched_tokens=16)
    law = linear_law(16, constant=10, pair=1)
    outcome, meters = run_general(c, requests([0], [50], [1]), law)
    assert meters.regs[0, STEPS] == 4
    assert outcome.first_ps[0] == 4 * 10 + 50 * 51, "pairs do not depend on the chunks"


def test_unchunked_stops_at_a_prompt_over_the_budget_or_passes_over_it() -> None:
    """0.11 tries those behind it, and puts the passed over back in reverse (its queue prepends them one by one)."""
    c = config(max_num_batched_tokens=10, enable_chunked_prefill=0)
    r, law = requests([0] * 4, [8, 9, 7, 2], [1] * 4), linear_law(10, constant=10)
    stops, _ = run_general(c, r, law)
    assert stops.first_ps.tolist() == [10, 20, 30, 30]
    looks, _ = run_general(c._replace(unchunked_looks_further=1), r, law)
    assert looks.first_ps.tolist() == [10, 30, 20, 10]


def test_output_ends_at_max_model_len() -> None:
    c = config(max_model_len=12)
    outcome, _ = run_general(c, requests([0], [8], [50]), linear_law(16, constant=10))
    assert outcome.generated[0] == 4
    assert outcome.last_ps[0] == 40


def test_what_can_never_be_admitted_ends_the_run_unfinished() -> None:
    c = config(num_blocks=2)
    outcome, _ = run_general(c, requests([0, 5], [50, 4], [1, 1]), linear_law(16, constant=10))
    assert outcome.last_ps[0] == NEVER


def test_doubling_all_times_doubles_all_latencies() -> None:
    rng = np.random.default_rng(7)
    for _ in range(cases(40)):
        c, r, cost = random_case(rng)
        once, _ = run_general(c, r, law_of(c, cost))
        twice_cost = tuple(2 * x for x in cost)
        twice, _ = run_general(c, r._replace(arrival_ps=2 * r.arrival_ps), law_of(c, twice_cost))
        assert np.array_equal(2 * once.last_ps, twice.last_ps)
        assert np.array_equal(once.preemptions, twice.preemptions)


def test_round_robin_replicas_are_independent() -> None:
    rng = np.random.default_rng(8)
    for _ in range(cases(40)):
        c, r, cost = random_case(rng)
        coupled, _ = run_general(c._replace(replicas=3), r, law_of(c, cost))
        assert coupled.replica.tolist() == [i % 3 for i in range(len(r.arrival_ps))]
        for k in range(3):
            share = r._replace(
                **{f: getattr(r, f)[k::3].copy() for f in ("arrival_ps", "prompt_tokens", "output_tokens")}
            )
            if len(share.arrival_ps):
                alone, _ = run_general(c, share, law_of(c, cost))
                assert np.array_equal(alone.last_ps, coupled.last_ps[k::3])


def test_least_outstanding_sends_to_no_busier_replica() -> None:
    c = config(replicas=3, router=LEAST_OUTSTANDING, max_num_seqs=2)
    rng = np.random.default_rng(9)
    n = 200
    arrival = np.sort(rng.integers(0, 40_000, n)).tolist()
    r = requests(arrival, rng.integers(1, 30, n).tolist(), rng.integers(1, 30, n).tolist())
    outcome, _ = run_general(c, r, linear_law(16, constant=10, per_token=5))
    for i in range(n):
        before = np.arange(n) < i
        out = [(before & (outcome.replica == k) & (outcome.last_ps > arrival[i])).sum() for k in range(3)]
        assert out[outcome.replica[i]] == min(out)
