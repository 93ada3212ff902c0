"""Rows with prompts and decodes on different GPUs, and which of them are simulated."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.inferencex.apart import FILE, Side, points, rows, selections, unsimulated
from tests.harness.measured.builders import ROW

SIDE = {"num_workers": 1, "tp_size": 4, "pp_size": 1, "attention_dp_size": 1, "moe_tp_size": 4, "moe_ep_size": 1}
APART = {
    **ROW, "id": "q_h200_c4_1", "mode": "disagg", "backend": "vllm", "model_path": "Qwen/Qwen3-235B-A22B-FP8",
    "system": "h200_sxm", "isl": 200, "osl": 4,
    **{f"{name}_{key}": value for name in ("prefill", "decode") for key, value in SIDE.items()},
}  # fmt: skip
RANKS = {"decode_tp_size": 1, "decode_attention_dp_size": 4, "decode_moe_tp_size": 1, "decode_moe_ep_size": 4}


def table(tmp_path: Path, *changes: Any) -> Path:
    path = tmp_path / "rows.csv"
    pd.DataFrame([{**APART, **change} for change in changes]).to_csv(path, index=False)
    return path


def test_a_row_that_tells_too_little_of_its_servers_is_left_out(tmp_path: Path) -> None:
    path = table(
        tmp_path, {}, RANKS, {"prefill_num_workers": None}, {"id": "q_c_1"}, {"id": "q_c9000_1"},
        {**RANKS, "decode_moe_ep_size": 1}, {**RANKS, "decode_attention_dp_size": 16, "decode_moe_ep_size": 16},
        {"mode": "agg"},
    )  # fmt: skip
    reasons = [unsimulated(row) for row in rows(path).itertuples(index=False)]
    parts = (
        "",
        "",
        "on how many is not told",
        "clients is not told",
        "1,024 clients",
        "part of every expert",
        "8 GPUs",
    )
    assert len(reasons) == len(parts) and all(part in reason for part, reason in zip(parts, reasons, strict=True))
    assert not reasons[0] and not reasons[1]


def test_selections_can_be_sent_to_processes(tmp_path: Path) -> None:
    found = list(selections(table(tmp_path, {}, {}, {"system": "b200_sxm"})))
    assert pickle.loads(pickle.dumps(found)) == found and len(found) == 2


def test_a_recipe_says_more_of_a_server_than_its_row() -> None:
    recipe = pd.Series({"decode_ranks": 4, "decode_seats": 16.0, "decode_tokens": np.nan})
    assert Side(2, 4, 1, True).by(recipe, "decode") == Side(2, 1, 4, True, seats=16, tokens=None)
    recipes = pd.read_csv(FILE)
    assert recipes["id"].is_unique and len(recipes) > 200
    assert (recipes[["prefill_ranks", "decode_ranks"]] >= 1).all(axis=None)


@pytest.mark.long
def test_a_row_is_a_fleet_with_pools_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.inferencex.apart.kernels", lambda *of: "auto")
    path = table(tmp_path, {}, RANKS)
    found = points(path, ("vllm", "Qwen/Qwen3-235B-A22B-FP8", "fp8", "h200_sxm"))
    assert [point.num_gpus for point in found.points] == [8, 8] and not found.left_out
    assert [point.kind.kind for point in found.points] == ["expert", "expert-parallel"]
    tpot = [point.predicted["tpot"] for point in found.points]
    assert min(tpot) > 1 and tpot[0] != tpot[1]
