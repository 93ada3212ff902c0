"""The README and docs/: their commands run, their code and notebooks too, and what they name exists."""

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

import pytest
import yaml
from hydra.core.hydra_config import HydraConfig

from engine.core import policies
from harness import cli
from harness.config import parse, targets
from harness.config.command_lines.option_names import with_options
from tests.docs.pages import PAGES, ROOT, commands, text_of, write_files
from tests.docs.samples import write_samples
from tests.harness.builders import CONF, composed
from tests.selection import few

# Commands whose configuration is composed and checked, and that do not run: what they hold, and why.
NOT_RUN = {
    "task=serve": "serves until it is interrupted; tests/docs/test_compare_with_your_server.py does",
    "engine=openai": "needs a server; tests/docs/test_compare_with_your_server.py has one",
    "cost.calibration=outputs/observed": "needs what task=observe left; the same test has it",
    "hydra/launcher=": "tests/docs/test_sweeps_on_machines.py runs the launchers that are installed; Slurm needs a "
    "cluster",
    "engine.weights=": "needs the weights of a model",
    "task=import": "needs aiconfigurator-core; tests/simulator/importers/test_importers.py has a part of its tables",
    "task=profile": "measures for two minutes; tests/simulator/profiler/test_profiler_task.py has a clock of its own",
    "cost.profile=llmservingsim:": "needs a profile of LLMServingSim; tests/simulator/importers/test_importers.py "
    "makes one up",
    "arrival=closed_loop": "searches long; tests/harness/studies/capacity/test_capacity.py has closed loops",
    "outputs/measured,outputs/simulated": "needs a measured run; tests/docs/test_compare_with_your_server.py has one",
    "trace=weka": "needs recordings of coding agents; tests/harness/workload/readers has some",
    "trace.window=[86400": "needs a trace of two days; tests/harness/workload/readers/test_columns.py has windows",
    "trace.path=day.csv": "needs what ServeGen draws; tests/harness/workload/readers has such rows",
    "sinks=": "needs MLflow, Weights & Biases or a collector; tests/harness/sinks has stand-ins",
    "hf://": "needs the Hugging Face Hub",
    "model=llama-3.1-70b": "the same as the command before it, with a larger model",
    "tensor_parallel_size=1,2": "the same as the command after it, with more jobs",
    "device=h100-80gb,h200,b200": "the same as other sweeps of searches",
}
# Pages whose commands run for every commit: the first that are tried, code of the page, and the real engine.
RUN = ("README.md", "choose_a_configuration.md", "extend.md", "real_engine.md", "sweeps.md")
# Of commands that cannot be composed without what a command before them wrote, or that are not composed.
MADE_BY_RUNS = ("import_vllm", "import_sglang", "import_trtllm", "--config-dir")
SMALL = {
    "trace.num_requests": "20", "plots": "false", "progress": "false",
    "search.trials": "2", "capacity.num_requests": "100", "capacity.max_probes": "6", "capacity.workers": "1",
    "capacity.confirm": "0", "capacity.target_rate": "12", "calibration.max_evaluations": "3",
    "metrics.interval.max_requests": "1000", "metrics.warmup": "0.2", "metrics.drain": "0.2",
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
    of_files = "mooncake|azure|bailian|baseten|weka|csv|jsonl|custom"
    if not re.search(rf"task=(report|plot|validate|calibrate)|trace=({of_files})|autoscaling_study|my_log", words):
        keys.add("trace.num_requests")
    if re.search(r"task=(capacity|search)|capacity_study", words):
        keys |= {key for key in SMALL if key.startswith("capacity.")} - {"capacity.target_rate"}
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
    parse(composed(*with_options([re.sub(r"^([\w.]+=[\w.-]+),.*", r"\1", word) for word in words])))


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
@pytest.mark.sample(5)
def test_the_commands_of_a_page_compose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    write_samples(tmp_path)
    write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    for arguments in first_shown()[page]:
        if "--help" not in arguments and not any(name in " ".join(arguments) for name in MADE_BY_RUNS):
            compose_only(arguments[1:])


@pytest.mark.long
@pytest.mark.usefixtures("forgetting")
@pytest.mark.parametrize("page", few(sorted(first_shown(), key=lambda page: page not in RUN), len(RUN)))
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


@pytest.mark.long
@pytest.mark.usefixtures("forgetting")
def test_the_ten_lines_in_python_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files("python.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    code = (tmp_path / "ten_lines.py").read_text(encoding="utf-8")
    exec(compile(code, "ten_lines.py", "exec"), {})
    assert "<!DOCTYPE html>" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.long
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


@pytest.mark.long
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
