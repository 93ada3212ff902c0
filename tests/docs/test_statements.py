"""What the README and docs/ say of columns, keys, studies and stored figures is so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from harness.config.command_lines.vllm import import_line as vllm_import
from harness.config.schema.traffic.trace_files import MESSAGES, TRACE_COLUMNS
from tests.docs.pages import ROOT, text_of
from tests.harness.builders import config, execute_in


def test_the_study_on_the_page_is_the_stored_one() -> None:
    found = json.loads((ROOT / "experiments" / "results" / "capacity_study.json").read_text())
    page = text_of("choose_a_configuration.md")
    assert f"> {found['sentence']}" in page and f"    {found['command']}\n" in page and len(found["rows"]) == 12
    for row in found["rows"]:
        name = " · ".join(map(str, row["overrides"].values()))
        numbers = f"{row['capacity']:.1f} | {row['low']:.1f} to {row['high']:.1f} | {row['interactivity']:.0f}"
        assert f"| {name} | {numbers} |" in page.replace("\xa0", " ")
    words = vllm_import.overrides(found["command"])
    best = found["rows"][found["best"]]["overrides"]
    assert f"max_num_seqs={best['max_num_seqs']}" in words and "model=qwen3-8b" in words


def test_errors_in_the_readme_and_on_the_page_are_those_of_the_board() -> None:
    table = pd.read_csv(ROOT / "experiments" / "results" / "board" / "points.csv")
    counted = table[table["excluded"].isna() & (table["engine"] == "vLLM") & ~table["load"].isin(("fleet", "apart"))]
    kernels = counted[counted["cost"] == "kernels"]
    parts = {  # rows of the README and of the page
        ("| vLLM by measured kernels", "| **all of vLLM by kernels**"): kernels,
        ("| of them dense", "| dense models"): kernels[kernels["kind"] == "dense"],
        ("| with experts", "| models with experts"): kernels[kernels["kind"].str.startswith("expert")],
        ("| vLLM by the roofline", "| vLLM by the roofline"): counted[counted["cost"] == "roofline"],
    }
    for starts, part in parts.items():
        for start, text in zip(starts, (text_of("README.md"), text_of("fidelity.md")), strict=True):
            (row,) = (line for line in text.splitlines() if line.startswith(start))
            assert f"| {len(part):,} |" in row
            for metric in ("tpot", "ttft", "throughput"):
                found = part[f"{metric}_error_pct"].dropna().abs()
                assert f"{found.median():.1f} / {found.quantile(0.9):.1f}" in row, metric


def documented(page_part: str) -> set[str]:
    """Names in the first column of a part's tables."""
    rows = [line.split("|")[1] for line in page_part.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def part(heading: str) -> str:
    return text_of("outputs.md").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a trace that has every column, with an SLO."""
    folder = tmp_path_factory.mktemp("run")
    names = "num_prompt_tokens,num_output_tokens,arrival_time,priority,tenant,deadline,session_id,turn"
    rows = [f"{40 + row},4,{row / 10},0,{row % 2},5,{row},0" for row in range(12)]
    (folder / "trace.csv").write_text("\n".join([names, *rows, ""]))
    limits = [f"metrics.slo.{name}_ms=5000" for name in ("ttft", "tpot", "e2el")]
    execute_in(folder / "out", config("trace=csv", f"trace.path={folder}/trace.csv", "arrival=trace", *limits))
    return folder / "out"


@pytest.mark.parametrize("table", ["requests", "steps", "gaps"])
def test_the_page_on_outputs_has_the_columns_of_the_tables(run_folder: Path, table: str) -> None:
    assert documented(part(f"{table}.parquet")) == set(pd.read_parquet(run_folder / f"{table}.parquet").columns)


_OF_SOME_RUNS = ("Several servers", "Servers that come and go", "Sessions")


def test_the_page_on_outputs_has_the_keys_of_the_summary(run_folder: Path) -> None:
    summary = json.loads((run_folder / "summary.json").read_text())
    page = part("summary.json")
    parts = {heading: page.partition(f"### {heading}\n")[2].partition("\n### ")[0] for heading in _OF_SOME_RUNS}
    of_some = {name for text in parts.values() for name in documented(text)}
    names = documented(page) - of_some - {"sampled_steps"}  # of engine=openai
    assert all(documented(text) for text in parts.values())
    lagging = {name for name in names if "replay_lag" in name}  # of the real engine only
    patterns = {name for name in names if "<statistic>" in name}
    told = {key for key in summary if re.sub(r"^(mean|std|median|p\d+)_", "<statistic>_", key) in patterns}
    assert len(lagging) == 3 and names - lagging - patterns == summary.keys() - told
    used = {re.sub(r"^(mean|std|median|p\d+)_", "<statistic>_", key) for key in told}
    assert used == patterns


def test_units_of_the_trace_table_are_on_its_page() -> None:
    columns = documented(text_of("traces.md").partition("## Your own file")[2].partition("\n## ")[0])
    assert columns == {*TRACE_COLUMNS, MESSAGES}


def test_figures_on_verdicts_are_those_stored() -> None:
    stored = ROOT / "experiments" / "results" / "verdict.json"
    rows = json.loads(stored.read_text())["rows"]
    runs, right = (sum(row[key] for row in rows) for key in ("runs", "right"))
    page = " ".join(text_of("run_length.md").split())
    assert f"Of {runs} runs of twelve systems" in page and right == runs
    for num_requests in (500, 2000):
        for key in ("p99_ttft_ms", "p50_tpot_ms", "mean_ttft_ms"):
            of = [row["intervals"][key] for row in rows if row["num_requests"] == num_requests]
            held, told = (sum(pair[side] for pair in of) for side in (0, 1))
            assert f"{held} of {told}" in page or f"{held} of {told}" in page.replace(" runs", ""), (key, held, told)
