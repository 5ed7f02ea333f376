"""The profile against plain definitions on the whole arrays, and the clock's warnings."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from replay.traces import canonical

NS = 10**9


def trace(times_s: list[float], *, start: datetime | None = None) -> str:
    if start is None:
        rows = [f"{t:.9f},{i % 900 + 1},{i % 90 + 1}" for i, t in enumerate(times_s)]
        return "arrival_s,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n"
    rows = [f"{(start + timedelta(seconds=t)).isoformat()},1,1" for t in times_s]
    return "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n"


@pytest.fixture
def bursty() -> list[float]:
    rng = np.random.default_rng(5)
    smooth = rng.uniform(0, 9_000, 4_000)
    bursts = (rng.uniform(0, 9_000, 40)[:, None] + rng.uniform(0, 0.8, (40, 30))).ravel()
    return [float(t) for t in np.sort(np.round(np.concatenate([smooth, bursts]), 3))]


def test_rates_and_burstiness_are_their_definitions(lab, bursty, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical.slices, "__defaults__", (canonical.COLUMNS, 700))  # many slices
    profile = lab.read(trace(bursty)).profile
    t = np.array(bursty) - bursty[0]
    ns = np.rint(t * NS).astype(np.int64)
    span = ns[-1] / NS
    assert profile.span_s == pytest.approx(span)
    assert profile.mean_rps == pytest.approx(len(t) / span)
    for width, value in ((1, profile.peak_rps_1s), (60, profile.peak_rps_1min), (3600, profile.peak_rps_1h)):
        naive = max(int(((ns >= a) & (ns < a + width * NS)).sum()) for a in ns)
        assert value == pytest.approx(naive / width)
    gaps = np.diff(ns) / NS
    assert profile.gap_cv == pytest.approx(gaps.std() / gaps.mean())
    for width, value in ((1, profile.dispersion_1s), (60, profile.dispersion_1min)):
        whole = int(ns[-1] // (width * NS))
        counts = np.bincount(ns // (width * NS), minlength=whole)[:whole]
        assert value == pytest.approx(counts.var() / counts.mean())


def test_lengths_are_numpy_percentiles(lab, bursty, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.traces.tally._DENSE", 500)  # both ways of counting
    lab.read(trace(bursty))
    profile = lab.read(trace(bursty)).profile.prompt_tokens
    values = lab.table["prompt_tokens"].to_numpy()
    expected = np.percentile(values, [50, 90, 95, 99])
    assert [profile.p50, profile.p90, profile.p95, profile.p99] == pytest.approx(expected.tolist())
    assert (profile.n, profile.total, profile.min, profile.max) == (
        len(values), values.sum(), values.min(), values.max(),
    )  # fmt: skip
    assert profile.mean == pytest.approx(values.mean())


def test_the_series_adds_up_and_has_at_most_300_bins(lab, bursty) -> None:
    report = lab.read(trace(bursty))
    bins = report.profile.series.bins
    assert len(bins) <= 300
    assert sum(b.requests for b in bins) == report.requests
    assert sum(b.prompt_tokens for b in bins) == report.prompt_tokens
    assert sum(b.output_tokens for b in bins) == report.output_tokens
    assert bins[-1].start_s <= report.span_s < bins[-1].start_s + report.profile.series.bin_s


@pytest.mark.parametrize("n", [1, 2, 3])
def test_tiny_traces_have_no_nonsense_figures(lab, n: int) -> None:
    profile = lab.read(trace([0.0] * n)).profile
    assert (profile.mean_rps, profile.peak_rps_1s, profile.gap_cv, profile.dispersion_1s) == (None, None, None, None)
    assert [b.requests for b in profile.series.bins] == [n]
    json.loads(profile.model_dump_json())


def test_the_heat_map_is_by_local_weekday_and_hour(lab) -> None:
    start = datetime(2024, 5, 12, 22, 30, tzinfo=UTC)  # a Sunday
    report = lab.read(trace([0, 3600, 7200], start=start))
    cells = {(c.weekday, c.hour): c.requests for c in report.profile.heat_map or [] if c.requests}
    assert cells == {(6, 22): 1, (6, 23): 1, (0, 0): 1}
    assert len(report.profile.heat_map or []) == 168


def test_relative_times_have_no_heat_map(lab) -> None:
    profile = lab.read(trace([0, 1])).profile
    assert (profile.heat_map, profile.start_utc) == (None, None)


def test_a_coarse_clock_is_named(lab) -> None:
    report = lab.read(trace([float(3 * (i // 10)) for i in range(200)]))
    assert report.cleaning.clock_resolution_s == 3.0
    assert report.cleaning.tied_requests == 180
    assert any("steps of 3 s" in warning for warning in report.warnings)


def test_a_hole_is_named_with_its_place(lab) -> None:
    report = lab.read(trace([float(i) for i in range(300)] + [1000.0 + i for i in range(300)]))
    assert (report.cleaning.largest_gap_s, report.cleaning.largest_gap_after_s) == (701.0, 299.0)
    assert any("701 s" in warning for warning in report.warnings)


def test_one_instant_is_named(lab) -> None:
    assert any("same instant" in warning for warning in lab.read(trace([5.0, 5.0])).warnings)


def test_prefix_reuse_counts_leading_blocks_only(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical.slices, "__defaults__", (canonical.COLUMNS, 2))
    chains = [[1, 2, 3], [1, 2, 9], [1, 2, 3, 4], [7, 2, 3], None, [1, 2, 3, 4]]
    rows = []
    for i, chain in enumerate(chains):
        n = len(chain or [1]) * 16 - 3
        rows.append({"arrival_s": i, "prompt_tokens": n, "output_tokens": 1, "prefix_blocks": chain})
    report = lab.read("".join(json.dumps(row) + "\n" for row in rows), block_size=16)
    prefix = report.profile.prefix
    assert prefix is not None
    assert (prefix.blocks, prefix.distinct_blocks, prefix.reused_blocks) == (17, 6, 0 + 2 + 3 + 0 + 4)
    assert prefix.requests_with_blocks == 5
    reused_tokens = 2 * 16 + 3 * 16 + (4 * 16 - 3)
    assert prefix.reusable_share_of_prompt_tokens == pytest.approx(reused_tokens / report.prompt_tokens)


def test_tenants_models_and_sessions(lab) -> None:
    rows = [
        {
            "arrival_s": i,
            "prompt_tokens": 1,
            "output_tokens": 1,
            "tenant": f"t{i % 3}",
            "session": f"s{i // 2}",
            "model": "m",
        }
        for i in range(7)
    ]
    profile = lab.read("".join(json.dumps(row) + "\n" for row in rows)).profile
    assert [(t.tenant, t.requests) for t in profile.top_tenants] == [("t0", 3), ("t1", 2), ("t2", 2)]
    assert (profile.tenants, profile.sessions, profile.models) == (3, 4, {"m": 7})


def test_lengths_together_and_reuse_by_cache_size(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical.slices, "__defaults__", (canonical.COLUMNS, 7))  # many slices
    rows = [
        {"arrival_s": i, "prompt_tokens": 32 + (i % 2), "output_tokens": 1 + i % 5, "prefix_blocks": [0, 1 + i % 4]}
        for i in range(40)
    ]
    for row in rows:
        if row["prompt_tokens"] == 33:
            row["prefix_blocks"].append(10 + rows.index(row))
    profile = lab.read("".join(json.dumps(row) + "\n" for row in rows), block_size=16).profile
    assert {(one.prompt_from, one.output_from): one.requests for one in profile.joint_lengths} == {
        (32, 1): 8, (32, 2): 16, (32, 4): 16,
    }  # fmt: skip
    assert profile.prefix is not None
    curve = profile.prefix.by_cache_size
    assert curve is not None
    shares = [one.reused_share_of_prompt_tokens for one in curve]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(profile.prefix.reusable_share_of_prompt_tokens), "all of it: an endless cache"
    assert curve[0].tokens == 39 * 16, "one block: the first of every prompt, used last"
