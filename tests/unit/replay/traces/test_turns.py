"""Sessions of a profile against plain loops: turns, gaps, think times, turns that overlap."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from replay.traces import canonical, turns
from replay.traces.canonical import Meta
from replay.traces.profile import measure
from replay.traces.report import TraceProfile

NS = 10**9


def rows(n: int = 900) -> list[tuple[float, str, float]]:
    """Arrival in s, session (empty: none) and E2E in s."""
    rng = np.random.default_rng(3)
    times = np.cumsum(rng.exponential(2.0, n)).round(3)
    names = rng.integers(0, 120, n)
    e2e = rng.exponential(40.0, n).round(3) + 0.001
    return [(float(t), f"s{name}" if name > 10 else "", float(e)) for t, name, e in zip(times, names, e2e, strict=True)]


def written(path: Path, made: list[tuple[float, str, float]], *, e2e: bool = True) -> Path:
    """A canonical file of these requests."""
    columns = {
        "arrival_ns": [round(t * NS) for t, _, _ in made],
        "prompt_tokens": [10] * len(made),
        "output_tokens": [5] * len(made),
        "session": [name or None for _, name, _ in made],
        "source_e2e_ns": [round(e * NS) if e2e else None for _, _, e in made],
        "source_line": list(range(len(made))),
    }
    frame = canonical.conform(pl.DataFrame(columns, strict=False))
    canonical.write(iter([frame]), path, Meta())
    return path


def profiled(path: Path) -> TraceProfile:
    span_ns = int(pl.read_parquet(path)["arrival_ns"].max())
    return measure(path, Meta(), span_ns, lambda _rows: None).profile


def naive(made: list[tuple[float, str, float]]) -> tuple[dict[str, int], list[float], list[float]]:
    """Turns by session, gaps, and think times (negative ones too)."""
    of: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for t, name, e in made:
        if name:
            of[name].append((t, e))
    gaps = [b[0] - a[0] for one in of.values() for a, b in pairwise(one)]
    thinks = [b[0] - a[0] - a[1] for one in of.values() for a, b in pairwise(one)]
    return {name: len(one) for name, one in of.items()}, gaps, thinks


@pytest.mark.parametrize("part_rows", [10**9, 100])
def test_sessions_are_profiled_as_a_loop_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_rows: int) -> None:
    monkeypatch.setattr(turns, "_PART_ROWS", part_rows)
    monkeypatch.setattr(canonical.slices, "__defaults__", (canonical.COLUMNS, 130))
    made = rows()
    sizes, gaps, thinks = naive(made)
    profile = profiled(written(tmp_path / "a", made))
    found = profile.session_profile
    assert profile.sessions == found.sessions == len(sizes)
    assert found.requests == sum(sizes.values()) < len(made)
    assert found.single_turn == sum(n == 1 for n in sizes.values())
    assert (found.turns.max, found.turns.p50) == (max(sizes.values()), np.median(list(sizes.values())))
    assert found.between_starts.n == len(gaps)
    assert found.between_starts.p90_s == pytest.approx(np.percentile(gaps, 90), rel=1e-3)
    positive = [one for one in thinks if one >= 0]
    assert (found.think_time.n, found.overlapping) == (len(positive), len(thinks) - len(positive))
    assert found.think_time.p50_s == pytest.approx(np.median(positive), rel=1e-3)


def test_without_measured_ends_there_is_no_think_time(tmp_path: Path) -> None:
    found = profiled(written(tmp_path / "a", rows(), e2e=False)).session_profile
    assert found.between_starts is not None
    assert (found.think_time, found.overlapping) == (None, 0)


def test_without_sessions_there_is_no_profile_of_them(lab, own_csv) -> None:
    profile = lab.read(own_csv()).profile
    assert (profile.sessions, profile.session_profile) == (0, None)


def test_what_the_source_measured_is_kept_by_percentile(tmp_path: Path) -> None:
    made = rows()
    found = profiled(written(tmp_path / "a", made))
    e2e = [e for _, _, e in made]
    assert found.source_ttft is None
    assert found.source_e2e.n == len(made)
    for q, value in ((50, found.source_e2e.p50_s), (90, found.source_e2e.p90_s), (99, found.source_e2e.p99_s)):
        assert value == pytest.approx(np.percentile(e2e, q), rel=1e-3)
    assert found.source_e2e.max_s == pytest.approx(max(e2e), rel=1e-3)


def test_a_delay_that_the_trace_gives_is_the_think_time(lab) -> None:
    turn = '{"timestamp": %d, "input_length": 100, "output_length": 10, "session_id": "a", "delay": %d}'
    first = '{"timestamp": 0, "input_length": 100, "output_length": 10, "session_id": "a"}'
    text = "\n".join([first, turn % (1000, 2500), turn % (9000, 4500)]) + "\n"
    found = lab.read(text).profile.session_profile
    assert found.turns.max == 3
    assert (found.think_time.n, found.think_time.max_s) == (2, pytest.approx(4.5, rel=1e-3))


def test_requests_longer_than_a_context_are_counted_exactly(lab) -> None:
    lengths = [(1000, 1048), (2000, 49), (4000, 96), (4000, 97), (100_000, 31_073), (5, 0)]
    rows = "".join(f"{i},{prompt},{output}\n" for i, (prompt, output) in enumerate(lengths))
    profile = lab.read("arrival_s,prompt_tokens,output_tokens\n" + rows).profile
    over = {one.max_model_len: one.requests for one in profile.over_length}
    assert (over[2048], over[4096], over[8192], over[131_072]) == (4, 2, 1, 1)
    assert (over[262_144], over[2048] / 5) == (0, next(o.share for o in profile.over_length if o.max_model_len == 2048))
    assert profile.longer_than(4096) == (2, 2)
    assert profile.longer_than(5000) == (1, 2), "between the lengths that were counted"
    assert profile.longer_than(100) == (4, 5)
    assert profile.longer_than(10**9) == (0, 0)


def test_reports_of_earlier_versions_are_read(lab, own_csv) -> None:
    stored = lab.read(own_csv()).profile.model_dump(mode="json")
    for name in ("source_ttft", "source_e2e", "source_queue", "session_profile", "over_length"):
        del stored[name]
    assert TraceProfile.model_validate({**stored, "source_e2e_p50_s": 1.0, "source_ttft_p50_s": None}).over_length == []
