"""The fewest servers that hold the SLO at a load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config.schema.tasks.capacity import CapacityConfig
from harness.errors import ConfigError
from harness.studies.capacity.capacity import find
from harness.studies.capacity.capacity_sweep import aim_of, best_sentence
from harness.studies.capacity.fewest import find_fewest
from harness.studies.capacity.load_search import Ask
from harness.studies.capacity.probe import Probe
from tests.harness.builders import config
from tests.harness.studies.capacity.builders import ROOM, probe
from tests.selection import examples

SLO = ("task=capacity", "metrics.slo.ttft_ms=500", "metrics.slo.tpot_ms=40", "progress=false")


@examples(8)
@given(st.integers(1, 500), st.integers(1, 64), st.floats(0, 4))
def test_the_fewest_are_found_wherever_the_search_starts(needed: int, start: int, misjudged: float) -> None:
    asked: list[int] = []

    def run(asks: Sequence[Ask]) -> list[Probe]:
        asked.extend(round(ask.load) for ask in asks)
        guess = needed * misjudged
        return [replace(probe(ask.load, 0.0 if ask.load >= needed else 1.0, ask.number), guess=guess) for ask in asks]

    found = find_fewest(run, (start,), CapacityConfig(max_probes=40), ROOM)
    assert min(each.load for each in found.probes if each.holds(ROOM)) == needed
    assert needed == 1 or needed - 1 in asked
    assert len(asked) <= 30 and min(asked) >= 1


@pytest.mark.long
def test_servers_gpus_and_costs_are_told(tmp_path: Path) -> None:
    lengths = ["trace=sharegpt", "capacity.num_requests=800", "capacity.workers=1", "cost=roofline"]
    asked = config(*SLO, *lengths, "capacity.target_rate=120", "router=least_requests", "tensor_parallel_size=2")
    document = find(asked, tmp_path, ())
    (row,) = document["rows"]
    assert (document["over"], document["unit"], row["capacity"], row["num_gpus"]) == ("replicas", "servers", 2, 4)
    assert row["cost_per_hour"] == 4 * row["price_per_gpu_hour"] and row["per_gpu"] == 30
    cost = row["cost_per_hour"] / 3600 / row["output_throughput"] * 1e6
    assert row["cost_per_million_tokens"] == pytest.approx(cost)
    long = [(each["value"], each["holds"]) for each in row["probes"] if each["num_requests"] == 800]
    assert long == [(1.0, False), (2.0, True)] and row["low"] == 2 <= row["high"] <= 3
    assert "2 servers of 2 NVIDIA H100 80GB HBM3 behind least_requests hold 120 requests/s" in document["sentence"]
    assert "4 GPUs, $16.0 an hour" in document["sentence"]
    assert 0 < row["full"] < 1 and "% full." in document["sentence"]
    assert "2 such servers behind a router" in document["command"]
    fewer, twice = row["one_fewer"], row["twice"]
    assert fewer["servers"] == 1 and 60 < fewer["low"] <= fewer["capacity"] <= fewer["high"] < 120
    assert fewer["at_load"]["value"] == 1 and not fewer["at_load"]["holds"]
    assert f"the other one holds {fewer['capacity']:.1f} requests/s" in document["sentence"]
    is_wide = fewer["high"] - fewer["low"] > 0.1 * fewer["capacity"]
    assert is_wide == (f"(95 % interval {fewer['low']:.1f} to {fewer['high']:.1f}); with 3" in document["sentence"])
    assert twice["rate"] == 240 and 3 <= twice["capacity"] <= 4 and twice["num_gpus"] == 2 * twice["capacity"]
    assert twice["same"]["num_gpus"] == 4 and twice["same"]["verdict"] == "overloaded"
    assert f"{twice['capacity']} servers hold it ({twice['num_gpus']} GPUs, $" in document["sentence"]
    few = find(
        config(*SLO, *lengths, "capacity.over=replicas", "arrival.rate=300", "capacity.max_probes=6"),
        tmp_path / "b",
        (),
    )
    assert few["rows"][0]["rate"] == 300 and few["rows"][0]["capacity"] > 4


def test_another_key_cannot_be_searched_for_at_a_rate() -> None:
    with pytest.raises(ConfigError, match="target_rate asks for over=replicas"):
        find(config(*SLO, "capacity.target_rate=6", "capacity.over=arrival.rate"), Path("unused"), ())


def test_a_sweep_of_fleets_names_each_with_what_it_bears() -> None:
    def fleet(router: str, capacity: int | None, num_gpus: int = 16, cost: float | None = 64.0) -> dict[str, Any]:
        return {
            "label": f"router={router}",
            "capacity": capacity,
            "low": capacity and capacity - 1,
            "high": capacity and capacity + 1,
            "rate": 40,
            "num_gpus": num_gpus,
            "per_gpu": capacity and capacity / num_gpus,
            "price_per_gpu_hour": 4.0,
            "cost_per_hour": cost,
            "servers": capacity and f"8 servers of 2 H100 behind {router}",
        }

    rows = [fleet("affinity", 49), fleet("round_robin", 15), fleet("random", None), fleet("load", 48)]
    assert best_sentence(rows, 0, "arrival.rate") == (
        "8 servers of 2 H100 behind affinity hold 49 requests/s; router=load 48; router=round_robin 15; "
        "router=random no capacity. The intervals do not tell it apart from: router=load."
    )
    rows = [fleet("affinity", 49), fleet("round_robin", 60, 32), *(fleet(f"r{i}", 10) for i in range(5))]
    assert best_sentence(rows, 0, "arrival.rate") == (
        "8 servers of 2 H100 behind affinity hold 49 requests/s, 3.06 per GPU, which is the best; router=round_robin "
        "60 (1.88 per GPU); router=r0 10 (0.62 per GPU); router=r1 10 (0.62 per GPU); router=r2 10 (0.62 "
        "per GPU); router=r3 10 (0.62 per GPU); 1 more."
    )
    assert aim_of(rows, "arrival.rate") == "bears the highest arrival.rate per GPU"
    few = [fleet("affinity", 1, 1, None), fleet("round_robin", 15, 30)]
    assert best_sentence(few, 0, "replicas").endswith(
        " holds 40 requests/s (1 GPU); router=round_robin 15 servers (30 GPUs, $64.0 an hour)."
    )
    assert aim_of(few, "replicas") == "needs the fewest GPUs at 40 requests/s"
    assert aim_of([few[0], {**few[1], "price_per_gpu_hour": 2.0}], "replicas") == "costs least per token"
