"""What tests of the harness start from: where the data are, and configurations as a command line would compose them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import hydra
import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments import PLAIN
from harness import cli
from harness.config import RunConfig, parse
from harness.config.composing.composer import compose, compose_once, drop_hydra
from harness.jobs import execute, run_job

Launch = Callable[..., int]
ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
TRACES = ROOT.parent / "shared" / "traces"
GROUND_TRUTH = ROOT.parent / "shared" / "ground_truth"
# A model for runs of the real engine of which the decisions are looked at.
SMALLEST = (
    "engine=cpu", "engine.num_threads=1", "model=tiny", "model.num_layers=1", "model.hidden_size=64",
    "model.num_attention_heads=2", "model.num_kv_heads=1", "model.head_dim=32", "model.intermediate_size=96",
    "model.vocab_size=512",
)  # fmt: skip


def composed(*overrides: str) -> DictConfig:
    """What Hydra makes of a command line, without its own keys."""
    return drop_hydra(compose(overrides))


def config(*overrides: str) -> RunConfig:
    """The checked configuration of a command line, without plots; but for an experiment it starts from `PLAIN` and
    cost=roofline."""
    start = () if any(each.startswith("experiment=") for each in overrides) else ("cost=roofline", *PLAIN)
    return parse(composed("plots=false", *start, *overrides))


def launcher(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *first: str, job: Callable[[DictConfig], None] = run_job
) -> Launch:
    """What `run.py` does in `folder` with the arguments `first` and those of the call; returns the exit code."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    monkeypatch.chdir(folder)
    compose_once()
    main = hydra.main(version_base=None, config_path=str(CONF), config_name="config")(job)

    def launch(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["run.py", *first, *arguments])
        try:
            return cli.launch(main)
        finally:
            HydraConfig.instance().cfg = None

    return launch


def execute_in(folder: Path, settings: RunConfig) -> None:
    """Run the task of `settings` in `folder`, which is made as Hydra would."""
    folder.mkdir(parents=True, exist_ok=True)
    execute(settings, folder)


def stub_module(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: Any) -> None:
    """Let an import of `name` find a module with these attributes."""
    module = ModuleType(name)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)


def raising(error: BaseException) -> Callable[..., None]:
    """A function that raises `error`."""

    def raise_it(*_: Any) -> None:
        raise error

    return raise_it
