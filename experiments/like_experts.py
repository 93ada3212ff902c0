"""How far off are experts that are priced as others that are alike? Each model's measured ones against those that its
own rows are left out for.

    python -m experiments.like_experts      half a minute; by the tables in simulator/profiles/operators
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from unittest import mock

import numpy as np
import pandas as pd

from experiments import RESULTS, composed, provenance, write_result
from harness.engines.resolving.shapes import model_shape
from simulator.importers.aiconfigurator import like_experts
from simulator.importers.aiconfigurator.database import Database
from simulator.importers.aiconfigurator.experts import experts
from simulator.importers.aiconfigurator.shipped import FOLDER
from simulator.models.experts import Experts
from simulator.models.model import Model
from simulator.models.weight_formats import QUANTIZATIONS
from simulator.profile.profile import ProfileError

MODELS = (
    "qwen3-30b-a3b", "qwen3-235b-a22b", "mixtral-8x7b", "mixtral-8x22b", "deepseek-v3", "glm-4.5", "minimax-m2.5",
    "kimi-k2", "qwen3-next-80b-a3b", "llama-4-scout", "llama-4-maverick", "qwen3.5-397b-a17b", "gpt-oss-120b",
)  # fmt: skip
SYSTEMS = ("h100_sxm", "h200_sxm", "b200_sxm", "a100_sxm", "l40s", "rtx_pro_6000_server")
TOKENS = np.array([1, 4, 16, 64, 256, 1024, 4096, 8192], dtype=float)


def main() -> None:
    rows = [row for system in SYSTEMS for row in _errors(system)]
    table = pd.DataFrame(rows)
    print(table.to_string(index=False))
    with_times = table[table["median_error_pct"].notna()]
    summary = with_times.groupby("system")["median_error_pct"].describe(percentiles=[0.5, 0.9])[["50%", "90%"]]
    print(summary.round(1))
    counts = {"compared": len(with_times), "none_alike": int(table["median_error_pct"].isna().sum())}
    by_system = {name: {"median": row["50%"], "p90": row["90%"]} for name, row in summary.iterrows()}
    found = {**provenance("experiments.like_experts"), "counts": counts, "systems": by_system}
    write_result(RESULTS / "like_experts.json", {**found, "rows": table.to_dict("records")})


def _errors(system: str) -> Iterator[dict[str, object]]:
    database = Database(FOLDER, system)
    for model in _models():
        for ranks in (1, 2, 4, 8):
            with suppress(ProfileError):
                measured, _ = experts(database, model, ranks)
                row = {"system": system, "model": model.name, "format": model.quantization.name, "ranks": ranks}
                yield row | {"median_error_pct": _error(database, model, ranks, measured.at(TOKENS))}


def _models() -> Iterator[Model]:
    for name in MODELS:
        config = composed(f"model={name}")
        model = model_shape(config.model, config.weight_format, "auto")
        for quantization in ("none", "fp8") if model.quantization.name == "none" else (model.quantization.name,):
            yield replace(model, quantization=QUANTIZATIONS[quantization])


def _error(database: Database, model: Model, ranks: int, measured: np.ndarray) -> float | None:
    """Median over numbers of tokens, in %; None where no other experts are alike."""
    block, all_rows = model.first(Experts), like_experts.timed_rows
    assert block is not None
    own = {
        "hidden_size": model.hidden_size, "inter_size": block.intermediate_size, "topk": block.num_used,
        "num_experts": block.num_experts,
    }  # fmt: skip

    def others(database: Database, model: Model) -> pd.DataFrame:
        rows = all_rows(database, model)
        return rows[~(rows[list(own)] == pd.Series(own)).all(axis=1)]

    try:
        with mock.patch.object(like_experts, "timed_rows", others):
            simulated = like_experts.like_experts(database, model, ranks).at(TOKENS)
    except ProfileError:
        return None
    return float(100 * np.median(np.abs(simulated / measured - 1)))


if __name__ == "__main__":
    main()
