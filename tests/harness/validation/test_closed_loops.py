"""Public measurements of closed loops: reading, rows left out, rows that cannot be right, and a whole simulation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.config import parse
from harness.errors import MeasuredRunError
from harness.measured.inferencex import Labels, read_rows
from harness.studies.comparison.drawing import draw
from harness.validation.closed_loops import simulate_row, system_of, with_errors
from harness.validation.validate import validate
from tests.harness.builders import composed
from tests.harness.measured.builders import ROW

DAYS = ("2026-03-27", "2026-04-03", "2026-04-22")
SETTINGS = (
    "model=llama-3.1-70b", "++model.quantization=fp8", "device=h100-80gb", "scheduler=vllm", "cost=profiled",
    "plots=false",
)  # fmt: skip


def written(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "rows.csv"
    pd.DataFrame([{**ROW, "id": str(i), **row} for i, row in enumerate(rows)]).to_csv(path, index=False)
    return path


def test_rows_that_other_parallelism_served_are_left_out(tmp_path: Path) -> None:
    path = written(
        tmp_path, {}, {"moe_ep_size": 4}, {"attention_dp_size": 2}, {"pp_size": 2}, {"moe_tp_size": 4},
        {"mode": "disagg"}, {"isl": 0}, {"isl": 10**400},
    )  # fmt: skip
    rows = read_rows(path, {"backend": "vllm"})
    assert rows.table["id"].tolist() == ["0"]
    assert rows.left_out == {
        "not numbers above 0": 2,
        "prefill and decode on different GPUs": 1,
        "pipeline, data or expert parallelism": 4,
    }


def test_gpus_that_share_out_experts_alone_and_as_ranks_with_clients_of_their_own(tmp_path: Path) -> None:
    shared, ranks = {"moe_ep_size": 2}, {"moe_ep_size": 4, "attention_dp_size": 2, "backend_version": "x"}
    rows = read_rows(written(tmp_path, {}, shared, ranks), {}).table.set_index("id")
    columns = ["tensor_parallel_size", "data_parallel_size", "expert_parallel", "concurrency"]
    found = {str(name): tuple(row) for name, row in rows[columns].iterrows()}
    assert found == {"0": (2, 1, False, 4), "1": (2, 1, True, 4), "2": (1, 2, True, 8)}
    other = read_rows(
        written(tmp_path, {"backend": "sglang"}, *({**each, "backend": "sglang"} for each in (shared, ranks))), {}
    )
    assert other.table["id"].tolist() == ["0"]


def test_scripts_say_which_layouts_rows_had_that_are_labelled_with_ranks(tmp_path: Path) -> None:
    ranks = {"moe_ep_size": 4, "attention_dp_size": 2}
    path = written(tmp_path, {}, {"moe_ep_size": 2, "osl": 8}, ranks, {**ranks, "batch_size": 8}, {**ranks, "isl": 512})
    columns = ["tensor_parallel_size", "data_parallel_size", "expert_parallel", "concurrency"]
    wanted = [
        (Labels({256: 16}), {(2, 1, False, 4), (2, 1, True, 4), (2, 1, True, 8), (1, 2, True, 16)}),
        (Labels({}), {(2, 1, False, 4), (2, 1, True, 4), (2, 1, True, 8), (2, 1, True, 16)}),
        (Labels({}, shares_experts=False), {(2, 1, False, 4), (2, 1, False, 8), (2, 1, False, 16)}),
    ]
    for labels, found in wanted:
        rows = read_rows(path, {}, labels).table
        assert set(rows[columns].itertuples(index=False, name=None)) == found


def test_rows_are_chosen_by_the_start_of_the_day_on_which_they_were_measured(tmp_path: Path) -> None:
    told = "db-dump/2026-04-27; measured={}T00:00:00.000Z; image=vllm/vllm-openai:v0.17.0"
    days = [{"silicon_data_source": told.format(day), "osl": place + 8} for place, day in enumerate(DAYS)]
    path = written(tmp_path, *days, {"silicon_data_source": "gap-analysis.csv"})
    for start, ids in (("2026-04", ["1", "2"]), ("2026-04-2", ["2"]), ("", ["0", "1", "2", "3"])):
        assert sorted(read_rows(path, {"day": start}).table["id"]) == ids
    with pytest.raises(MeasuredRunError, match="no row with day=2025"):
        read_rows(path, {"day": "2025"})


def test_rows_of_ranks_are_simulated_as_ranks(tmp_path: Path) -> None:
    settings = ("model=qwen3-30b-a3b", "device=h100-80gb", "scheduler=vllm", "cost=roofline", "plots=false")
    config = parse(composed(*settings))
    path = written(tmp_path, {"moe_ep_size": 4, "attention_dp_size": 2, "batch_size": 2})
    row: Any = next(read_rows(path, {}).table.itertuples(index=False))
    system = system_of(config, row)
    assert (system.data_parallel_size, system.model.num_expert_ranks, system.tensor_parallel_size) == (2, 2, 1)
    alone = system_of(config, row._replace(data_parallel_size=1, expert_parallel=False))
    ranks, single = (simulate_row(each, row, config.validation, 0)["simulated_tpot_ms"] for each in (system, alone))
    assert 0.4 * single < ranks < single  # half of the experts are read, and half of the clients are on each rank


def test_what_is_no_file_is_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.csv")
    with pytest.raises(MeasuredRunError, match=r"rows.csv: cannot be read: not a regular file$"):
        read_rows(tmp_path / "rows.csv", {})


def test_a_precision_that_the_file_leaves_empty_is_called_nan(tmp_path: Path) -> None:
    path = written(tmp_path, {"precision": None}, {})
    settings = parse(
        composed(
            *SETTINGS, f"validation.measured=inferencex:{path}", "task=validate", "validation.select.precision=nan"
        )
    )
    assert read_rows(path, settings.validation.select).table["id"].tolist() == ["0"]
    with pytest.raises(MeasuredRunError, match=r"validation.select.precision=: fp8, nan"):
        read_rows(path, {})


@pytest.mark.parametrize(
    ("select", "message"),
    [
        ({"gpu": "x"}, "no such column"),
        ({"system": "x"}, "no row"),
        ({}, r"choose one with validation.select.system=: "),
    ],
)
def test_a_wrong_selection_is_one_line(tmp_path: Path, select: dict[str, str], message: str) -> None:
    path = written(tmp_path, {}, {"system": "h200_sxm"})
    with pytest.raises(MeasuredRunError, match=message):
        read_rows(path, select)


def simulated(tmp_path: Path, **row: Any) -> pd.Series[Any]:
    config = parse(composed(*SETTINGS))
    rows = read_rows(written(tmp_path, row), {}).table
    found = [simulate_row(system_of(config, each), each, config.validation, 0) for each in rows.itertuples()]
    return with_errors(rows, found).iloc[0]


def test_a_row_is_simulated_with_the_profile_of_its_gpu(tmp_path: Path) -> None:
    row = simulated(tmp_path)
    assert 15 < row["simulated_tpot_ms"] < 22  # 70 GB of weights at 3.35 TB/s on two GPUs take 10.5 ms at least
    assert row["simulated_ttft_ms"] > row["simulated_tpot_ms"]
    assert row["tpot_error_pct"] == pytest.approx(100 * (row["simulated_tpot_ms"] / 18 - 1))
    assert row["implied_share_of_bandwidth"] < 1


def test_a_row_faster_than_the_memory_is_seen(tmp_path: Path) -> None:
    assert simulated(tmp_path, silicon_tpot_ms=8.0)["implied_share_of_bandwidth"] > 1


def test_a_row_faster_than_the_arithmetic_is_seen(tmp_path: Path) -> None:
    row = simulated(tmp_path, isl=8000, batch_size=64, silicon_ttft_ms=20.0)
    assert row["implied_share_of_flops"] > 1


def test_the_figure_of_rows_is_drawn_again(tmp_path: Path) -> None:
    path = written(tmp_path, {}, {"batch_size": 2})
    settings = parse(composed(*SETTINGS, "plots=true", f"validation.measured=inferencex:{path}", "task=validate"))
    (tmp_path / "out").mkdir()
    validate(settings, tmp_path / "out")
    draw(parse(composed("task=plot", f"results=[{tmp_path / 'out'}]")), tmp_path / "again")
    (again,) = (tmp_path / "again").iterdir()
    assert again.read_bytes() == (tmp_path / "out" / "validation_rows.png").read_bytes()


def test_seats_and_tokens_of_a_step_are_those_of_the_server(tmp_path: Path) -> None:
    row = next(read_rows(written(tmp_path, {"isl": 1024, "batch_size": 8}), {}).table.itertuples())
    system = system_of(parse(composed(*SETTINGS)), row)
    assert (system.max_num_seqs, system.max_num_batched_tokens) == (8, 8192)
    told = ("task=validate", "validation.measured=inferencex:a.csv", "validation.seats=512")
    system = system_of(parse(composed(*SETTINGS, *told, "validation.tokens_beyond_prompt=2012")), row)
    assert (system.max_num_seqs, system.max_num_batched_tokens) == (512, 3036)


def test_repeated_rows_are_simulated_once(tmp_path: Path) -> None:
    rows = read_rows(written(tmp_path, {}, {}, {"isl": 512}), {})
    assert rows.table["id"].tolist() == ["0", "2"] and rows.left_out == {"repeated": 1}


def test_errors_are_of_sound_rows_only(tmp_path: Path) -> None:
    path = written(tmp_path, {}, {"isl": 255, "silicon_tpot_ms": 8.0})
    (tmp_path / "out").mkdir()
    document = validate(
        parse(composed(*SETTINGS, f"validation.measured=inferencex:{path}", "task=validate")), tmp_path / "out"
    )
    assert list(document["excluded"].values()) == [["1"]]
    errors = pd.read_csv(tmp_path / "out" / "errors.csv").set_index("id")
    assert document["errors"]["tpot"]["median_abs_pct"] == pytest.approx(abs(errors["tpot_error_pct"][0]))
