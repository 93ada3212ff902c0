"""What the profiler measures next: grids, budgets and interruptions, on measurements that are made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from simulator.profiler.grid import Grid, log_spaced  # noqa: E402
from simulator.profiler.samples import Point, Samples, Times  # noqa: E402
from simulator.profiler.session import BudgetError, Session  # noqa: E402


class MadeUp:
    """A clock that only measuring advances, and an operator that takes `time_us` at its sizes."""

    def __init__(self, time_us: Callable[..., float], visit_s: float = 1.0) -> None:
        self.now_s = 0.0
        self.visited: list[Point] = []
        self.fails_after: int | None = None
        self._time_us = time_us
        self._visit_s = visit_s

    def clock(self) -> int:
        return round(self.now_s * 1e9)

    def measure(self, point: Point) -> Times:
        if self.fails_after is not None and len(self.visited) >= self.fails_after:
            raise KeyboardInterrupt
        self.visited.append(point)
        self.now_s += self._visit_s
        return {"op": [self._time_us(*point.sizes)]}


def line(size: int) -> float:
    return 10.0 + size


def session(made_up: MadeUp, grids: list[Grid], samples: Samples, path: Path) -> Session:
    return Session(
        made_up.measure, grids, [], samples, path, lambda spent_s, doing: None, repeats=2,
        clock=made_up.clock,
    )  # fmt: skip


@pytest.mark.parametrize(("first", "last"), [(1, 8192), (16, 4096), (1, 1), (5, 6), (3, 1000)])
def test_log_spaced_numbers_are_ascending_and_about_a_factor_apart(first: int, last: int) -> None:
    values = log_spaced(first, last, 4.0, also=[last // 2])
    assert values == sorted(set(values)) and values[0] == first and values[-1] == last
    assert all(high <= 5.4 * low for low, high in zip(values, values[1:], strict=False))


def test_a_grid_has_the_points_that_fit_and_its_intervals_are_halved() -> None:
    grid = Grid("g", [[1, 16], [0, 64, 256]], lambda sizes: sizes[0] * sizes[1] <= 1024)
    assert [point.sizes for point in grid.points()] == [(1, 0), (1, 64), (1, 256), (16, 0), (16, 64)]
    grid.halve()
    assert grid.axes == [[1, 4, 16], [0, 16, 64, 128, 256]]
    for _ in range(9):
        grid.halve()
    assert grid.axes[0] == [1, 2, 3, 4, 5, 6, 8, 11, 13, 16], "not beyond what is too close"


def test_a_generous_budget_refines_and_repeats(tmp_path: Path) -> None:
    made_up, samples = MadeUp(lambda size: size**1.5), Samples({})
    grid = Grid("g", [[1, 16, 256]])
    session(made_up, [grid], samples, tmp_path / "partial.json").run(100)
    assert len(grid.axes[0]) > 5
    visits = [samples.visits(point) for point in grid.points()]
    assert min(visits) >= 2 and samples.spent_s == pytest.approx(100, abs=1)


def test_a_grid_is_halved_as_far_as_the_time_allows(tmp_path: Path) -> None:
    """Of 9, 17 and 33 points each is to be visited three times in 80 s."""
    made_up, samples = MadeUp(line), Samples({})
    grid = Grid("g", [[4**i for i in range(9)]])
    session(made_up, [grid], samples, tmp_path / "partial.json").run(80)
    assert grid.axes[0] == [2**i for i in range(17)]


def test_a_budget_below_the_coarse_grid_is_refused_with_what_is_needed(tmp_path: Path) -> None:
    made_up = MadeUp(line)
    coarse = [1, 4, 16, 64, 256]
    with pytest.raises(BudgetError, match=r"time_budget_s=2: 2 of 5 points .* are needed"):
        session(made_up, [Grid("g", [coarse])], Samples({}), tmp_path / "partial.json").run(2)


def test_an_interrupted_session_is_taken_up_where_it_stopped(tmp_path: Path) -> None:
    path, made_up = tmp_path / "partial.json", MadeUp(lambda size: size**1.5)
    made_up.fails_after = 8
    with pytest.raises(KeyboardInterrupt):
        session(made_up, [Grid("g", [[1, 16, 256]])], Samples({"of": 1}), path).run(60)
    before = list(made_up.visited)
    assert len({point for point in before}) > 3, "it had begun to refine"

    made_up.fails_after = None
    told: list[str] = []
    samples = Samples.load(path, {"of": 1}, told.append)
    assert not told
    assert samples.spent_s == pytest.approx(8)
    grid = Grid("g", [[1, 16, 256]])
    resumed = session(made_up, [grid], samples, path)
    assert {point.sizes[0] for point in before} <= set(grid.axes[0])
    resumed.run(60)
    assert all(samples.visits(point) for point in grid.points())
    assert samples.spent_s == pytest.approx(60, abs=1)


def test_interruptions_leave_no_point_behind(tmp_path: Path) -> None:
    """Sessions that end before they have been round once go on with the points that the last one did not reach."""
    made_up, samples = MadeUp(line), Samples({})
    grid = Grid("g", [list(range(300, 330))])  # too close for more points between
    for budget_s in range(30, 200, 17):
        session(made_up, [grid], samples, tmp_path / "partial.json").run(budget_s)
    visits = [samples.visits(point) for point in grid.points()]
    assert max(visits) - min(visits) <= 1


def test_whole_steps_are_visited_three_times_as_often(tmp_path: Path) -> None:
    made_up, samples = MadeUp(line), Samples({})
    grids = [Grid("g", [list(range(300, 330))]), Grid("step_mixed", [list(range(300, 304))])]
    session(made_up, grids, samples, tmp_path / "partial.json").run(400)
    others, steps = ([samples.visits(point) for point in grid.points()] for grid in grids)
    assert min(steps) > 2.5 * max(others) and max(steps) - min(steps) <= 3


def test_samples_of_something_else_are_not_taken_up_and_what_differs_is_told(tmp_path: Path) -> None:
    path, told = tmp_path / "partial.json", list[str]()
    samples = Samples({"model": "a", "limits": {"num_seqs": 4, "buckets": (1, 2)}})
    assert not Samples.load(path, samples.signature, told.append).points("g") and not told
    samples.add(Point("g", (1,)), {"op": [1.0, 2.0, 4.0]}, 0.5)
    samples.save(path)
    other = {"model": "b", "limits": {"num_seqs": 8, "buckets": (1, 2)}, "backend": "torch"}
    assert not Samples.load(path, other, told.append).points("g")
    assert told.pop() == (
        f"starting over: {path} was measured with backend=None instead of torch, limits.num_seqs=4 instead of 8, "
        "model=a instead of b"
    )
    same = Samples.load(path, samples.signature, told.append)
    assert not told
    assert same.median(Point("g", (1,)), "op") == 2.0 and same.spread(Point("g", (1,)), "op") == pytest.approx(0.75)
    path.write_text("{")
    assert not Samples.load(path, samples.signature, told.append).points("g")
    assert "cannot be read" in told.pop()


def test_dear_points_do_not_take_all_the_time(tmp_path: Path) -> None:
    class Dear(MadeUp):
        def measure(self, point: Point) -> Times:
            self.now_s += 20.0 if point.sizes[0] == 256 else 0.0
            return super().measure(point)

    made_up, samples = Dear(line), Samples({})
    grid = Grid("g", [[255, 256, *range(300, 330)]])  # too close for more points between
    session(made_up, [grid], samples, tmp_path / "partial.json").run(2000)
    visits = [samples.visits(point) for point in grid.points()]
    assert min(visits) >= 20 and samples.visits(Point("g", (256,))) < max(visits) / 2
