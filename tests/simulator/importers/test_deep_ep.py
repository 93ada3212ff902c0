"""DeepEP's kernels, by which ranks that share out experts exchange tokens."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from harness.engines.resolving.system import model_shape
from simulator.importers.aiconfigurator.database import Database
from simulator.importers.aiconfigurator.experts.deep_ep import HIGH_THROUGHPUT, LOW_LATENCY
from simulator.importers.aiconfigurator.shipped import FOLDER, shipped_exchange
from simulator.models.model import Model
from tests.harness.builders import config

RANKS = 8


def model(name: str, ranks: int = RANKS) -> Model:
    made = config(f"model={name}")
    return model_shape(made.model, made.weight_format, "auto").with_experts_on(ranks)


@pytest.mark.parametrize(
    ("backend", "name", "num_tokens"), [(HIGH_THROUGHPUT, "deepep_ht", 128), (LOW_LATENCY, "deepep_ll", 48)]
)
def test_an_exchange_is_a_dispatch_and_a_combine(backend: str, name: str, num_tokens: int) -> None:
    found = shipped_exchange("h200_sxm", model("deepseek-v3"), backend)
    folder = Database(FOLDER, "h200_sxm").folder("comm", None, "moe_a2a_perf")
    assert found is not None and folder is not None
    rows = pq.read_table(folder / "moe_a2a_perf.parquet").to_pandas()
    of = (
        (rows["comm_backend"] == name)
        & (rows["hidden_size"] == 7168)
        & (rows["topk"] == 8)
        & (rows["num_experts"] == 256)
    )
    measured_us = rows[of & (rows["num_tokens"] == num_tokens)]["latency"].sum()
    at = found["num_bytes"] == RANKS * num_tokens * 7168 * 2
    assert found[at]["time_us"].tolist() == [pytest.approx(measured_us, rel=1e-6)]


def test_more_tokens_than_the_kernels_take_go_in_several_turns() -> None:
    found = shipped_exchange("b200_sxm", model("kimi-k2.5"), LOW_LATENCY)
    assert found is not None
    time_us = found.set_index(found["num_bytes"] / (RANKS * 7168 * 2))["time_us"]
    assert time_us[1024] == pytest.approx(4 * time_us[256])


def test_what_was_not_timed_is_refused() -> None:
    assert shipped_exchange("h200_sxm", model("qwen3-30b-a3b"), LOW_LATENCY) is None
    assert shipped_exchange("h200_sxm", model("deepseek-v3", 4), LOW_LATENCY) is None
    assert shipped_exchange("l40s", model("deepseek-v3"), LOW_LATENCY) is None
