"""The README and docs/: their commands run, and what they say of columns, keys, figures and studies is so."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from hydra.core.hydra_config import HydraConfig

from engine.core import policies
from experiments import capacity_study
from harness import cli
from harness.config import parse, targets
from harness.config.command_lines import vllm_import
from harness.config.schema.workload import MESSAGES, TRACE_COLUMNS
from tests.docs.pages import PAGES, ROOT, commands, text_of, write_files
from tests.docs.samples import write_samples
from tests.harness.builders import CONF, composed, config, execute_in

# Commands whose configuration is composed and checked, and that do not run: what they hold, and why.
NOT_RUN = {
    "hydra/launcher=": "tests/docs/test_sweeps_on_machines.py runs the launchers that are installed; Slurm needs a "
    "cluster",
    "engine.weights=": "needs the weights of a model",
    "task=import": "needs aiconfigurator-core; tests/simulator/importers/test_importers.py has a part of its tables",
    "task=profile": "measures for two minutes; tests/simulator/profiler/test_profiler_task.py has a clock of its own",
    "cost.profile=llmservingsim:": "needs a profile of LLMServingSim; tests/simulator/importers/test_importers.py "
    "makes one up",
    "arrival=closed_loop": "searches long; tests/harness/studies/capacity/test_capacity.py has closed loops",
    "model=llama-3.1-70b": "the same as the command before it, with a larger model",
}
SMALL = {
    "trace.num_requests": "20", "plots": "false", "progress": "false",
    "search.trials": "2", "capacity.num_requests": "100", "capacity.max_probes": "6", "capacity.workers": "1",
    "capacity.confirm": "0", "calibration.max_evaluations": "3", "metrics.interval.max_requests": "1000",
    "metrics.warmup": "0.2", "metrics.drain": "0.2",
}  # fmt: skip
# Of runs of the real engine: ten requests of a few tokens.
SMALL_AND_REAL = (
    "trace=synthetic", "trace/lengths@trace.prompt=constant", "trace/lengths@trace.output=constant",
    "trace.prompt.value=24", "trace.output.value=6", "arrival.rate=40", "num_blocks=500", "engine.num_threads=1",
    "engine.warm_up=false",
)  # fmt: skip


def small(arguments: list[str]) -> list[str]:
    """The same command with few requests and short searches, and two jobs where it is a sweep, one of searches."""
    if "--help" in arguments:
        return arguments
    words = " ".join(arguments)
    keys = {"plots", "progress"} if "figures=" not in words and "task=plot" not in words else {"progress"}
    keys |= {key for key in SMALL if any(word.startswith(f"{key}=") for word in arguments)} - {"figures"}
    if not re.search(
        r"task=(report|plot|validate|calibrate)|trace=(mooncake|azure|bailian|baseten|csv|jsonl|custom)|my_log", words
    ):
        keys.add("trace.num_requests")
    if re.search(r"task=(capacity|search)|capacity_study", words):
        keys |= {key for key in SMALL if key.startswith("capacity.")}
    if "task=calibrate" in words:
        keys.add("calibration.max_evaluations")
    if "num_requests=auto" in words:
        keys = keys - {"trace.num_requests"} | {"metrics.interval.max_requests"}
    most = 1 if "capacity" in words else 2
    kept = _few_jobs([word for word in arguments if word.partition("=")[0] not in keys], most)
    if "engine=cpu" in arguments:
        kept = [*(word for word in kept if not word.startswith("arrival.rate=")), *SMALL_AND_REAL]
    return [*kept, *_fewer_jobs(arguments, most), *(f"{key}={SMALL[key]}" for key in sorted(keys))]


def _few_jobs(arguments: list[str], most: int) -> list[str]:
    """At most so many values of the first key that is swept, and one of all others."""
    swept = [word for word in arguments if re.fullmatch(r"[\w.]+=[\w.-]+(,[\w.-]+)+", word)]
    return [
        ",".join(word.split(",")[: most if word == swept[0] else 1]) if word in swept else word for word in arguments
    ]


def _fewer_jobs(arguments: list[str], most: int) -> list[str]:
    """For an experiment that is a sweep: one value of each key, and at most so many of the last."""
    name = next((word.partition("=")[2] for word in arguments if word.startswith("experiment=")), None)
    if name is None:
        return []
    setup = yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text(encoding="utf-8"))
    swept = setup.get("hydra", {}).get("sweeper", {}).get("params", {})
    first = {key: str(values).split(",") for key, values in swept.items()}
    return [f"{key}={','.join(values[: most if key == list(first)[-1] else 1])}" for key, values in first.items()]


def compose_only(arguments: list[str]) -> None:
    words = [word for word in arguments if not word.startswith(("-", "hydra"))]
    words = [word for word in words if not word.startswith("+hydra")]
    parse(composed(*(re.sub(r"^([\w.]+=[\w.-]+),.*", r"\1", word) for word in words)))


@pytest.fixture
def forgetting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Code of a page is forgotten afterwards."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(targets, "_imported", {})
    known = dict(policies.POLICIES)
    yield
    HydraConfig.instance().cfg = None
    sys.modules.pop("own", None)
    policies.POLICIES.clear()
    policies.POLICIES.update(known)


def first_shown() -> dict[str, list[list[str]]]:
    """Commands of this project by page, each on the first page that shows it."""
    pages: dict[str, list[list[str]]] = {}
    for page in PAGES:
        before = [words for others in pages.values() for words in others]
        own = [words for words in commands(page) if words[0] == "twinserve" and words not in before]
        pages |= {page: own} if own else {}
    return pages


@pytest.mark.usefixtures("forgetting")
@pytest.mark.parametrize("page", first_shown())
def test_the_commands_of_a_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], page: str
) -> None:
    write_samples(tmp_path)
    write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    for arguments in first_shown()[page]:
        if any(reason in " ".join(arguments) for reason in NOT_RUN):
            compose_only(arguments[1:])
            continue
        monkeypatch.setattr(sys, "argv", small(arguments))
        assert cli.main() == 0, f"{sys.argv}\n{capsys.readouterr().err}"


@pytest.mark.usefixtures("forgetting")
def test_the_readme_shows_what_the_default_run_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["twinserve", "plots=false", "progress=false"])
    assert cli.main() == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    shown = text_of("README.md").partition("```text\n")[2].partition("```")[0].splitlines()
    assert len(shown) > 15 and [line for line in shown if line not in printed] == []


def test_every_reason_not_to_run_a_command_has_one() -> None:
    shown = [" ".join(words) for page in PAGES for words in commands(page)]
    assert all(any(reason in each for each in shown) for reason in NOT_RUN)


def test_other_programs_have_what_commands_name() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page in PAGES:
        for program, *arguments in commands(page):
            words = " ".join(arguments)
            assert program != "pip" or all(name in extras for name in re.findall(r"\[(\w[\w-]*)\]", words)), words
            if program == "python" and arguments[0] == "-m":
                assert importlib.util.find_spec(arguments[1]), words
            assert program != "python" or arguments[0] in ("-m", "run.py"), words


def test_the_study_on_the_page_is_the_stored_one() -> None:
    """Without a stored study the page has none."""
    page = text_of("choose_a_configuration.md")
    if not (ROOT / capacity_study.STORED).exists():
        assert capacity_study.BEGIN + capacity_study.END in page
        return
    found = json.loads((ROOT / capacity_study.STORED).read_text())
    assert page == capacity_study.replaced(page, capacity_study.section(found))
    assert len(found["rows"]) == 12 and (ROOT / capacity_study.FIGURE).exists()
    words = vllm_import.overrides(found["command"])
    best = found["rows"][found["best"]]["overrides"]
    assert f"max_num_seqs={best['max_num_seqs']}" in words and "model=qwen3-8b" in words


def test_a_study_is_written_between_the_marks_of_the_page() -> None:
    row: dict[str, Any] = {
        "overrides": {"max_num_seqs": "256", "max_num_batched_tokens": "2048", "quantization": "none"}
    }
    numbers = {"capacity": 30.0, "low": 29.5, "high": 30.5, "interactivity": 50.0, "num_probes": 9}
    row |= {**numbers, "cost_per_million_tokens": 0.1, "joules_per_token": 0.05, "probes": [{}]}
    found: dict[str, Any] = {
        "rows": [row],
        "unit": "requests/s",
        "sentence": "Best: 256.",
        "command": "vllm serve",
        "wall_s": 170.0,
    }
    found |= {"environment": {"cpu_cores": 2, "cpu_model": "a processor"}}
    page = text_of("choose_a_configuration.md")
    written = capacity_study.replaced(page, capacity_study.section(capacity_study.without_probes(found)))
    assert "| 30.0 | 29.5 to 30.5 | 50 | 0.100 | 0.050 | 9 |" in written and "it took 170 s" in written
    assert capacity_study.replaced(written, capacity_study.section(found)) == written


def test_errors_in_the_readme_are_those_of_the_page_on_fidelity() -> None:
    readme = text_of("README.md").partition("## What is validated")[2].partition("\n## ")[0]
    rows = [line for line in readme.splitlines() if line.startswith("|")]
    fidelity = text_of("fidelity.md").splitlines()
    assert len(rows) > 6 and all(row in fidelity for row in rows)


def test_pages_are_in_the_navigation_and_their_images_exist() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page, path in PAGES.items():
        assert page == "README.md" or re.search(rf": {page}$", navigation, re.MULTILINE), page
        for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", text_of(page)):
            assert (path.parent / target).exists(), f"{page}: {target}"


def test_the_files_that_pages_name_exist() -> None:
    rooms = "engine|tests|conf|harness|simulator|experiments|kernels"
    for page in PAGES.keys() - {"extend.md"}:  # which names files of its own
        for name in re.findall(rf"`((?:{rooms})/[\w/-]+\.\w+)(?:::\w+)?`", text_of(page)):
            assert (ROOT / name).exists(), f"{page}: {name}"


def test_code_blocks_in_python_are_python() -> None:
    for page in PAGES:
        for code in re.findall(r"```python\n(.*?)```", text_of(page), re.DOTALL):
            if "..." not in code:
                ast.parse(code)


@pytest.mark.usefixtures("forgetting")
def test_the_ten_lines_in_python_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files("python.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    code = (tmp_path / "ten_lines.py").read_text(encoding="utf-8")
    exec(compile(code, "ten_lines.py", "exec"), {})
    assert "<!DOCTYPE html>" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("notebook", sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_and_is_stored_without_outputs(
    notebook: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    names: dict[str, Any] = {}
    for cell in cells:
        code = "".join(cell["source"]).replace("capacity.precision=0.1", "capacity.precision=0.5")
        exec(compile(code, notebook.name, "exec"), names)
    assert names["found"].capacity > 0 and list(tmp_path.iterdir()) == []


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


def test_the_page_on_outputs_has_the_keys_of_the_summary(run_folder: Path) -> None:
    summary = json.loads((run_folder / "summary.json").read_text())
    names = documented(part("summary.json"))
    lagging = {name for name in names if "replay_lag" in name}  # of the real engine only
    patterns = {name for name in names if "<statistic>" in name}
    told = {key for key in summary if re.sub(r"^(mean|std|median|p\d+)_", "<statistic>_", key) in patterns}
    assert len(lagging) == 3 and names - lagging - patterns == summary.keys() - told
    used = {re.sub(r"^(mean|std|median|p\d+)_", "<statistic>_", key) for key in told}
    assert used == patterns


def test_units_of_the_trace_table_are_on_its_page() -> None:
    columns = documented(text_of("traces.md").partition("## Your own file")[2].partition("\n## ")[0])
    assert columns == {*TRACE_COLUMNS, MESSAGES}


def test_the_site_is_built_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    for name in ("README.md", "mkdocs.yml"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    build = [sys.executable, "-m", "zensical", "build", "--strict", "-f", "mkdocs.yml"]
    ended = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0 and "No issues found" in said, said
    assert "Two commands" in (tmp_path / "build/site/index.html").read_text(encoding="utf-8")


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
