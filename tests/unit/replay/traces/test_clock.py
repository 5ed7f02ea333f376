"""The clock of a whole file: a time far off all others, a clock that starts again, one that is set back by an hour."""

from datetime import UTC, datetime, timedelta

import pytest

OWN = "arrival_s,prompt_tokens,output_tokens\n"
MAP = {"arrival": "t", "prompt_tokens": "p", "output_tokens": "o"}
START = datetime(2026, 10, 25, 1, 0, tzinfo=UTC)


def own(*times: float) -> str:
    return "".join(f"{t},{100 + i},{10 + i % 7}\n" for i, t in enumerate(times))


def calendar(minutes: list[float], *more: str, mark: str = "Z") -> str:
    times = [f"{START + timedelta(minutes=m):%Y-%m-%d %H:%M:%S}{mark}" for m in minutes]
    return "t,p,o\n" + "".join(f"{t},{100 + i},{10 + i % 7}\n" for i, t in enumerate([*times, *more]))


@pytest.mark.parametrize("year", ["2000", "2016", "2099"])
def test_a_time_far_off_all_others_is_a_rejected_row(lab, year: str) -> None:
    report = lab.read(calendar([i / 3 for i in range(60)], f"{year}-01-02 03:04:05Z"), mapping=MAP)
    assert report.cleaning.rejected_by_rule == {"far_off": 1}
    assert (report.cleaning.rejections[0].line, report.cleaning.rejections[0].column) == (62, "t")
    assert (report.requests, report.span_s) == (60, 1180)


def test_a_far_off_first_row_does_not_count_the_others_as_late(lab) -> None:
    report = lab.read(OWN + own(9e8, *range(60)))
    assert (report.cleaning.rejected_by_rule, report.cleaning.rows_moved_by_sorting) == ({"far_off": 1}, 0)


def test_far_off_rows_that_are_real_are_kept_if_the_user_says_so(lab) -> None:
    report = lab.read(OWN + own(*range(60), 9e8), keep_far_off=True)
    assert (report.requests, report.span_s) == (61, 9e8)


def test_a_quiet_first_day_is_not_far_off(lab) -> None:
    report = lab.read(OWN + own(0, *(8 * 86_400 + i for i in range(60))))
    assert (report.requests, report.span_s) == (61, 8 * 86_400 + 59)


def test_more_than_a_few_rows_are_another_part_of_the_log(lab) -> None:
    report = lab.read(OWN + own(*range(20), *(9e8 + i for i in range(20))))
    assert report.requests == 40


JOINED = OWN + own(*(i * 0.5 for i in range(40))) + own(*(0.25 + i * 0.5 for i in range(30)))


def test_a_clock_that_starts_again_is_asked_about(lab) -> None:
    refusal = lab.refuse(JOINED)
    assert refusal.code == "trace.clock_restarts"
    assert {error.line for error in refusal.errors} == {42}
    assert [error.cure for error in refusal.errors] == ["clock_restarts=follow", "clock_restarts=overlap"]


def test_joined_parts_follow_each_other_or_overlap_as_asked(lab) -> None:
    follow = lab.read(JOINED, clock_restarts="follow")
    assert follow.span_s == 19.5 + 14.5
    assert lab.table["source_line"].is_sorted()
    overlap = lab.read(JOINED, clock_restarts="overlap")
    assert overlap.span_s == 19.5
    assert "overlap" in overlap.assumed["clock_restarts"]


def test_three_parts_follow_each_other(lab) -> None:
    parts = "".join(own(*(k * 0.1 + i for i in range(10 + k))) for k in range(3))
    assert lab.read(OWN + parts, clock_restarts="follow").span_s == pytest.approx(9 + 10 + 11)


@pytest.mark.parametrize(
    "times",
    [
        [float(i) for i in reversed(range(60))],
        [100 * (5 - page) + i for page in range(6) for i in range(60)],
        [(i * 37) % 60 + 0.5 for i in range(60)],
        [*range(30), 0.5, *range(30, 60)],
        [*range(0, 60, 2), *range(50, 110, 2)],
    ],
    ids=["newest first", "newest page first", "any order", "one late row", "a short overlap"],
)
def test_other_orders_of_rows_are_no_restart(lab, times: list[float]) -> None:
    assert lab.read(OWN + own(*times)).requests == len(times)


def test_a_clock_set_back_by_an_hour_is_asked_about(lab) -> None:
    minutes = [i / 2 for i in range(240)] + [61 + i / 2 for i in range(200)]
    refusal = lab.refuse(calendar(minutes, mark=""), mapping=MAP, time_zone="UTC")
    assert (refusal.code, refusal.errors[0].line) == ("trace.clock_set_back", 242)
    report = lab.read(calendar(minutes, mark=""), mapping=MAP, time_zone="UTC", clock_restarts="overlap")
    assert report.requests == 440


@pytest.mark.parametrize("hours", [2, 7])
def test_a_clock_that_changes_its_zone_is_asked_about(lab, hours: int) -> None:
    """A service that logs local times and, from the middle of the file on, UTC."""
    begin = datetime(2026, 7, 1)

    def at(i: int) -> str:
        return f"{begin + timedelta(seconds=97 * i - (hours * 3600 if i >= 600 else 0)):%Y-%m-%d %H:%M:%S}"

    text = "ts,p,o\n" + "".join(f"{at(i)},{100 + i},{10 + i % 7}\n" for i in range(1000))
    options = {"mapping": {"arrival": "ts", "prompt_tokens": "p", "output_tokens": "o"}, "time_zone": "UTC"}
    refusal = lab.refuse(text, **options)
    assert (refusal.code, refusal.errors[0].line) == ("trace.clock_set_back", 602)
    assert lab.read(text, clock_restarts="follow", **options).span_s == pytest.approx(97 * 998)


def test_pages_of_an_hour_in_another_order_are_sorted(lab) -> None:
    begin = datetime(2026, 7, 1)
    pages = [[begin + timedelta(hours=hour, seconds=36 * i) for i in range(100)] for hour in reversed(range(12))]
    text = "ts,p,o\n" + "".join(
        f"{t},{100 + k},{10 + k % 7}\n" for k, t in enumerate(t for page in pages for t in page)
    )
    options = {"mapping": {"arrival": "ts", "prompt_tokens": "p", "output_tokens": "o"}, "time_zone": "UTC"}
    assert lab.read(text, **options).requests == 1200
