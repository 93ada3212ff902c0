"""Who may import whom: no import runs back up, no circle, and the scheduling core has no clock, device or I/O."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter, defaultdict
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("engine", "harness", "kernels", "simulator")
CLOCKS_AND_DICE = {"time", "random", "datetime", "os", "io", "threading", "asyncio", "logging", "secrets"}
CORE = sorted((ROOT / "engine" / "core").rglob("*.py"))
# The rooms of the harness from the bottom up: a room imports from those before it.
HARNESS = (
    "errors", "interrupts", "streams", "hub", "config", "workload", "results", "measured", "figures", "record",
    "engines", "sinks", "studies", "validation", "calibration", "api", "terminal", "jobs", "cli", "command",
)  # fmt: skip
MEETS_TORCH = {ROOT / "harness" / "engines" / "real.py", *(ROOT / "simulator" / "profiler").iterdir()}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {module_of(path): path for package in PACKAGES for path in (ROOT / package).rglob("*.py")}


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Dotted names of all modules that a file imports, wherever in the file, those for types only included."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}: relative import"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in modules() else node.module for name in inner}
    return frozenset(names)


def top_level(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports_of(path)}


@pytest.mark.parametrize("path", CORE, ids=module_of)
def test_core_imports_only_the_standard_library_numpy_and_xxhash(path: Path) -> None:
    outside = {name for name in imports_of(path) if not name.startswith("engine.core")}
    allowed = (sys.stdlib_module_names - CLOCKS_AND_DICE) | {"numpy", "xxhash"}
    assert {name.partition(".")[0] for name in outside} <= allowed


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
    for path in (ROOT / package).rglob("*.py"):
        if path not in MEETS_TORCH:
            assert not top_level(path) & forbidden, path


def test_no_circle_of_imports() -> None:
    """Raises graphlib.CycleError, which names the circle."""
    graph = {name: imports_of(path) & modules().keys() - {name} for name, path in modules().items()}
    TopologicalSorter(graph).prepare()


def test_no_circle_among_the_files_and_rooms_of_a_folder() -> None:
    """A room and its neighbours, files and rooms alike, whatever lies inside of them."""
    graphs: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, path in modules().items():
        for other in imports_of(path) & modules().keys():
            importer, imported = name.split("."), other.split(".")
            level = len(os.path.commonprefix([importer, imported]))
            if level < min(len(importer), len(imported)):
                graphs[".".join(importer[:level])][importer[level]].add(imported[level])
    for graph in graphs.values():
        TopologicalSorter(graph).prepare()


def test_a_room_has_at_most_twelve_files() -> None:
    experiments = [path for path in (ROOT / "experiments").rglob("*.py") if path.parent.name != "__pycache__"]
    rooms = Counter(path.parent for path in (*modules().values(), *experiments) if path.stem != "__init__")
    assert max(rooms.values()) <= 12, rooms.most_common(3)


def test_rooms_of_the_harness_import_downwards() -> None:
    for name, path in modules().items():
        if name.count(".") and name.startswith("harness."):
            room = HARNESS.index(name.split(".")[1])
            above = {other for other in imports_of(path) if other.startswith("harness.")}
            above = {other for other in above if HARNESS.index(other.split(".")[1]) > room}
            assert not above, f"{name} imports {sorted(above)}"


HEAVY = (
    "hydra",
    "omegaconf",
    "pandas",
    "matplotlib",
    "scipy",
    "bokeh",
    "optuna",
    "torch",
    "aiohttp",
    "multiprocessing",
)


@pytest.mark.parametrize(
    ("line", "also", "at_first"),
    [
        ("--help", ("pyarrow", "rich", "numpy", "simpy", "pydantic", "yaml"), {"pydantic", "yaml"}),
        ("trace.num_requests=5 hydra.run.dir=", (), {"hydra", "omegaconf", "multiprocessing"}),
    ],
    ids=["help", "run"],
)
def test_a_start_imports_no_heavy_library(line: str, also: tuple[str, ...], at_first: set[str], tmp_path: Path) -> None:
    """A run with a known command line writes its tables and its page without pandas, and begins without Hydra; help
    that is known is printed without the schema."""
    arguments = line.replace("dir=", f"dir={tmp_path / 'run'}").split()
    code = (
        f"import sys; from harness import cli; sys.argv[1:] = {arguments}; assert cli.main() == 0\n"
        f"print(*[name for name in {HEAVY + also} if hasattr(sys.modules.get(name), '__file__')], file=sys.stderr)"
    )
    loaded: list[set[str]] = []
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)}, text=True,
        )  # fmt: skip
        loaded.append(set(run.stderr.split()))
    assert not loaded[-1] and loaded[0] <= at_first
