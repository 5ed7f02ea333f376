"""Straight lines between knots, as the record's own tables are read."""

import numpy as np
import pytest

from replay.kernels.loglinear import interpolate
from replay.steptime.analytic import table_knots
from replay.steptime.interpolation import along, between, grid, points, record_table

KNOTS = np.array([1.0, 4.0, 8.0])


def test_a_line_is_followed_between_knots_and_beyond_the_last() -> None:
    values = np.array([10.0, 40.0, 48.0])
    assert along(KNOTS, values, np.array([0.0, 1.0, 2.0, 4.0, 6.0, 12.0])).tolist() == [10, 10, 20, 40, 44, 56]


def test_a_falling_end_does_not_fall_further() -> None:
    assert along(KNOTS, np.array([10.0, 40.0, 30.0]), np.array([8.0, 12.0])).tolist() == [30, 40]


def test_a_slice_of_one_knot_is_that_knot() -> None:
    assert between(np.array([4.0]), np.array([[1.0, 2.0]]), 9.0).tolist() == [1, 2]


def test_a_plane_is_exact_in_a_grid() -> None:
    x, y = np.array([1.0, 3.0, 20.0]), np.array([1.0, 2.5, 30.0])
    plane = 2 * KNOTS[:, None] + 5 * KNOTS[None, :]
    assert grid(KNOTS, KNOTS, plane, x, y) == pytest.approx(2 * x[:, None] + 5 * y[None, :])


def test_points_are_read_as_the_kernels_read_them() -> None:
    rng = np.random.default_rng(3)
    rows, columns = table_knots(200), table_knots(3000)
    table = np.cumsum(np.cumsum(rng.integers(0, 10**6, (len(rows), len(columns))), 0), 1)
    x, y = rng.integers(0, 220, 500), rng.integers(0, 3300, 500)
    ours = points(rows, columns, table.astype(np.float64), x, y)
    kernel = [int(interpolate(table, int(a), int(b))) for a, b in zip(x, y, strict=True)]
    assert np.abs(ours - np.array(kernel)).max() <= 3  # the kernels cut each product to an integer


def test_one_value_of_a_record_table_is_what_the_kernels_read() -> None:
    rng = np.random.default_rng(5)
    table = np.cumsum(np.cumsum(rng.integers(0, 10**6, (len(table_knots(64)), len(table_knots(900)))), 0), 1)
    for x, y in ((1, 1), (7, 300), (40, 777), (64, 900)):
        assert record_table(table, x, y) == pytest.approx(int(interpolate(table, x, y)), abs=3)
    assert record_table(np.zeros((0, 0), np.int64), 3.0, 4.0) == 0.0
