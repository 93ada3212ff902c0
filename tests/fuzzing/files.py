"""Damaged files: command lines that read a copy of a valid input in which one file was mutated."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tests.fuzzing.inputs import MODEL, REAL, Inputs
from tests.harness.builders import ROOT
from tests.mutations import BYTES, ODD_NUMBERS, mutants

PLACE = "DAMAGED"  # in an override: stands for the path of the damaged copy
_SESSIONS = ("weka", "otel", "tracelab", "waits", "aiperf", "bailian")  # files that have them
_FAST = ["plots=false", "progress=false", "model=tiny", "device=laptop-cpu"]
_REPORT = ["task=report", "plots=false", "progress=false"]
_FORMS = {".jsonl": "json_lines", ".json": "json", ".csv": "csv", ".yaml": "yaml", ".parquet": "parquet"}


@dataclass(frozen=True)
class Target:
    """A file that is mutated, and the command line that reads it.

    Attributes:
        source: the input, a file or a folder; the command line gets the path of a copy of it for `PLACE`.
        name: of the mutated file in the folder `source`; empty where `source` is the file.
    """

    source: Path
    name: str
    overrides: tuple[str, ...]

    @property
    def file(self) -> Path:
        return self.source / self.name if self.name else self.source


@dataclass(frozen=True)
class Damage:
    """The mutation of a file, by number."""

    target: Target
    number: int

    def __str__(self) -> str:
        return f"{PLACE}: {self.target.source.name} with mutation {self.number} of {self.target.name or 'it'}"

    def apply(self, folder: Path) -> Path:
        """Write the damaged copy below `folder`; returns its path."""
        source = self.target.source
        copy = folder / source.name
        if source.is_dir():
            shutil.copytree(source, copy, copy_function=_link)
        file = copy / self.target.name if self.target.name else copy
        file.unlink(missing_ok=True)
        form = _FORMS.get(file.suffix, "bytes")
        rng = random.Random(f"{self.target.name} {self.number}")
        if form == "parquet" and rng.random() < 0.8:
            _damaged_table(pd.read_parquet(self.target.file), rng).to_parquet(file, index=False)
        elif form in ("parquet", "bytes"):
            file.write_bytes(rng.choice(BYTES)(self.target.file.read_bytes(), rng))
        else:
            file.write_bytes(next(mutants(self.target.file.read_bytes(), form, 1, self.number)))
        return copy


def _link(source: str, copy: str) -> None:
    Path(copy).symlink_to(Path(source).resolve())


def _damaged_table(table: pd.DataFrame, rng: random.Random) -> pd.DataFrame:
    """A table with an odd value in one cell or in a whole column, without a column, or with other rows."""
    name = rng.choice(list(table.columns))
    match rng.randrange(6):
        case 0:
            return table.drop(columns=name)
        case 1:
            return table.sample(frac=rng.choice([0, 0.5, 2]), replace=True, random_state=rng.randrange(1000))
        case 2:
            same: Any = rng.choice(["x", None, 1.5, -1, True, [[1]] * len(table)])
            return table.assign(**{name: same})
        case _:
            values = table[name].tolist()
            for row in rng.sample(range(len(values)), rng.choice([1, len(values)])):
                values[row] = float(rng.choice([number for number in ODD_NUMBERS if abs(number) < 1e308]))
            odd: pd.Series[Any] = pd.Series(values, dtype=object).astype(str)
            return table.assign(**{name: odd if rng.random() < 0.5 else pd.to_numeric(odd, errors="coerce")})


def draw_damage(rng: random.Random, targets: list[list[Target]]) -> Damage:
    """A mutation of a file of a kind of input; all kinds are equally likely."""
    return Damage(rng.choice(rng.choice(targets)), rng.randrange(1 << 40))


def targets(inputs: Inputs) -> list[list[Target]]:
    """All files that a user may give, by kind."""
    runs = [*_measured(inputs), *_results(inputs)]
    kinds = [list(_traces(inputs)), runs, list(_costs(inputs)), list(_checkpoints())]
    if inputs.model is not None:
        names = [path.name for path in inputs.model.iterdir() if path.suffix in (".json", ".safetensors")]
        kinds.append(list(_folder(inputs.model, [*REAL, *MODEL, f"engine.weights={PLACE}"], names)))
    return kinds


def _traces(inputs: Inputs) -> Iterator[Target]:
    for option, paths in inputs.traces.items():
        for path in paths:
            own_times = option not in ("sharegpt", "sharegpt_multiturn")
            arrivals = ["trace", "poisson"] if own_times else ["poisson", "all_at_once"]
            if path.stem in _SESSIONS:
                arrivals += ["sessions", "sessions arrival.think_time=trace"]
            for arrival in arrivals:
                yield Target(
                    path, "", (*_FAST, f"trace={option}", f"trace.path={PLACE}", *f"arrival={arrival}".split())
                )


def _checkpoints() -> Iterator[Target]:
    small = ("plots=false", "progress=false", "device=h200", "tensor_parallel_size=8", "trace.num_requests=3")
    for path in sorted((ROOT / "tests" / "harness" / "config" / "checkpoints").glob("*.json")):
        yield Target(path, "", (*small, "model=hf", f"model.config={PLACE}"))


def _measured(inputs: Inputs) -> Iterator[Target]:
    validate = ("task=validate", *_FAST)
    for measured, workload in inputs.measured:
        kind, _, name = measured.partition(":")
        given = [f"validation.workload={workload}"] if workload else []
        target = [*validate, f"validation.measured={kind}:{PLACE}", *given]
        source = Path(name)
        yield from _folder(source, target) if source.is_dir() else [Target(source, "", tuple(target))]
        if workload:
            reads = [*validate, f"validation.measured={measured}", f"validation.workload={PLACE}"]
            yield Target(workload, "", tuple(reads))
    own = [*validate, f"validation.measured={inputs.measured[0][0]}"]
    yield from _folder(inputs.own, [*own, f"validation.repeats=[run:{PLACE}]"])


def _results(inputs: Inputs) -> Iterator[Target]:
    yield from _folder(inputs.runs[0], [*_REPORT, f"results=[{PLACE},{inputs.runs[1]}]"])
    yield from _folder(inputs.runs[0], [*_REPORT, f"results=[{PLACE}]"])


def _costs(inputs: Inputs) -> Iterator[Target]:
    small = [*_FAST, "trace=synthetic", "trace.num_requests=8"]
    yield Target(inputs.calibration, "", (*small, f"cost.calibration={PLACE}"))
    for kind, folder, inside, model in inputs.profiles:
        yield from _folder(folder, [*small, "cost=profiled", f"cost.profile={kind}{PLACE}{inside}", *model])


def _folder(folder: Path, overrides: list[str], names: list[str] | None = None) -> Iterator[Target]:
    """Each file below a folder."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and (names is None or name in names):
            yield Target(folder, name, tuple(overrides))
