"""The README and docs/: their commands run, and what they say of columns, keys, figures and studies is so."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hydra.core.hydra_config import HydraConfig

from engine.core import policies
from experiments import capacity_study
from harness import cli
from harness.config import parse, targets, vllm_import
from tests.docs_samples import write_samples
from tests.harness.builders import CONF, composed
from tests.pages import PAGES, ROOT, commands, text_of, write_files

# Commands whose configuration is composed and checked, and that do not run: what they hold, and why.
NOT_RUN = {
    "hydra/launcher=": "tests/test_sweeps_on_machines.py runs the launchers that are installed; Slurm needs a cluster",
    "engine.weights=": "needs the weights of a model",
    "task=import": "needs aiconfigurator-core; tests/simulator/test_importers.py has a part of its tables",
    "task=profile": "measures for two minutes; tests/harness/runs/test_profiling.py has a clock of its own",
    "cost.profile=llmservingsim:": "needs a profile of LLMServingSim; tests/simulator/test_importers.py makes one up",
    "arrival=closed_loop": "searches long; tests/harness/capacity/test_capacity.py has closed loops",
    "model=llama-3.1-70b": "the same as the command before it, with a larger model",
}
SMALL = {
    "trace.num_requests": "20", "plots": "false", "progress": "false", "retiming.repeats": "1",
    "search.trials": "2", "capacity.num_requests": "100", "capacity.max_probes": "6", "capacity.workers": "1",
    "capacity.confirm": "0", "calibration.max_evaluations": "3", "metrics.interval.max_requests": "1000",
}  # fmt: skip
LONG = ("kernels_and_validation.md", "real_engine.md")  # pages whose commands take a minute with the real engine
REAL_RATE = "20"  # requests/s for the real engine


def small(arguments: list[str]) -> list[str]:
    """The same command with few requests and short searches; of swept values the first two."""
    if "--help" in arguments:
        return arguments
    words = " ".join(arguments)
    keys = {"plots", "progress"} if "figures=" not in words and "task=plot" not in words else {"progress"}
    keys |= {key for key in SMALL if any(word.startswith(f"{key}=") for word in arguments)} - {"figures"}
    if not re.search(r"task=(report|plot|validate|calibrate|retime)|trace=(mooncake|azure|csv|custom)|my_log", words):
        keys.add("trace.num_requests")
    if re.search(r"task=(capacity|search)|capacity_study", words):
        keys |= {key for key in SMALL if key.startswith("capacity.")}
    if "task=calibrate" in words:
        keys.add("calibration.max_evaluations")
    if "num_requests=auto" in words:
        keys = keys - {"trace.num_requests"} | {"metrics.interval.max_requests"}
    kept = [_shortened(word) for word in arguments if word.partition("=")[0] not in keys]
    if "engine=cpu" in arguments:
        kept = [f"arrival.rate={REAL_RATE}" if word.startswith("arrival.rate=") else word for word in kept]
    return [*kept, *_fewer_jobs(arguments), *(f"{key}={SMALL[key]}" for key in sorted(keys))]


def _shortened(word: str) -> str:
    key, _, value = word.partition("=")
    is_sweep = "," in value and not re.search(r"[\[{(' ]", value)
    return f"{key}={','.join(value.split(',')[:2])}" if is_sweep else word


def _fewer_jobs(arguments: list[str]) -> list[str]:
    """For an experiment that is a sweep: one value of each key, and two of the last."""
    name = next((word.partition("=")[2] for word in arguments if word.startswith("experiment=")), None)
    if name is None:
        return []
    setup = yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text(encoding="utf-8"))
    swept = setup.get("hydra", {}).get("sweeper", {}).get("params", {})
    first = {key: str(values).split(",") for key, values in swept.items()}
    return [f"{key}={','.join(values[: 2 if key == list(first)[-1] else 1])}" for key, values in first.items()]


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


@pytest.mark.usefixtures("forgetting")
@pytest.mark.parametrize(
    "page",  # tests/test_extend.py runs the commands of extend.md and looks at what they leave
    [
        pytest.param(page, marks=[pytest.mark.slow] if page in LONG else [])
        for page in PAGES
        if page != "extend.md" and any(words[0] == "twinserve" for words in commands(page))
    ],
)
def test_the_commands_of_a_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], page: str
) -> None:
    write_samples(tmp_path)
    write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    for arguments in commands(page):
        if arguments[0] != "twinserve":
            continue
        if any(reason in " ".join(arguments) for reason in NOT_RUN):
            compose_only(arguments[1:])
            continue
        monkeypatch.setattr(sys, "argv", small(arguments))
        assert cli.main() == 0, f"{sys.argv}\n{capsys.readouterr().err}"


@pytest.mark.usefixtures("forgetting")
@pytest.mark.parametrize("page", LONG)
def test_the_commands_of_a_long_page_are_configurations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    write_samples(tmp_path)
    write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    for arguments in commands(page):
        if arguments[0] == "twinserve" and "--help" not in arguments:
            compose_only(arguments[1:])


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


def test_the_line_of_the_study_can_be_imported() -> None:
    found = json.loads((ROOT / capacity_study.STORED).read_text())
    best = found["rows"][found["best"]]["overrides"]
    words = vllm_import.overrides(found["command"])
    assert f"max_num_seqs={best['max_num_seqs']}" in words and "model=qwen3-8b" in words


def test_the_study_on_the_page_is_the_stored_one() -> None:
    found = json.loads((ROOT / capacity_study.STORED).read_text())
    page = text_of("choose_a_configuration.md")
    assert page == capacity_study.replaced(page, capacity_study.section(found))
    assert len(found["rows"]) == 12 and (ROOT / capacity_study.FIGURE).exists()


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


def test_code_blocks_in_python_are_python() -> None:
    for page in PAGES:
        for code in re.findall(r"```python\n(.*?)```", text_of(page), re.DOTALL):
            if "..." not in code:
                ast.parse(code)
