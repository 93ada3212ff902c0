"""Whether this machine can run an engine."""

import importlib
import importlib.util
from typing import Literal

from engine.versions import check_versions
from harness import interrupts
from harness.errors import ConfigError

_SERVER = ("aiohttp", "httptools", "starlette", "uvicorn")


def check_engine(kind: Literal["sim", "gpu", "cpu", "openai"]) -> None:
    """Checks that the configured engine can run here.

    Raises:
        ConfigError: torch, aiohttp or a CUDA device is missing, or a package is too old.
    """
    if kind == "sim":
        return
    if kind == "openai":
        check_package("engine=openai", "aiohttp", "client")
        return
    runs_here = "engine=cpu needs torch only, engine=sim runs anywhere" if kind == "gpu" else "engine=sim runs anywhere"
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(f"engine={kind}: torch is not installed (pip install -e '.[engine]'); {runs_here}")
    try:
        check_versions()
    except ImportError as error:
        raise ConfigError(f"engine={kind}: {error}; {runs_here}") from None
    if kind == "cpu":
        return
    with interrupts.held():
        torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise ConfigError(f"engine=gpu: torch finds no CUDA device; {runs_here}")


def check_package(what: str, package: str, extra: str) -> None:
    """Raises ConfigError where `what` needs a package that is not installed; `extra` installs it."""
    try:
        is_there = importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # nor is the package around it
        is_there = False
    if not is_there:
        raise ConfigError(f"{what}: {package} is not installed (pip install -e '.[{extra}]')")


def check_server() -> None:
    """Raises ConfigError where what a server needs is not installed."""
    if missing := [name for name in _SERVER if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"task=serve: {', '.join(missing)} not installed (pip install -e '.[server]')")
