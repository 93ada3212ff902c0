"""Parameters of other types, and packages of other versions, end in one error that names them."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine import versions
from engine.engine_config import EngineConfig
from engine.sampling_params import SamplingParams

ROOT = Path(__file__).resolve().parents[2]
VALUES: tuple[Any, ...] = (
    [1], "x", None, 1.5, True, float("nan"), float("inf"), {}, -1, (1,), 10**400, np.array(3), np.array([]), object(),
)  # fmt: skip


@pytest.mark.parametrize("kind", [EngineConfig, SamplingParams])
def test_whatever_a_parameter_is_given_the_error_names_it(kind: type[Any]) -> None:
    for field in (each for each in dataclasses.fields(kind) if each.init):
        for value in VALUES:
            try:
                kind(**{field.name: value})
            except ValueError as error:
                assert field.name in str(error) and "\n" not in str(error)


def test_a_list_is_no_number_of_sequences() -> None:
    with pytest.raises(ValueError, match=r"^max_num_seqs=\[1\]: must be an integer$"):
        EngineConfig(max_num_seqs=[1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^cuda_graphs=3: choose one of auto$|^cuda_graphs=3: "):
        EngineConfig(cuda_graphs=3)  # type: ignore[arg-type]


def test_arrays_of_tokens_are_lists_of_tokens() -> None:
    params = SamplingParams(stop_token_ids=np.array([3, 4]), allowed_token_ids=np.array([5]))  # type: ignore[arg-type]
    assert (params.stop_token_ids, params.allowed_token_ids) == ([3, 4], [5])


def test_the_least_versions_are_those_of_the_project() -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["engine"]
    stated = dict(re.match(r"([\w-]+)>=([\d.]+)", each).groups() for each in needed)  # type: ignore[misc, union-attr]
    assert {name: stated[name] for name in versions.LEAST} == versions.LEAST


@pytest.mark.parametrize(("found", "is_fine"), [("1.13.1", False), ("2.10.0+cu1", True), ("2.9", True), ("2.8", False)])
def test_an_old_version_is_named_at_import(found: str, is_fine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    known = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: found if name == "torch" else known(name))
    if is_fine:
        versions.check_versions()
        return
    with pytest.raises(
        ImportError, match=f"^torch {found} is installed, which is not supported: pip install 'torch>=2.9'$"
    ):
        engine.LLM  # noqa: B018
