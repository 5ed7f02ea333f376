"""Closed loops of a trace as a workload: chains stay whole in windows and growth, and nothing is lost in silence."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from replay.closed_loop import ClosedLoop, CycleError, unroll
from replay.errors import TraceError
from replay.specs import Transform
from replay.traces.transforms import load_workload
from replay.workload import Workload

MS = 10**9
S = 10**12


def turn(session: str, prompt: int, *, at_ms: int | None = None, delay_ms: float | None = None) -> dict:
    row = {"session_id": session, "input_length": prompt, "output_length": 2}
    return row | ({"timestamp": at_ms} if at_ms is not None else {"delay": delay_ms})


def jsonl(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def mixed() -> list[dict]:
    """Sessions a (three turns, from 0 s), b (two turns, from 10 s) and the lone c at 20 s; turns are told apart by
    their prompts."""
    return [
        turn("a", 10, at_ms=0),
        turn("b", 20, at_ms=10_000),
        turn("a", 11, delay_ms=1500),
        turn("c", 30, at_ms=20_000),
        turn("b", 21, delay_ms=500),
        turn("a", 12, delay_ms=0),
    ]


def followed(workload: Workload) -> dict[int, tuple[int, int]]:
    """By prompt: the prompt of the request before, and the delay."""
    loop = workload.closed_loop
    assert loop is not None
    assert (loop.after < np.arange(workload.n)).all()
    prompt = workload.prompt_tokens.tolist()
    pairs = zip(prompt, loop.after.tolist(), loop.delay_ps.tolist(), strict=True)
    return {p: (prompt[after], delay) for p, after, delay in pairs if after >= 0}


def test_followers_are_in_the_workload_at_their_earliest_time(lab) -> None:
    report = lab.read(jsonl(mixed()))
    assert any("start only when another has ended" in text for text in report.warnings)
    workload = load_workload(lab.out, Transform(), 0)
    assert workload.prompt_tokens.tolist() == [10, 11, 12, 20, 21, 30]
    assert workload.arrival_ps.tolist() == [0, 1500 * MS, 1500 * MS, 10 * S, 10_500 * MS, 20 * S]
    assert followed(workload) == {11: (10, 1500 * MS), 12: (11, 0), 21: (20, 500 * MS)}
    assert (workload.excluded, workload.span_s) == ({}, 20.0)
    assert "3 of 6 requests are sent only when the one before has ended" in workload.notes[0]


def test_a_chain_belongs_to_the_window_of_its_first_request(lab) -> None:
    lab.read(jsonl(mixed()))
    workload = load_workload(lab.out, Transform(window_start_s=5, window_end_s=10.2), 0)
    assert workload.prompt_tokens.tolist() == [20, 21]
    assert workload.excluded == {"outside_window": 4}
    assert followed(workload) == {21: (20, 500 * MS)}


def test_growth_copies_whole_chains(lab) -> None:
    lab.read(jsonl(mixed()))
    base = load_workload(lab.out, Transform(), 0)
    for growth in (2.0, 2.5, 7.3):
        grown = load_workload(lab.out, Transform(growth=growth), 3)
        loop = grown.closed_loop
        assert loop is not None
        chain = unroll(loop.after, loop.delay_ps)
        assert (loop.after < np.arange(grown.n)).all()
        for head in np.flatnonzero(loop.after < 0):
            members = grown.prompt_tokens[chain.root == head].tolist()
            assert members in ([10, 11, 12], [20, 21], [30])
        assert np.array_equal(grown.arrival_ps, grown.arrival_ps[chain.root] + chain.offset)
        whole = int(growth)
        assert whole * base.n <= grown.n <= (whole + 1) * base.n
        assert "go with the first of their session" in " ".join(grown.notes)


def test_thinning_keeps_whole_chains(lab) -> None:
    pairs = [[turn(f"s{i}", 10 + i, at_ms=i * 1000), turn(f"s{i}", 1000 + i, delay_ms=5)] for i in range(200)]
    lab.read(jsonl([row for pair in pairs for row in pair]))
    thin = load_workload(lab.out, Transform(growth=0.4), 1)
    heads, followers = thin.prompt_tokens[thin.prompt_tokens < 1000], thin.prompt_tokens[thin.prompt_tokens >= 1000]
    assert sorted(heads - 10) == sorted(followers - 1000)
    assert 50 < len(heads) < 110
    assert all(after == prompt - 990 for prompt, (after, _) in followed(thin).items())


def canonical(lab, rows: list[tuple[int | None, int | None, int | None, int | None]]) -> None:
    """Canonical rows (arrival s, output tokens, after line, delay s) of lines 1, 2, ..."""
    lab.read("arrival_s,prompt_tokens,output_tokens\n0,1,1\n")
    kept = lab.table
    frame = pl.DataFrame(rows, schema=["arrival_ns", "output_tokens", "after_line", "delay_ns"], orient="row").cast(
        pl.Int64
    )
    lines = pl.Series("source_line", range(1, len(rows) + 1), dtype=pl.Int64)
    made = frame.with_columns(
        pl.col("arrival_ns") * 10**9, pl.col("delay_ns") * 10**9, lines, prompt_tokens=lines, status=pl.lit("ok")
    )
    meta = {key: value for key, value in pl.read_parquet_metadata(lab.out).items() if key.startswith("capreplay.")}
    made = made.select(name for name in kept.columns if name in made.columns).sort("arrival_ns", nulls_last=True)
    made.write_parquet(lab.out, metadata=meta)


def test_what_follows_a_request_without_lengths_follows_the_one_before_it(lab) -> None:
    canonical(lab, [(0, 5, None, None), (None, None, 1, 2), (None, 5, 2, 3), (4, None, None, None), (None, 5, 4, 6)])
    workload = load_workload(lab.out, Transform(max_excluded_share=0.5), 0)
    assert workload.prompt_tokens.tolist() == [1, 3, 5]
    assert workload.arrival_ps.tolist() == [0, 5 * S, 10 * S]
    assert workload.excluded == {"no_output_tokens": 2}
    assert followed(workload) == {3: (1, 5 * S)}  # 5 is open now, 6 s after the arrival of 4


def test_a_follower_with_an_arrival_follows_where_the_pause_is_known(lab) -> None:
    """Line 3 has no pause, and line 4 follows what the trace lacks: they keep their own arrivals."""
    canonical(lab, [(0, 5, None, None), (7, 5, 1, 2), (9, 5, 1, None), (11, 5, 99, 1)])
    workload = load_workload(lab.out, Transform(), 0)
    assert workload.arrival_ps.tolist() == [0, 2 * S, 9 * S, 11 * S]
    assert followed(workload) == {2: (1, 2 * S)}


def test_followers_of_requests_that_the_trace_lacks_are_counted(lab) -> None:
    canonical(lab, [(0, 5, None, None), (None, 5, 99, 1), (None, 5, 2, 1), (None, 5, None, 1)])
    with pytest.raises(TraceError, match=r"75\.0% .*3 start only when another request has ended, which the trace does"):
        load_workload(lab.out, Transform(), 0)
    workload = load_workload(lab.out, Transform(max_excluded_share=0.8), 0)
    assert (workload.n, workload.excluded, workload.closed_loop) == (1, {"predecessor_missing": 3}, None)


def test_requests_that_wait_for_each_other_are_refused(lab) -> None:
    canonical(lab, [(0, 5, None, None), (None, 5, 3, 1), (None, 5, 2, 1)])
    with pytest.raises(TraceError, match="the request of line 2 waits for requests that wait for it") as refusal:
        load_workload(lab.out, Transform(), 0)
    assert refusal.value.code == "workload.cycle"


def test_delays_beyond_what_can_be_counted_are_refused(lab) -> None:
    canonical(lab, [(0, 5, None, None), (None, 5, 1, 86_400 * 91)])
    with pytest.raises(TraceError, match=r"by their delays alone .* 91\.0 days") as refusal:
        load_workload(lab.out, Transform(), 0)
    assert refusal.value.code == "workload.too_long"


# --- chains as arrays ---


def naive_chain(after: list[int], delay: list[int], i: int) -> tuple[int, int, int]:
    offset = depth = 0
    while after[i] >= 0:
        offset, depth, i = offset + delay[i], depth + 1, after[i]
    return i, offset, depth


def test_unrolling_equals_walking() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        n = int(rng.integers(1, 40))
        after = np.array([int(rng.integers(-1, i)) if i else -1 for i in range(n)], np.int64)
        shuffled = rng.permutation(n)  # any order will do
        place = np.argsort(shuffled)
        moved = np.where(after[shuffled] >= 0, place[after[shuffled]], -1)
        delay = rng.integers(0, 9, n)
        chain = unroll(moved, delay)
        for i in range(n):
            assert (chain.root[i], chain.offset[i], chain.depth[i]) == naive_chain(moved.tolist(), delay.tolist(), i)


@pytest.mark.parametrize("after", [[0], [1, 0], [-1, 2, 3, 1], [1, 2, 3, 4, 2]])
def test_cycles_are_found(after: list[int]) -> None:
    with pytest.raises(CycleError):
        unroll(np.array(after), np.zeros(len(after), np.int64))


def test_leaving_requests_out_keeps_the_times_of_the_rest() -> None:
    rng = np.random.default_rng(6)
    for _ in range(200):
        n = int(rng.integers(1, 30))
        after = np.array([int(rng.integers(-1, i)) if i else -1 for i in range(n)], np.int64)
        delay = np.where(after >= 0, rng.integers(0, 9, n), 0)
        start = unroll(after, delay).offset
        keep = rng.random(n) < 0.6
        left = ClosedLoop(after, delay).only(keep, start)
        kept = np.flatnonzero(keep)
        chain = unroll(left.after, left.delay_ps)
        assert np.array_equal(start[keep], start[kept[chain.root]] + chain.offset)
