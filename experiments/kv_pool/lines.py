"""The published log lines of vLLM (lines.csv), and what our formula says for the same settings."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import yaml

from simulator.device import Device
from simulator.models.decoder import decoder
from simulator.models.kv_pool import GIB, KVPool
from simulator.models.memory import size_kv_pool
from simulator.models.model import Model
from simulator.models.weight_formats import QUANTIZATIONS
from simulator.profile.graph_sizes import count_graphs
from simulator.versions.vllm_versions import vllm_version

_FOLDER = Path(__file__).parent
_SIZES = (
    "num_layers", "hidden_size", "num_attention_heads", "num_kv_heads", "head_dim", "intermediate_size", "vocab_size",
    "max_position_embeddings",
)  # fmt: skip
_EXPERTS = ("num_experts", "num_experts_per_token", "moe_intermediate_size")
_BLOCK = 16  # tokens, vLLM's default


def read_lines() -> pd.DataFrame:
    """lines.csv; see its header. `tokens` is NaN where only GiB were published."""
    return pd.read_csv(_FOLDER / "lines.csv", dtype={"vllm": str, "fitted": str, "eager": str}).fillna(
        {"fitted": "", "eager": ""}
    )


def with_predictions(lines: pd.DataFrame) -> pd.DataFrame:
    """`lines` with predicted_gib, predicted_tokens and error_pct, of tokens where they were published, else of GiB."""
    pools = [predicted(row) for _, row in lines.iterrows()]
    out = lines.assign(
        predicted_tokens=[pool.num_tokens for pool in pools],
        predicted_gib=[pool.num_blocks * pool.block_bytes / GIB for pool in pools],
    )
    of_tokens, of_gib = out["predicted_tokens"] / out["tokens"] - 1, out["predicted_gib"] / out["kv_gib"] - 1
    return out.assign(error_pct=100 * of_tokens.fillna(of_gib))


def predicted(line: pd.Series) -> KVPool:
    """Our KV pool for the settings of a line."""
    return size_kv_pool(
        shape(line["model"], line["quantization"], line["dtype"], line["kv_cache_dtype"]),
        card(line["card"]),
        block_size=_BLOCK,
        tensor_parallel_size=int(line["gpus"]),
        gpu_memory_utilization=float(line["gpu_memory_utilization"]),
        max_num_batched_tokens=int(line["max_num_batched_tokens"]),
        max_num_seqs=int(line["max_num_seqs"]),
        memory_account=vllm_version(line["vllm"]).memory_account,
        num_graphs=0 if line["eager"] else count_graphs(int(line["max_num_seqs"])),
    )


def shape(name: str, quantization: str, dtype: str, kv_cache_dtype: str) -> Model:
    """A model of shapes.yaml."""
    known = yaml.safe_load((_FOLDER / "shapes.yaml").read_text())[name]
    return decoder(
        name=name,
        tie_word_embeddings=known.get("tied", False),
        dtype="fp32" if dtype == "float32" else "bf16",
        kv_dtype="fp8" if kv_cache_dtype == "fp8" else "auto",
        quantization=QUANTIZATIONS[quantization],
        **dict(zip(_SIZES, known["sizes"], strict=True)),
        **dict(zip(_EXPERTS, known.get("experts", (0, 0, 0)), strict=True)),
    )


def card(name: str) -> Device:
    """A card of cards.yaml; rates, which the pool does not depend on, are 1."""
    known = yaml.safe_load((_FOLDER / "cards.yaml").read_text())[name]
    return Device(
        name=name,
        memory_bytes=round(known["memory_gib"] * GIB),
        memory_bandwidth=1.0,
        flops={"bf16": 1.0, "fp32": 1.0},
        memory_efficiency=1.0,
        flops_efficiency=1.0,
        link_bandwidth=known["link"],
        link_latency_s=0.0,
        step_overhead_s=0.0,
        multiprocessors=known["multiprocessors"],
    )
