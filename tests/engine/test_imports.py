"""Who may import whom: the scheduling core stays free of everything that has a clock, a device or I/O."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = (
    "sequence", "block_manager", "decode_set", "plan", "policy", "running_set", "scheduler", "scheduler_options",
    "step_planner", "waiting_queue",
)  # fmt: skip
CLOCKS_AND_DICE = {"time", "random", "datetime", "os", "io", "threading", "asyncio", "logging", "secrets"}


def imported_modules(path: Path) -> set[str]:
    """Top-level names of all modules that a file imports, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add((node.module or "").partition(".")[0])
    return names


@pytest.mark.parametrize("module", CORE)
def test_core_imports_only_the_standard_library_numpy_and_xxhash(module: str) -> None:
    names = imported_modules(ROOT / "engine" / f"{module}.py")
    assert names <= (sys.stdlib_module_names - CLOCKS_AND_DICE) | {"numpy", "xxhash", "engine"}


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("engine", {"harness", "simulator", "simpy", "hydra", "omegaconf"}),
        ("kernels", {"harness", "simulator", "engine"}),
        ("simulator", {"harness", "torch", "hydra", "omegaconf"}),
        ("harness", {"torch"}),
    ],
)
def test_packages_import_downwards(package: str, forbidden: set[str]) -> None:
    # The one place where the harness meets the real engine's library, and what measures the real kernels.
    exempt = {ROOT / "harness" / "real.py", *(ROOT / "simulator" / "profiler").iterdir()}
    for path in (ROOT / package).rglob("*.py"):
        if path not in exempt:
            assert not imported_modules(path) & forbidden, path


def test_a_simulation_does_not_load_torch(tmp_path: Path) -> None:
    """Not even through a library that would import it when it is there: a module of that name raises on import."""
    (tmp_path / "torch.py").write_text("raise RuntimeError('torch was imported')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import harness.run, harness.plots; "
    code += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
