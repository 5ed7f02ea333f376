"""Arrivals moved at the same mean rate: counts, order and ticks are kept, and burstiness goes the way it says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.traces.arrivals import clock_step, dispersion, gap_cv, reshape_gaps, spread_ties
from replay.traces.growth import compress, shift_copies, superpose

NS = 10**9


def poisson(rate: float, span_s: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.sort(rng.integers(0, span_s * NS, rng.poisson(rate * span_s)))


def alone(times: np.ndarray) -> np.ndarray:
    return np.arange(len(times))


@given(
    st.lists(st.integers(0, 600 * NS), min_size=1, max_size=80),
    st.floats(0, 8),
    st.sampled_from([1, 7 * NS, 60 * NS, 10_000 * NS]),
)
@settings(max_examples=150, deadline=None)
def test_reshaped_gaps_keep_every_window_its_requests(seconds: list[int], power: float, width_ns: int) -> None:
    times = np.sort(np.array(seconds, np.int64))
    span_ns = 600 * NS
    if width_ns == 1:
        width_ns = NS
    moved = reshape_gaps(times, span_ns, power, width_ns)
    assert len(moved) == len(times)
    assert (np.diff(moved) >= 0).all()
    assert moved.min() >= 0
    assert moved.max() <= span_ns
    edges = np.arange(0, span_ns + width_ns, width_ns)
    inside = np.searchsorted(times, edges[1:-1])
    assert (
        moved[np.minimum(inside, len(moved) - 1)][inside < len(moved)] >= edges[1:-1][inside < len(moved)] - 2
    ).all()
    assert (moved[inside[inside > 0] - 1] <= edges[1:-1][inside > 0] + 2).all()


def test_power_one_moves_nothing_and_zero_makes_even_gaps() -> None:
    times = poisson(5, 100)
    assert np.abs(reshape_gaps(times, 100 * NS, 1.0, 60 * NS) - times).max() <= 1
    even = reshape_gaps(times, 100 * NS, 0.0, 1000 * NS)
    gaps = np.diff(even)
    assert gaps.max() - gaps.min() <= 1
    assert gaps[0] == pytest.approx(100 * NS / (len(times) + 1), abs=1)


def test_burstiness_grows_with_the_power_at_the_same_rate() -> None:
    times = poisson(5, 2000)
    span = 2000 * NS
    powers = (0.0, 0.3, 1.0, 1.7, 3.0)
    moved = [reshape_gaps(times, span, power, 60 * NS) for power in powers]
    cvs = [gap_cv(one) for one in moved]
    assert cvs == sorted(cvs)
    assert cvs[2] == pytest.approx(1.0, rel=0.05), "Poisson"
    spread = [dispersion(one, span) for one in moved]
    assert spread == sorted(spread)
    assert {np.bincount(one // (60 * NS), minlength=34)[:34].tobytes() for one in moved} == {
        np.bincount(times // (60 * NS), minlength=34)[:34].tobytes()
    }, "the rate curve by minutes stays"
    # Poisson gaps to the power p are Weibull with shape 1/p: CV^2 = G(1 + 2p) / G(1 + p)^2 - 1, so 5 at p = 2.
    whole = reshape_gaps(times, span, 2.0, span)
    assert gap_cv(whole) == pytest.approx(5**0.5, rel=0.1)


@pytest.mark.parametrize("how", ["even", "uniform"])
def test_ties_are_spread_within_their_tick(how: str) -> None:
    rng = np.random.default_rng(1)
    times = np.sort(rng.integers(0, 50, 400)) * 3 * NS
    assert clock_step(times) == 3 * NS
    spread = spread_ties(times, how, 3 * NS, 150 * NS, seed=4)
    assert (spread // (3 * NS) == times // (3 * NS)).all()
    assert (np.diff(spread) >= 0).all()
    assert dispersion(spread, 150 * NS) < 0.7 * dispersion(times, 150 * NS)
    assert (spread == spread_ties(times, how, 3 * NS, 150 * NS, seed=4)).all()
    cut = spread_ties(times, how, 3 * NS, int(times[-1]) + NS, seed=4)
    assert cut.max() < times[-1] + NS, "the window's end stays the end"


def test_the_clock_is_found_through_its_jitter_and_its_idle_ticks() -> None:
    rng = np.random.default_rng(2)
    ticks = np.repeat(np.arange(0, 900, 3) * 1000 + rng.integers(-1, 2, 300), 4) * 10**6
    assert clock_step(np.sort(ticks)) == np.diff(np.unique(ticks)).min()
    assert clock_step(np.sort(ticks)) > 2.99 * NS
    idle = np.sort(rng.choice(10_000, 40, replace=False)) * NS
    assert clock_step(idle) == NS, "few requests on a clock of seconds"
    sparse = np.sort(rng.choice(10**7, 200, replace=False)) * 10**6
    assert clock_step(np.repeat(sparse, 2)) == 10**6, "requests sent together on a clock of milliseconds stay together"
    assert clock_step(np.array([5, 5])) == 0


def test_even_spreading_is_exact() -> None:
    times = np.array([0, 0, 0, 3, 6, 6]) * NS
    assert spread_ties(times, "even", 3 * NS, 9 * NS, 0).tolist() == [
        0, NS, 2 * NS, 3 * NS, 6 * NS, 6 * NS + 3 * NS // 2,
    ]  # fmt: skip


def test_the_methods_of_growth_differ_in_burstiness() -> None:
    """Superposed copies multiply the index of dispersion, shifted ones leave it, compression reads wider bins."""
    span = 4000 * NS
    bursts = np.sort(np.concatenate([poisson(2, 4000), poisson(0.05, 4000, 2).repeat(20)]))
    factor = np.full(len(bursts), 4.0)
    before = dispersion(bursts, span, 10 * NS)
    assert before is not None
    assert before > 4
    together = superpose(bursts, alone(bursts), factor, "x", span, 0)
    apart = shift_copies(bursts, alone(bursts), factor, "x", span, 0, None)
    assert len(together.times_ns) == len(apart.times_ns) == 4 * len(bursts)
    assert dispersion(together.times_ns, span, 10 * NS) == pytest.approx(4 * before, rel=0.1)
    assert dispersion(apart.times_ns, span, 10 * NS) == pytest.approx(before, rel=0.1)
    fast, order, new_span, note = compress(bursts, alone(bursts), 4.0, span)
    assert (order == np.arange(len(bursts))).all()
    assert new_span == span // 4
    assert gap_cv(fast) == pytest.approx(gap_cv(bursts), rel=1e-6)
    assert dispersion(fast, new_span, 10 * NS) == pytest.approx(dispersion(bursts, span, 40 * NS), rel=1e-6)
    assert "time compression" in note
    thin = superpose(bursts, alone(bursts), np.full(len(bursts), 0.25), "x", span, 0)
    assert dispersion(thin.times_ns, span, 10 * NS) == pytest.approx(1 + (before - 1) / 4, rel=0.1)


@given(
    st.lists(st.tuples(st.integers(0, 900), st.floats(0.01, 4)), min_size=1, max_size=60),
    st.integers(0, 5),
    st.sampled_from([None, 0.5, 300.0]),
)
@settings(max_examples=100, deadline=None)
def test_copies_are_whole_and_stay_in_the_window(rows: list[tuple[int, float]], seed: int, most: float | None) -> None:
    rows.sort()
    times = np.array([t for t, _ in rows], np.int64) * NS
    factor = np.array([f for _, f in rows])
    span = 900 * NS
    for grown in (
        superpose(times, alone(times), factor, "x", span, seed),
        shift_copies(times, alone(times), factor, "x", span, seed, most),
    ):
        copies = np.bincount(grown.index, minlength=len(times))
        assert ((copies == np.floor(factor)) | (copies == np.floor(factor) + 1)).all()
        assert (np.diff(grown.times_ns) >= 0).all()
        if len(grown.times_ns):
            assert grown.times_ns.min() >= 0
            assert grown.times_ns.max() <= span
        first = grown.copy == 0
        assert (grown.times_ns[first] == times[grown.index[first]]).all(), "the first copy keeps its time"
        assert not grown.wrapped[first].any()
        pairs = set(zip(grown.index.tolist(), grown.copy.tolist(), strict=True))
        assert len(pairs) == len(grown.index), "no copy twice"


def test_chains_move_whole() -> None:
    times = np.array([0, 5, 20, 40, 45, 100]) * NS
    root = np.array([0, 0, 2, 0, 2, 5])
    gaps = {1: 5 * NS, 3: 40 * NS, 4: 25 * NS}
    for grown in (
        superpose(times, root, np.full(6, 2.5), "x", 100 * NS, 3),
        shift_copies(times, root, np.full(6, 2.5), "x", 100 * NS, 3, None),
    ):
        at = {(i, c): t for i, c, t in zip(grown.index, grown.copy, grown.times_ns, strict=True)}
        for (i, c), t in at.items():
            assert t - at[(root[i], c)] == gaps.get(i, 0)
        assert "go with the first of their session" in grown.note
    fast, order, _, _ = compress(times, root, 2.0, 100 * NS)
    by_row = dict(zip(order.tolist(), fast.tolist(), strict=True))
    assert [by_row[i] for i in range(6)] == [0, 5 * NS, 10 * NS, 40 * NS, 35 * NS, 50 * NS]


def test_a_share_of_a_large_load_is_drawn_as_expected() -> None:
    times = poisson(50, 400)
    for factor in (0.1, 0.5, 1.3, 2.75):
        grown = superpose(times, alone(times), np.full(len(times), factor), "x", 400 * NS, 7)
        assert len(grown.times_ns) == pytest.approx(factor * len(times), rel=0.03)
