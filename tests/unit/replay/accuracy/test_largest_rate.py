"""The largest rate within a limit: series, limits by rule, crossings, and a simulation that is too fast."""

from __future__ import annotations

import measured_runs as made
import pytest

from replay.accuracy.largest_rate import LargestRate, largest_rates
from replay.accuracy.replayed import Figure, ScoredRun

RATES = (1.0, 2.0, 4.0, 8.0)


def series(shift: float = 1.0, *, name: str = "server-70b-q{rate}", n: int = 1000) -> list[ScoredRun]:
    """TTFT mean rises with the square of the rate; the simulation's as at ``shift`` times the rate. ITL stays."""
    return [
        made.scored_run(
            "m",
            0.0,
            name.format(rate=rate),
            rate_per_s=rate,
            n=n,
            figures={
                "ttft_s": {"mean": Figure(rate**2, (shift * rate) ** 2, True)},
                "itl_s": {"mean": Figure(0.01, 0.01, True)},
                "e2e_s": {},
            },
        )
        for rate in RATES
    ]


def only(runs: list[ScoredRun]) -> LargestRate:
    (one,) = largest_rates(runs)
    return one


def test_the_limit_is_half_way_and_both_sides_meet_it_alike() -> None:
    one = only(series())
    assert (one.series, one.figure, one.rates) == ("server-70b-qN", "ttft_s.mean", RATES)
    assert one.limit_s == pytest.approx(8.0)  # half way from 1 to 64
    assert (one.measured_met, one.simulated_met, one.steps_off) == (2.0, 2.0, 0)
    assert one.measured == pytest.approx(8.0**0.5)
    assert one.error == pytest.approx(0.0)


def test_a_simulation_that_is_too_fast_allows_more() -> None:
    one = only(series(0.5))
    assert (one.simulated_met, one.steps_off) == (4.0, 1)
    assert one.error == pytest.approx(1.0)


def test_a_crossing_beyond_the_rates_is_none() -> None:
    fast, slow = only(series(0.1)), only(series(10.0))
    assert (fast.simulated_met, fast.simulated, fast.error) == (8.0, None, None)
    assert (slow.simulated_met, slow.simulated, slow.steps_off) == (None, None, -2)


@pytest.mark.parametrize(
    "runs",
    [
        series()[:2],
        series(n=50),
        series(name="server-{rate}x-q{rate}"),
        [made.scored_run("m", 0.0, f"server-q{rate}", rate_per_s=None) for rate in RATES],
        [made.scored_run("m", 0.0, f"server-q{rate}", rate_per_s=rate, unscored="routing unknown") for rate in RATES],
        [made.scored_run("m", 0.0, "server-q1", rate_per_s=1.0 + 0.01 * i) for i in range(5)],
        [made.scored_run("m", 0.0, f"server-q{rate}", rate_per_s=rate) for rate in RATES],
    ],
    ids=["two rates", "few requests", "other servers", "no rate", "unscored", "one rate", "no change"],
)
def test_no_limit_can_be_chosen(runs: list[ScoredRun]) -> None:
    assert largest_rates(runs) == []


def test_p99_needs_more_requests_than_a_mean() -> None:
    rising = [
        made.scored_run(
            "m",
            0.0,
            f"server-q{rate}",
            rate_per_s=rate,
            n=400,
            figures={
                "ttft_s": {name: Figure(rate, rate, True) for name in ("mean", "p99")},
                "itl_s": {},
                "e2e_s": {},
            },
        )
        for rate in RATES
    ]
    assert [one.figure for one in largest_rates(rising)] == ["ttft_s.mean"]
