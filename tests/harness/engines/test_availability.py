"""Whether an engine can run here."""

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

from harness.engines import availability
from harness.errors import ConfigError
from tests.harness.builders import raising, stub_module


def fake_torch(monkeypatch: pytest.MonkeyPatch, *, installed: bool, cuda: bool) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace() if installed else None)
    stub_module(monkeypatch, "torch", cuda=SimpleNamespace(is_available=lambda: cuda))


@pytest.mark.parametrize(
    ("kind", "installed", "cuda", "expected"),
    [
        ("gpu", False, False, "torch is not installed.*engine=cpu needs torch only, engine=sim runs anywhere"),
        ("cpu", False, False, "torch is not installed.*engine=sim runs anywhere"),
        ("openai", False, False, r"aiohttp is not installed \(pip install -e '.\[client\]'\)"),
        ("gpu", True, False, "torch finds no CUDA device; engine=cpu needs torch only, engine=sim runs anywhere"),
    ],
)
def test_an_engine_that_cannot_run_says_what_is_missing_and_what_runs(
    monkeypatch: pytest.MonkeyPatch, kind: Any, installed: bool, cuda: bool, expected: str
) -> None:
    fake_torch(monkeypatch, installed=installed, cuda=cuda)
    with pytest.raises(ConfigError, match=f"^engine={kind}: .*{expected}"):
        availability.check_engine(kind)


def test_an_engine_that_can_run_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch, installed=True, cuda=True)
    availability.check_engine("gpu")
    fake_torch(monkeypatch, installed=True, cuda=False)
    availability.check_engine("cpu")


def test_a_server_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    availability.check_server()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else SimpleNamespace())
    with pytest.raises(ConfigError, match=r"^task=serve: uvicorn not installed \(pip install -e '.\[server\]'\)"):
        availability.check_server()


def test_the_simulation_does_not_look_for_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", raising(AssertionError("looked for torch")))
    availability.check_engine("sim")
