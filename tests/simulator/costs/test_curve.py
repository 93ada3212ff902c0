"""Interpolation against numpy's, its vector form bit for bit, and the continuation beyond the grid."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.costs.curves.curve import Curve, Surface, flat, proportional

POINTS = st.lists(
    st.tuples(st.integers(1, 10**6), st.floats(1e-3, 1e6)), min_size=1, max_size=12, unique_by=lambda point: point[0]
).map(sorted)


@given(POINTS, st.lists(st.floats(0, 2e6), min_size=1, max_size=20))
def test_inside_as_numpy_and_the_same_bits_for_one_and_for_many(
    points: list[tuple[int, float]], xs: list[float]
) -> None:
    knots, values = zip(*points, strict=True)
    curve = proportional(knots, values)
    many = curve.many(np.array(xs))
    assert many.tolist() == [curve(x) for x in xs]
    inside = [x for x in xs if x <= knots[-1]]
    np.testing.assert_allclose([curve(x) for x in inside], np.interp(inside, knots, values), rtol=1e-9)
    for x in (x for x in xs if x > knots[-1]):
        assert curve(x) == pytest.approx(values[-1] * x / knots[-1])


@given(POINTS, st.integers(1, 2 * 10**6))
def test_the_next_point_rounds_up(points: list[tuple[int, float]], x: int) -> None:
    knots, values = zip(*points, strict=True)
    curve = proportional(knots, values)
    above = [value for knot, value in points if knot >= x]
    assert curve.next_point(x) == (above[0] if above else curve(x))


def test_a_flat_curve_keeps_its_ends() -> None:
    curve = flat([2, 4], [10, 20])
    assert [curve(x) for x in (0, 2, 3, 4, 100)] == [10, 10, 15, 20, 20]


def test_scaling_scales_the_tail_too() -> None:
    assert proportional([1, 2], [3, 4]).scaled(10)(8) == pytest.approx(160)


def test_a_surface_of_a_bilinear_function_is_exact_inside_and_keeps_its_rate_beyond() -> None:
    def work(row: float, x: float) -> float:
        return row * x

    rows = {float(r): ([1.0, 10.0, 100.0], [3 * r * x for x in (1.0, 10.0, 100.0)]) for r in (2, 8, 32)}
    surface = Surface(rows, work)
    for row in (2, 5, 8, 31, 32, 64, 500):
        for x in (1, 7, 100, 1000):
            assert surface.at(row)(x) == pytest.approx(3 * row * x)
    assert surface.at(1)(10) == pytest.approx(3 * 2 * 10)  # below the grid: the floor that was measured
    assert surface.bracket(20) == (8, 32, 0.5)
    assert surface.bracket(1) == (2, 2, 0) and surface.bracket(99) == (32, 32, 0)


def test_rows_measured_at_different_points_are_joined() -> None:
    surface = Surface({1.0: ([0, 10], [0, 10]), 3.0: ([0, 5, 20], [0, 10, 40])}, None)
    curve = surface.at(2)
    for x in (0, 2.5, 5, 8, 10):
        assert curve(x) == pytest.approx((x + 2 * x) / 2)
    assert curve(20) == pytest.approx((10 + 40) / 2)
    assert [surface.at(row).end for row in (1, 2, 3, 4)] == [10, 10, 20, 20]  # the sooner of two rows


@given(
    st.dictionaries(
        st.integers(1, 9),
        st.lists(st.tuples(st.integers(0, 9), st.floats(0.1, 9)), min_size=1, unique_by=lambda p: p[0]),
    ).filter(bool),
    st.integers(0, 10),
    st.booleans(),
)
def test_the_first_time_of_a_row_is_that_of_its_curve(
    points: dict[int, list[tuple[int, float]]], row: int, grows: bool
) -> None:
    rows = {float(at): tuple(map(list, zip(*sorted(some), strict=True))) for at, some in points.items()}
    work = (lambda row, x: row * (x + 1)) if grows else None
    surfaces = [Surface(rows, work) for _ in range(2)]  # type: ignore[arg-type]
    curve = surfaces[0].at(row)
    assert surfaces[1].first(row) == curve.ys[0] == curve(0)


def test_curves_need_as_many_values_as_points() -> None:
    with pytest.raises(ValueError):
        Curve([1, 2], [1], 0)
