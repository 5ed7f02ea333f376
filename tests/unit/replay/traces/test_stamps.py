"""Times of one shape, read by columns, against Python's own reader."""

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.traces.stamps import stamps_ns

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(
    st.lists(st.datetimes(datetime(1700, 1, 1), datetime(2199, 12, 31)), min_size=1, max_size=30),
    st.sampled_from(["T", " "]),
    st.integers(1, 9),
    st.sampled_from(["", "Z", "+00:00", "+0000"]),
)
@settings(max_examples=200, deadline=None)
def test_as_python_reads_them(times: list[datetime], separator: str, digits: int, mark: str) -> None:
    cells = [f"{time:%Y-%m-%d}{separator}{time:%H:%M:%S}.{f'{time:%f}000'[:digits]}{mark}" for time in times]
    read = stamps_ns(pl.Series(cells))
    assert read is not None
    values, zoned = read
    assert zoned is bool(mark)
    kept = [time.replace(tzinfo=UTC) - EPOCH for time in times]
    unit_ns = 10 ** (9 - digits)
    assert values.tolist() == [one // timedelta(microseconds=1) * 1000 // unit_ns * unit_ns for one in kept]


@pytest.mark.parametrize(
    "odd",
    [
        "2024-05-12 00:00:00.00142+00:00",
        "2024-05-12T00:00:00.001419+00:00",
        "2024-05-12 00:00:00.001419+01:00",
        "2024-05-12 00:00:00,001419+00:00",
        "2024-05-12 00:00:00.00141x+00:00",
        "2024-05-12 00:00:00.-01419+00:00",
        "2024-05-12 24:00:00.001419+00:00",
        "2024-05-12 00:60:00.001419+00:00",
        "2024-05-12 00:00:60.001419+00:00",
        "2024-13-12 00:00:00.001419+00:00",
        "2024-00-12 00:00:00.001419+00:00",
        "2024-02-30 00:00:00.001419+00:00",
        "2024-01-61 00:00:00.001419+00:00",
        "2023-02-29 00:00:00.001419+00:00",
        "0001-05-12 00:00:00.001419+00:00",
        "9999-05-12 00:00:00.001419+00:00",
        "2024-05-00 00:00:00.001419+00:00",
        "2024-05-12 00:00:00.0014é+00:00",
        None,
    ],
)
def test_one_cell_of_another_shape_leaves_all_to_the_patient_reader(odd: str | None) -> None:
    good = ["2024-02-29 00:00:00.001419+00:00"] * 3
    assert stamps_ns(pl.Series(good)) is not None
    assert stamps_ns(pl.Series([*good, odd])) is None
    assert stamps_ns(pl.Series([odd, *good])) is None


def test_nothing_is_no_time() -> None:
    assert stamps_ns(pl.Series([], dtype=pl.String)) is None
