"""What task=capacity answers: costs, the best of a sweep and by how much, and what the own error of a model means."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.config import RunConfig
from harness.results.measures.costs import cost_per_million_tokens, joules_per_token, price_per_gpu_hour
from harness.studies.capacity import capacity as task
from harness.studies.capacity.capacity_sweep import best_of, best_sentence, with_labels
from harness.studies.capacity.load_search import Ask, Capacity, find_capacity
from harness.studies.capacity.probe import Probe
from harness.studies.capacity.row import order_text, row_of, widened_text
from tests.harness.builders import config
from tests.harness.studies.capacity.builders import ROOM, World, probe

PRICED = (
    "task=capacity", "model=tiny", "device=laptop-cpu", "device.price_per_gpu_hour=2.0", "device.tdp_w=100",
    "metrics.slo.ttft_ms=500",
)  # fmt: skip


def test_costs_and_energies() -> None:
    one, two = config(*PRICED), config(*PRICED, "replicas=2")  # $2.00 per hour and GPU, 100 W
    assert cost_per_million_tokens(two, 1000) == pytest.approx(2 * 2 / 3.6)
    assert joules_per_token(two, 1000, busy=1.0) == pytest.approx(0.2)
    assert joules_per_token(one, 1000, busy=0.0) == pytest.approx(0.01)
    bare = config(*PRICED, "device.price_per_gpu_hour=null", "device.tdp_w=null")
    assert cost_per_million_tokens(bare, 1000) is None
    assert joules_per_token(bare, 1000, busy=1.0) is None


def test_gpus_of_several_kinds_cost_what_they_cost_together() -> None:
    pools = "fleet.pools=[{replicas:2,device:h200},{device:h100-80gb}]"
    mixed, each = config("fleet=custom", pools), [config(f"device={name}").device for name in ("h200", "h100-80gb")]
    prices = [device.price_per_gpu_hour or 0.0 for device in each]
    total = 2 * prices[0] + prices[1]
    assert cost_per_million_tokens(mixed, 1000) == pytest.approx(total / 3.6)
    assert price_per_gpu_hour(mixed) == pytest.approx(total / 3)


def row(capacity: float, label: str, settings: RunConfig, **changes: Any) -> dict[str, Any]:
    found = find_capacity(World(capacity).run, capacity / 2, settings.capacity, ROOM)
    overrides = {"scheduler": label, "block_size": "16", **changes}
    return row_of(settings, found, "all", overrides)


def test_a_sweep_names_the_best_and_by_how_much() -> None:
    settings = config(*PRICED)
    rows = with_labels([row(20, "mixed", settings), row(30, "vllm", settings), row(29.9, "sjf", settings)])
    assert [each["label"] for each in rows] == ["scheduler=mixed", "scheduler=vllm", "scheduler=sjf"]
    best = best_of(rows)
    assert best is not None and rows[best]["capacity"] == max(each["capacity"] for each in rows)
    sentence = best_sentence(rows, best, "arrival.rate")
    assert "than the last (scheduler=mixed)" in sentence
    assert "The intervals do not tell it apart from" in sentence


def test_gpus_of_different_prices_compare_by_cost() -> None:
    cheap = config(*PRICED, "device.price_per_gpu_hour=0.5")
    rows = [row(30, "dear", config(*PRICED)), row(20, "cheap", cheap)]
    assert best_of(rows) == 1
    assert best_of([rows[0], {**rows[1], "price_per_gpu_hour": None}]) == 0


def test_configurations_without_a_capacity_say_what_is_known() -> None:
    settings = config(*PRICED)
    never = row_of(settings, Capacity((probe(1.0, 0.5), probe(0.25, 0.4)), None), "never", {})
    always = row_of(settings, Capacity((probe(1.0, 0.0), probe(4.0, 0.0)), None), "always", {})
    assert (never["capacity"], never["low"], never["high"]) == (None, None, 0.25)
    assert (always["capacity"], always["low"], always["high"]) == (None, 4.0, None)
    assert best_of([never, always]) is None


ERROR = {"median": 6.0, "low": -10.0, "high": 25.0, "runs": 45, "words": "of the same model"}


def test_an_interval_says_what_the_models_own_error_makes_of_it() -> None:
    row = {"capacity": 10.0, "low": 9.0, "high": 10.8, "model_error": ERROR}
    assert "own error it is 7.20 to 12.0: throughput was off by -10 to +25 % in 80 % of 45" in widened_text(row)
    assert not widened_text({**row, "model_error": None}) and not widened_text({**row, "capacity": None})


@pytest.mark.parametrize(("second", "is_said"), [(9.6, True), (9.0, False)])
def test_an_order_within_the_models_own_error_is_said(second: float, is_said: bool) -> None:
    best = {"per_gpu": 10.0, "model_error": ERROR}
    assert ("measure both" in order_text(best, {"per_gpu": second, "model_error": None})) == is_said
    assert not order_text({**best, "model_error": None}, {"per_gpu": second, "model_error": None})


def test_what_confirms_is_divided_only_where_requests_are_drawn_and_fails_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Ask] = []

    def confirmed(shares: Sequence[float], *overrides: str, overloaded: bool = False) -> dict[str, Any]:
        def run(settings: RunConfig, key: str, folder: Path, asks: Sequence[Ask]) -> list[Probe]:
            asked[:] = asks
            pairs = zip(asks, shares, strict=True)
            return [probe(ask.load, each, ask.number, ask.num_requests, overloaded=overloaded) for ask, each in pairs]

        monkeypatch.setattr(task, "run_probes", run)
        settings = config(*PRICED, "capacity.num_requests=300", "capacity.confirm=10", *overrides)
        return task.confirm(settings, 3.0, tmp_path, Console(quiet=True))

    shares = [0.0, 0.006, 0.018, 0.012]
    drawn = confirmed(shares)
    assert [each.num_requests for each in asked] == [750] * 4 and len({each.number for each in asked}) == 4
    assert drawn["holds"] and drawn["share"] == pytest.approx(0.009) and drawn["num_requests"] == 3000
    assert drawn["latencies_ms"] == {"ttft": [0.0, pytest.approx(900.0)]}
    assert not confirmed(shares, overloaded=True)["holds"]
    (tmp_path / "trace.csv").write_text("num_prompt_tokens,num_output_tokens\n10,10\n")
    of_file = confirmed([0.02], "trace=csv", f"trace.path={tmp_path / 'trace.csv'}")
    assert not of_file["holds"] and [each.num_requests for each in asked] == [3000]
