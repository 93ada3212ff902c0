"""The door for Python: the results of the command line as objects, nothing printed, no file unless asked."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

import harness
from harness import cli
from harness.config import load
from harness.engines.simulated import SimulatedEngine
from harness.errors import ConfigError, EngineError, TraceError
from harness.results.stored.files import read_results
from tests.harness.builders import CONF, ROOT
from tests.harness.doors import FEW, ROOFLINE, requests
from tests.harness.doors import silent as silent


def test_importing_the_package_brings_none_of_its_libraries() -> None:
    heavy = ("hydra", "omegaconf", "pandas", "numpy", "torch", "matplotlib", "harness.api")
    code = f"import harness, sys; assert not [name for name in {heavy} if name in sys.modules]; import harness.cli"
    code += "; late = ('hydra', 'pandas', 'numpy', 'rich', 'multiprocessing', 'importlib.metadata')"  # not for --help
    code += "; assert not [name for name in late if name in sys.modules]; harness.run"
    code += "; import harness.workload.readers.mooncake; assert not {'pandas', 'pyarrow'} & {*sys.modules}"
    code += "; late = ('torch', 'matplotlib', 'scipy.stats', 'bokeh', 'optuna', 'harness.figures.style')"
    code += "; import harness.figures, harness.studies.sweeps.sweep"
    code += "; assert not [name for name in late if name in sys.modules]"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_run_is_that_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    run = harness.run(*FEW, "scheduler=vllm", "plots=false")
    out = f"hydra.run.dir={tmp_path / 'cli'}"
    monkeypatch.setattr(sys, "argv", ["twinserve", *FEW, "scheduler=vllm", "plots=false", "progress=false", out])
    assert cli.main() == 0
    capfd.readouterr()
    written, summary = read_results(tmp_path / "cli")
    pd.testing.assert_frame_equal(run.requests.drop(columns="error"), written.requests.drop(columns="error"))
    pd.testing.assert_frame_equal(run.steps, written.steps)
    differ = {key for key in summary if summary[key] != run.summary.get(key)} - {"wall_time_s", "config"}
    assert not differ and len(run.requests) == 30


@pytest.mark.long
def test_what_is_saved_is_what_the_command_line_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    run = harness.run(*FEW, "scheduler=vllm")
    assert run.save(tmp_path / "own") == tmp_path / "own"
    monkeypatch.setattr(sys, "argv", ["twinserve", *FEW, "scheduler=vllm", f"hydra.run.dir={tmp_path / 'cli'}"])
    assert cli.main() == 0
    capfd.readouterr()
    names = [{path.name for path in (tmp_path / each).iterdir()} - {".lock"} for each in ("own", "cli")]
    assert names[0] == names[1] and "report.html" in names[0], "files of figures have to be asked for"
    assert not any(name.endswith(".png") for name in names[0])
    assert load(tmp_path / "own/config.yaml") == load(tmp_path / "cli/config.yaml")
    pages = [(tmp_path / each / "report.html").read_text() for each in ("own", "cli")]
    assert all(
        "python run.py trace.num_requests=30 arrival.rate=20 cost=roofline scheduler=vllm" in each for each in pages
    )
    compared = harness.compare(tmp_path / "own", harness.run(*FEW, "scheduler=mixed"))
    assert compared.table["scheduler"].tolist() == ["mixed", "vllm"] and not compared.failed


def test_a_report_is_a_page_and_a_file_only_where_one_is_asked_for(tmp_path: Path) -> None:
    run = harness.run(*FEW)
    page = run.report(tmp_path / "page.html")
    assert page.startswith("<!DOCTYPE html>") and (tmp_path / "page.html").read_text() == page
    assert "NVIDIA H100" in run.report()


def test_a_notebook_and_a_console_show_a_run_in_short() -> None:
    run = harness.run(*FEW)
    assert repr(run).count("\n") == 1 and "30 of 30 requests finished" in repr(run)
    assert run._repr_html_().startswith("<pre>") and "STABLE" in run._repr_html_()
    assert repr(pickle.loads(pickle.dumps(run))) == repr(run)


def test_a_table_is_served_as_the_same_file(tmp_path: Path) -> None:
    table = requests(priority=[0, 1, 2] * 10)
    table.to_csv(tmp_path / "own.csv", index=False)
    for arrival in (["arrival=trace"], ["arrival.rate=10"]):
        runs = [harness.run(*ROOFLINE, *arrival, trace=trace) for trace in (table, tmp_path / "own.csv")]
        pd.testing.assert_frame_equal(runs[0].requests, runs[1].requests)
        assert runs[0].requests["priority"].tolist() == [0, 1, 2] * 10
    assert runs[0].summary["trace"] == "DataFrame"


def test_a_table_is_saved_with_its_run_and_can_be_served_again(tmp_path: Path) -> None:
    table = requests(4, hash_ids=[[1, 2]] * 4, hash_block_size=256, request_id=[9, 8, 7, 6])
    table["num_prompt_tokens"] = 500
    run = harness.run(*ROOFLINE, "arrival=trace", trace=table)
    assert run.requests["num_cached_tokens"].sum() > 0
    assert "request_id of the file not kept: requests are numbered from 0" in run.summary["notes"]
    again = harness.run(*ROOFLINE, "arrival=trace", trace=run.save(tmp_path / "a") / "trace.jsonl")
    pd.testing.assert_frame_equal(run.requests, again.requests)
    assert load(tmp_path / "a/config.yaml").trace.path == str(tmp_path / "a/trace.jsonl")  # type: ignore[union-attr]


def test_columns_of_dates_and_of_other_names_are_read() -> None:
    table = requests()
    plain = harness.run(*ROOFLINE, "arrival=trace", trace=table)
    dates = table.assign(arrival_time=pd.Timestamp("2026-01-01") + pd.to_timedelta(table["arrival_time"], unit="s"))
    named = table.rename(columns={"num_prompt_tokens": "prompt"}).assign(arrival_time=table["arrival_time"] * 1000)
    how = ("trace.columns={prompt: num_prompt_tokens}", "trace.time_unit=ms")
    for other in (
        harness.run(*ROOFLINE, "arrival=trace", trace=dates),
        harness.run(*ROOFLINE, "arrival=trace", *how, trace=named),
    ):
        np.testing.assert_allclose(other.requests["arrival_time"], plain.requests["arrival_time"], atol=1e-9)
        assert other.requests["num_prompt_tokens"].tolist() == plain.requests["num_prompt_tokens"].tolist()


def test_bad_rows_of_a_table_are_counted_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    table = requests(200).astype({"num_prompt_tokens": float})
    table.loc[3, "num_prompt_tokens"] = np.nan
    with caplog.at_level(logging.CRITICAL, logger="harness"):
        run = harness.run(*ROOFLINE, trace=table)
    assert run.summary["bad_rows"] == {"num_prompt_tokens is missing": 1} and len(run.requests) == 199


REFUSED: list[tuple[list[Any], Any, str]] = [
    (["blok_size=3"], None, "^blok_size: unknown key; did you mean 'block_size'"),
    (["arrival=closed_loop", "arrival.concurrency=3", "arrival.rtae=1"], None, "^arrival.rtae: unknown key"),
    (["block_size=0"], None, "^block_size=0: must be an integer >= 1"),
    (["block_size=16,32"], None, "^block_size=16,32: several values make a sweep"),
    (["task=capacity", "metrics.slo.ttft_ms=5"], None, "^task=capacity: harness.api has run"),
    (["trace=mooncake"], None, "^trace.path: missing"),
    (["trace=csv"], requests(2), "^trace: given twice"),
    (["trace.path=a"], "b.csv", "^trace.path: given twice"),
    ([], [{"num_prompt_tokens": 1}], "^trace: must be a DataFrame or the path of a file, not list$"),
    ([None], None, "^None: an override is text, such as 'model=qwen3-8b'$"),
    ([], "b.txt", "^trace='b.txt': choose its reader, such as 'trace=mooncake'"),
    (["import_vllm=vllm serve nobody/knows"], None, "^import_vllm: model 'nobody/knows' is none of"),
]


@pytest.mark.parametrize(("overrides", "trace", "expected"), REFUSED, ids=lambda value: str(value)[:30])
def test_errors_are_those_of_the_configuration(overrides: list[str], trace: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        harness.run(*overrides, trace=trace)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (requests().drop(columns="num_output_tokens"), "DataFrame: no column num_output_tokens"),
        (requests(prio=1), "DataFrame: unknown column 'prio'; did you mean 'priority'"),
        (requests().assign(num_prompt_tokens=0), "DataFrame: no usable row .30 x num_prompt_tokens is 0"),
        (requests(0), "DataFrame: no usable row"),
    ],
)
def test_a_table_that_is_no_trace_is_refused(table: pd.DataFrame, expected: str) -> None:
    with pytest.raises(TraceError, match=f"^{expected}"):
        harness.run(*ROOFLINE, trace=table)


def test_a_command_of_vllm_is_an_override_and_its_notes_are_in_the_summary() -> None:
    run = harness.run("import_vllm=vllm serve Qwen/Qwen3-8B --max-num-seqs 64 --port 80", *FEW)
    assert run.config.max_num_seqs == 64
    assert "--port: left out" in run.summary["notes"]


def test_hydra_of_the_caller_stays_as_it_is() -> None:
    with initialize_config_dir(config_dir=str(CONF), version_base=None):
        before = GlobalHydra.instance().hydra
        harness.run(*FEW)
        assert GlobalHydra.instance().hydra is before
        assert hydra_compose("config", ["seed=3"]).seed == 3


def test_a_failed_engine_says_so_and_keeps_what_it_served(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(engine: SimulatedEngine) -> None:
        raise EngineError("rank 1 is dead")

    monkeypatch.setattr(SimulatedEngine, "run", fail)
    with pytest.raises(EngineError, match="^rank 1 is dead$") as caught:
        harness.run(*FEW)
    assert caught.value.partial.summary["ended_early"] == "rank 1 is dead"
    assert "INCOMPLETE, rank 1 is dead" in repr(caught.value.partial)
