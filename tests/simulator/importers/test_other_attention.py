"""Latent, sparse and linear attention compiled from tables whose times follow known formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from simulator.importers.aiconfigurator.attention import Attention
from simulator.importers.aiconfigurator.latent_attention import launches_us
from simulator.importers.aiconfigurator.measured_curve import MeasuredCurve
from simulator.importers.aiconfigurator.other_attention import is_plain, mean_attention
from simulator.importers.aiconfigurator.rules import HOST, SGLANG, TRTLLM, beside_experts, eager_layer_us
from simulator.models.model import Model
from simulator.profile.profile import ProfileError
from tests.simulator.builders import QWEN, WINDOWED, listed

BATCHES, LENGTHS = (1, 8, 64), (1, 256, 4096, 16384, 32768)


class Tables:
    """Times of each table as a formula of batch and length, in us."""

    version = "1.0"

    def __init__(self, system: str = "made_up", backend: str = "vllm") -> None:
        self.system, self.backend = system, backend
        self.versions: dict[str, str] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def of_system(self, system: str) -> Tables:
        assert system == "b200_sxm"
        self.other = Tables(system)
        return self.other

    def rows(self, family: str, table: str, **where: Any) -> pd.DataFrame:
        self.asked.append((table, where))
        sizes = [(batch, length) for batch in BATCHES for length in LENGTHS]
        rows = pd.DataFrame(sizes, columns=["batch_size", "length"])
        rows = rows[rows["batch_size"] == where.get("batch_size", rows["batch_size"])]
        batch, length = rows["batch_size"], rows["length"]
        if table == "gdn_perf":
            parts = [
                rows.assign(
                    phase=phase, kernel_source=kernel, seq_len=1 if phase == "generation" else length, time_us=us
                )
                for phase, us in (("generation", 2.0 * batch), ("context", 1.0 * length))
                for kernel in ("convolution", "state")
            ]
            return pd.concat(parts).drop_duplicates(["phase", "kernel_source", "batch_size", "seq_len"])
        if "generation" in table:
            return rows.assign(isl=0, step=length, time_us=100 + batch * length * 1e-3, **_heads(where))
        return rows.assign(isl=length, time_us=100 + batch * 1e-6 * length**2, **_heads(where))


class TimedInBatches(Tables):
    """Nothing was timed for a single sequence."""

    def rows(self, family: str, table: str, **where: Any) -> pd.DataFrame:
        return super().rows(family, table, **where).query("batch_size > 1")


def test_launches_are_those_of_the_layers_with_sparse_attention() -> None:
    tables: Any = Tables()
    assert launches_us(tables, listed("deepseek-v3.2"), 8, "bfloat16") == pytest.approx(100, rel=1e-3)
    assert launches_us(tables, listed("deepseek-v3"), 8, "bfloat16") == 0


def test_layers_are_launched_in_what_the_first_token_of_a_prompt_leaves() -> None:
    deepseek, qwen = listed("deepseek-v3"), listed("qwen3.5-397b-a17b")
    assert eager_layer_us(TRTLLM, deepseek) == pytest.approx((124e3 - 15e3) / 61, rel=0.01)
    assert eager_layer_us(SGLANG, qwen) == pytest.approx((99e3 - 13e3) / 48, rel=0.01)
    others = ((TRTLLM, QWEN), (SGLANG, deepseek), ("vllm", deepseek), ("vllm", qwen))
    assert {eager_layer_us(*each) for each in others} == {HOST.eager_layer_us}


class SparseTables(Tables):
    """A kernel that computes those of 2,048 tokens that are there, with an indexer; and 2,048 among the contexts."""

    def rows(self, family: str, table: str, **where: Any) -> pd.DataFrame:
        rows = super().rows(family, table, **where)
        if "generation" in table:
            more = rows.assign(step=2048, time_us=100 + rows["batch_size"] * 2.048)
            return pd.concat([rows, more]).drop_duplicates(["batch_size", "step"]).sort_values("step")
        length = np.append(rows["isl"].unique(), 2048.0)
        pairs = np.where(length > 2048, length * 2048 - 2048**2 / 2, length**2 / 2)
        of_prompt = dict(zip(length, 0.4 * length + 2e-4 * pairs + 2e-5 * length**2 / 2, strict=True))
        sizes = pd.DataFrame([(batch, n) for batch in BATCHES for n in length], columns=["batch_size", "isl"])
        return sizes.assign(time_us=sizes["batch_size"] * sizes["isl"].map(of_prompt))


def _heads(where: dict[str, Any]) -> dict[str, int]:
    return {"num_heads": 16, "num_key_value_heads": 1} if "head_dim" in where else {}


def compiled(model: Model, ranks: int) -> tuple[Tables, pd.DataFrame, pd.DataFrame]:
    tables = Tables()
    decodes, chunks = mean_attention(tables, Attention(tables), model, ranks, "auto")  # type: ignore[arg-type]
    return tables, decodes, chunks


def at(table: pd.DataFrame, row: dict[str, int], **where: int) -> float:
    """The time of a point, on the line through its neighbours in its row."""
    (row_name, row_value), (axis, value) = *row.items(), *where.items()
    points = table[table[row_name] == row_value]
    return float(np.interp(value, points[axis], points["time_us"]))


@pytest.mark.parametrize(("name", "table"), [("deepseek-v3", "mla"), ("deepseek-v3.2", "dsa"), ("glm-5", "dsa")])
def test_latent_attention_is_timed_as_a_whole_for_the_heads_of_a_rank(name: str, table: str) -> None:
    model = listed(name)
    tables, decodes, chunks = compiled(model, 8)
    assert [asked for asked, _ in tables.asked] == [f"{table}_generation_module_perf", f"{table}_context_module_perf"]
    where = tables.asked[0][1]
    assert where["num_heads"] == model.sizes["num_attention_heads"] / 8
    assert where["gemm_type"] == ("bfloat16" if name == "glm-5" else "fp8_block")
    # Small kernels that a server fuses, no more than a half; sparse prompts are of a batch of 8, which fills a step.
    fused, half, batch = (54.4, 2, 1) if table == "mla" else (0.0, 1, 8)
    assert at(decodes, {"num_decodes": 8}, decode_context=4096) == pytest.approx(100 + 8 * 4.096 - fused, abs=0.1)
    share = (100 + batch * 4096**2 * 1e-6) / batch
    assert at(chunks, {"prefill_context": 0}, prefill_tokens=4096) == pytest.approx(share / half)


@pytest.mark.parametrize("computes_whole", [False, True])
def test_early_queries_compute_the_tokens_that_are_there_or_the_whole_topk(computes_whole: bool) -> None:
    """Of a token: 0.4 us, 0.2 ns for each of 2,048 tokens that are there, 0.02 ns for each that the indexer reads."""
    model = listed("deepseek-v3.2")
    tables: Any = SparseTables()
    decodes, chunks = mean_attention(tables, Attention(tables), model, 8, "auto", of_whole_topk=computes_whole)
    attended = 2048 if computes_whole else 256 / 2
    expected = 256 * (0.4 + 2e-4 * attended + 2e-5 * 256 / 2)
    assert at(chunks, {"prefill_context": 0}, prefill_tokens=256) == pytest.approx(expected, rel=1e-6)
    late = 16384 * (0.4 + 2e-4 * 2048 + 2e-5 * (16384 + 16384 / 2))  # after as many, which tells no difference
    assert at(chunks, {"prefill_context": 16384}, prefill_tokens=16384) == pytest.approx(late, rel=1e-6)
    for context in (256, 4096):
        computed = max(context, 2048) if computes_whole else context
        assert at(decodes, {"num_decodes": 8}, decode_context=context) == pytest.approx(
            100 + 8e-3 * computed, rel=0.005
        )


def test_latent_attention_of_tensorrt_llm_stays_as_it_was_timed() -> None:
    tables = Tables(backend="trtllm")
    decodes, _ = mean_attention(tables, Attention(tables), listed("deepseek-v3"), 8, "auto")  # type: ignore[arg-type]
    assert at(decodes, {"num_decodes": 8}, decode_context=4096) == pytest.approx(100 + 8 * 4.096, abs=0.1)


@pytest.mark.parametrize(("name", "system"), [("deepseek-v3", "b200_sxm"), ("deepseek-v3.2", "b300_sxm")])
def test_latent_attention_of_b300_is_timed_on_b200_unless_it_is_sparse(name: str, system: str) -> None:
    tables = Tables("b300_sxm")
    mean_attention(tables, Attention(tables), listed(name), 8, "auto")  # type: ignore[arg-type]
    asked = tables.other if system == "b200_sxm" else tables
    assert len(asked.asked) == 2 and asked.system == system
    assert tables.versions == ({"mla": "1.0 of b200_sxm"} if system == "b200_sxm" else {})


def test_of_layers_with_states_and_others_the_mean_counts() -> None:
    """Qwen3.5-397B: 45 of 60 layers take 4 us per decode and 2 us per prompt token, wherever a chunk starts."""
    _, decodes, chunks = compiled(listed("qwen3.5-397b-a17b"), 2)
    assert at(decodes, {"num_decodes": 8}, decode_context=4096) == pytest.approx(0.75 * 32 + 0.25 * (100 + 8 * 4.096))
    late = at(chunks, {"prefill_context": 8192}, prefill_tokens=4096) - at(
        chunks, {"prefill_context": 0}, prefill_tokens=4096
    )
    grown = np.interp([8192, 12288], LENGTHS, [100 + 1e-6 * length**2 for length in LENGTHS])
    assert late == pytest.approx(0.25 * max(0.0, grown[1] - grown[0] - 100 - 4096**2 * 1e-6), abs=1.0)


def test_other_kinds_and_formats_are_refused_by_name() -> None:
    with pytest.raises(ProfileError, match="has no times of Mamba2"):
        compiled(listed("nemotron-3-nano-30b-a3b"), 1)
    with pytest.raises(ProfileError, match="no latent attention in fp8 of"):
        compiled(listed("deepseek-v3", "fp8"), 8)
    tables = TimedInBatches()
    with pytest.raises(ProfileError, match="has no gated delta net of .* alone"):
        mean_attention(tables, Attention(tables), listed("qwen3.5-397b-a17b"), 2, "auto")  # type: ignore[arg-type]
    assert is_plain(QWEN) and is_plain(WINDOWED) and not is_plain(listed("gemma-4-26b-a4b"))


def test_products_of_shared_experts_add_nothing_beside_the_others_in_small_steps() -> None:
    curve = MeasuredCurve(np.array([1.0, 128.0, 512.0]), np.array([10.0, 20.0, 80.0]))
    beside = beside_experts(curve)
    assert [float(beside.at(size)) for size in (1, 256, 512)] == [0.001, 0.001, 80.0]
    assert float(beside.at(400)) == pytest.approx(float(curve.at(400)))
