"""Campaigns of the fuzz in a copied tree, with a fault put into its scheduling core."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.engine.fuzz.mutants.mutant import Mutant

ROOT = Path(__file__).parents[3]
NUM_SEEDS = 800  # most workloads that a campaign tries on a mutant


def copy_tree(folder: Path) -> None:
    """Copy what the fuzz needs to `folder`, as it is read and not as it is compiled."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "engine", folder / "engine", ignore=ignored)
    shutil.copytree(ROOT / "tests" / "engine", folder / "tests" / "engine", ignore=ignored)
    for name in ("__init__", "compiled"):
        shutil.copy(ROOT / "tests" / f"{name}.py", folder / "tests")


def mutate(folder: Path, mutant: Mutant) -> None:
    """Put the fault into a copied tree.

    Raises:
        ValueError, SyntaxError: the code has changed, so that the mutant is out of date.
    """
    file = folder / "engine" / "core" / mutant.file
    source = file.read_text()
    if source.count(mutant.old) != 1:
        raise ValueError(f"mutant out of date: {mutant.old!r} occurs {source.count(mutant.old)} times in {mutant.file}")
    changed = source.replace(mutant.old, mutant.new)
    compile(changed, mutant.file, "exec")
    file.write_text(changed)


def campaign(folder: Path, num_seeds: int, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the fuzz in a copied tree: it fails with the first workload that is not sound, and prints its seed first."""
    command = [sys.executable, "-m", "tests.engine.fuzz", "--seeds", str(num_seeds), *arguments]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1200)
