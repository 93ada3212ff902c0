"""The minimiser of task=calibrate."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from harness.calibration.minimisation import Fit, minimise
from harness.results.tables import Floats
from simulator.costs.constants import Constant


def fit(start: Mapping[str, float], target: Mapping[str, float], budget: int = 400) -> Fit:
    constants = {name: Constant(value, 0.0, 10.0) for name, value in start.items()}

    def objective(values: Mapping[str, float]) -> float:
        x = [values[name] - target[name] for name in target]
        return float(sum((i + 1) * each**2 for i, each in enumerate(x)) + 0.5 * x[0] * x[-1])

    return minimise(objective, constants, budget, lambda count, best: None)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_minimum_inside_is_found(count: int) -> None:
    target = {f"c{i}": 2.0 + i for i in range(count)}
    found = fit(dict.fromkeys(target, 5.0), target)
    assert found.values == pytest.approx(target, abs=0.01)
    assert found.objective < 1e-3 < found.start_objective and found.num_evaluations <= 400


def test_a_minimum_outside_is_sought_at_the_limits() -> None:
    found = fit({"a": 9.5, "b": 5.0}, {"a": 30.0, "b": 5.0})
    assert found.values["a"] == pytest.approx(10.0) and all(0 <= value <= 10 for value in found.values.values())


def test_points_beyond_a_limit_come_back_from_it() -> None:
    """Moved to the limit instead, simplices would go flat: they would look at the same point again and again."""
    seen: list[tuple[float, ...]] = []

    def objective(values: Mapping[str, float]) -> float:
        seen.append(tuple(values.values()))
        return (values["a"] + 1) ** 2 + (values["b"] - 5) ** 2  # falls towards the limit of a

    minimise(objective, {name: Constant(5.0, 0.0, 10.0) for name in "ab"}, 300, lambda count, best: None)
    assert sum(a == 0.0 for a, _ in seen) <= 2


def test_the_budget_is_kept_and_the_best_so_far_returned() -> None:
    target = {"a": 2.0, "b": 3.0}
    assert fit({"a": 2.0, "b": 3.0}, target, budget=1).values == target
    found = fit({"a": 9.0, "b": 9.0}, target, budget=12)
    assert found.num_evaluations == 12 and found.objective < found.start_objective


def test_equal_searches_take_equal_steps() -> None:
    assert fit({"a": 9.0, "b": 9.0}, {"a": 2.0, "b": 3.0}) == fit({"a": 9.0, "b": 9.0}, {"a": 2.0, "b": 3.0})


def test_a_default_below_its_limit_is_tried_first_and_left_for_the_limits() -> None:
    tried: list[float] = []

    def objective(values: Mapping[str, float]) -> float:
        tried.append(values["a"])
        return values["a"]

    found = minimise(objective, {"a": Constant(0.03, 0.05, 1.0)}, 60, lambda count, best: None)
    assert tried[0] == 0.03 and all(0.05 <= value <= 1 for value in tried[1:])
    assert found.values == {"a": 0.03} and min(tried[1:]) == pytest.approx(0.05)


def test_the_norm_of_a_vector_is_minimised_in_few_steps_within_the_limits() -> None:
    """As of constants that stand for each other in part: time of a step, times for a token and for a sequence."""
    sizes, tried = np.array([[1.0, n, n**1.5] for n in range(1, 12)]), []

    def residuals(values: Mapping[str, float]) -> Floats:
        tried.append(values)
        return sizes @ list(values.values()) / (sizes @ [4.0, 0.5, 0.0]) - 1

    constants = {"a": Constant(0.0, 0.0, 10.0, 2.0), "b": Constant(1.0, 0.1, 10.0), "c": Constant(0.0, 0.0, 2.0, 0.2)}
    found = minimise(
        lambda values: float(np.linalg.norm(residuals(values))), constants, 40, lambda count, best: None, residuals
    )
    assert found.objective < 1e-2 and found.values["a"] == pytest.approx(4, rel=0.1)
    assert found.num_evaluations == len(tried) <= 40 and tried[0] == {"a": 0.0, "b": 1.0, "c": 0.0}
    assert all(constants[name].low <= value <= constants[name].high for each in tried for name, value in each.items())
