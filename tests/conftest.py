"""What every test starts from."""

import atexit
import gc
import logging
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # processes that tests start keep what they compile
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of PyTorch: tests run side by side, and their tensors are small

import pytest
from hypothesis import Phase, settings

from tests.compiled import IS_COMPILED

sys.dont_write_bytecode = False  # assertions, too, are rewritten once and not in each run
gc.disable()  # until the modules of all tests are imported: they leave little garbage, and much that would be searched

# A machine that is busy makes no example fail. A quarter of the usual number of examples, as a commit is tested often.
settings.register_profile("commit", deadline=None, max_examples=25)
settings.register_profile("mutants", deadline=None, max_examples=50, phases=(Phase.explicit, Phase.generate))
settings.load_profile("commit")


@pytest.fixture(autouse=True)
def notes_are_heard() -> None:
    """The command line, where a test has run it in this process, has silenced what is noted of a trace."""
    logging.getLogger("harness").setLevel(logging.NOTSET)
    logging.disable(logging.NOTSET)  # as workers of a capacity search leave it


def _forked(method: str | None = None) -> BaseContext:
    return _get_context("forkserver" if method == "spawn" else method)


@pytest.fixture
def forked_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are forks of one process that has imported what a rank needs. A process of its own takes two seconds of the
    processor for that."""
    multiprocessing.set_forkserver_preload(["engine.runner.executors.worker", "tests.engine.models.tp_worker"])
    monkeypatch.setattr(multiprocessing, "get_context", _forked)


def _tell_charts(charts: Mapping[str, object], folder: Path, plot: Any) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    told = {folder / f"{name}.{kind}": chart for name, chart in charts.items() for kind in plot.file_formats if chart}
    return [path for path, chart in told.items() if path.write_text(repr(chart))]


@pytest.fixture(autouse=True)
def pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts are drawn in tests of figures only, coarsely: that takes longer than most runs that leave them. Elsewhere
    their files tell what they show."""
    if (drawing := sys.modules.get("harness.figures.drawing")) is not None:
        if "figures" in request.path.parts:
            monkeypatch.setattr(sys.modules["harness.figures.style"], "_DPI", 60)
        else:
            monkeypatch.setattr(drawing, "write_charts", _tell_charts)


@pytest.fixture(autouse=True)
def kernels_as_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's kernels for products are compiled when first used: most tests need few of the sizes."""
    if (weights := sys.modules.get("engine.models.weights")) is not None:
        monkeypatch.setattr(weights, "_compile_packed", lambda model: None)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """A run of the real engine in this process may have given PyTorch more."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


_freeze, _unfreeze = gc.freeze, gc.unfreeze
_get_context = multiprocessing.get_context


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test with the mark `sample`, so many cases are for every commit, evenly spaced; the others are `long`."""
    for _, group in groupby(items, key=lambda item: item.nodeid.partition("[")[0]):
        cases = list(group)
        count = mark.args[0] if (mark := cases[0].get_closest_marker("sample")) else len(cases)
        for place, case in enumerate(cases):
            if IS_COMPILED and (mark := case.get_closest_marker("interpreted")):
                case.add_marker(pytest.mark.skip(f"not of a compiled core: {mark.args[0]}"))
            if place * count % len(cases) >= count:
                case.add_marker(pytest.mark.long)


def pytest_collection_finish() -> None:
    """Exempts what exists by now from garbage collection, until the process ends: libraries in C++ complain of objects
    that are never freed. An engine that is closed looks for garbage, which takes half a second where the modules of all
    tests are searched."""
    gc.freeze()
    gc.set_threshold(50_000)  # as if the objects that are exempt were there
    gc.enable()
    gc.freeze = gc.unfreeze = lambda: None
    atexit.register(_unfreeze)


@pytest.fixture
def garbage_collection(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is exempt from garbage collection but what the test exempts."""
    monkeypatch.setattr(gc, "freeze", _freeze)
    monkeypatch.setattr(gc, "unfreeze", _unfreeze)
    gc.unfreeze()
    yield
    gc.freeze()
