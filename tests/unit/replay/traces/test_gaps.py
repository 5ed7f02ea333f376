"""Whether nothing came because something stopped, or because there was nothing to do."""

import numpy as np
import pytest

DAY = 86_400
MONDAY = 1_772_442_000  # 2026-03-02T09:00:00Z
MAP = {"arrival": "t", "prompt_tokens": "p", "output_tokens": "o"}


def steady(rate: float, span_s: float, seed: int = 1) -> np.ndarray:
    times = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, int(rate * span_s)))
    return times[times < span_s]


def daily(days: int, weekend: bool = True) -> np.ndarray:
    """Traffic that follows the day, from 9 h on Monday, and has none at night."""
    times = steady(0.1, days * DAY)
    clock = (times + 9 * 3600) % DAY / DAY
    share = np.clip(-np.cos(2 * np.pi * clock), 0, 1)
    if not weekend:
        share *= (times + 9 * 3600) // DAY % 7 < 5
    return times[np.random.default_rng(2).random(len(times)) < share]


def read(lab, times: np.ndarray):
    rows = (f"{MONDAY + t:.3f},{100 + i % 901},{10 + i % 53}\n" for i, t in enumerate(np.sort(times)))
    return lab.read("t,p,o\n" + "".join(rows), mapping=MAP)


def kinds(report) -> set[str]:
    return {gap.kind for gap in report.cleaning.gaps}


def without(times: np.ndarray, start: float, end: float) -> np.ndarray:
    return times[(times < start) | (times > end)]


def test_a_sudden_stop_is_an_outage_and_its_part_in_the_mean_is_said(lab) -> None:
    report = read(lab, without(steady(2, 3600), 1500, 2100))
    (gap,) = report.cleaning.gaps
    assert (gap.kind, round(gap.start_s, -1), round(gap.length_s, -1)) == ("outage", 1500, 600)
    assert gap.expected_requests > 900
    assert report.cleaning.mean_rps_without_outages == pytest.approx(2, rel=0.05)
    assert report.profile.mean_rps == pytest.approx(2 * 5 / 6, rel=0.05)
    assert any("outage likely" in warning and "does not follow" in warning for warning in report.warnings)


def test_a_burst_right_after_an_outage_is_named(lab) -> None:
    times = np.concatenate([without(steady(2, 3600), 1500, 2100), 2101 + np.linspace(0, 50, 900)])
    assert any("right after an outage" in warning for warning in read(lab, times).warnings)


def test_nights_are_idle_and_a_dead_noon_is_not(lab) -> None:
    assert kinds(read(lab, daily(5))) == {"idle"}
    noon = 2 * DAY + 3 * 3600
    outages = [gap for gap in read(lab, without(daily(5), noon, noon + 5400)).cleaning.gaps if gap.kind == "outage"]
    assert [round(gap.start_s, -3) for gap in outages] == [round(noon, -3)]
    assert "other days" in outages[0].evidence


def test_weekends_are_idle_where_two_are_seen_and_unclear_where_one_is(lab) -> None:
    assert kinds(read(lab, daily(21, weekend=False))) == {"idle"}
    assert kinds(read(lab, daily(10, weekend=False))) == {"unclear"}


def test_a_straggler_after_the_end_proves_nothing(lab) -> None:
    assert kinds(read(lab, np.append(steady(2, 3600), 9000))) == {"unclear"}


def test_pauses_between_batches_are_idle(lab) -> None:
    batches = np.concatenate([k * 300 + np.random.default_rng(k).random(20) * 4 for k in range(40)])
    assert kinds(read(lab, batches)) == {"idle"}


def test_even_and_sparse_traffic_has_no_gaps_to_name(lab) -> None:
    for times in (steady(2, 3600), steady(1 / 600, 60_000)):
        assert read(lab, times).cleaning.gaps == []
