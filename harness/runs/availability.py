"""What the machine can run."""

import importlib
import importlib.util
from typing import Literal

from harness.errors import ConfigError


def check_engine(kind: Literal["sim", "gpu", "cpu"]) -> None:
    """Says what is missing for the engine asked for.

    Raises:
        ConfigError: it is torch or CUDA.
    """
    if kind == "sim":
        return
    runs_here = "engine=cpu needs torch only, engine=sim runs anywhere" if kind == "gpu" else "engine=sim runs anywhere"
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(f"engine={kind}: torch is not installed (pip install -e '.[engine]'); {runs_here}")
    if kind == "gpu" and not importlib.import_module("torch").cuda.is_available():
        raise ConfigError(f"engine=gpu: torch finds no CUDA device; {runs_here}")
