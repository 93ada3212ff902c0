"""How far off simulations like a run were from public measurements, in one short text.

simulator/profiles/known_errors.csv   a row per class of runs, written by `python -m experiments.board` from its points

A row says nothing (an empty cell) of what its runs do not have in common. The nearest class of a run is the first of
`_LEVELS` that has `_ENOUGH` runs; where none has so many, the first that has any.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import NamedTuple

import simulator
from simulator.models.experts import Experts
from simulator.models.latent import Latent
from simulator.models.linear_state import LinearState
from simulator.models.model import Model
from simulator.profile.checks import base_name
from simulator.system import System

KNOWN_ERRORS = Path(simulator.__path__[0]) / "profiles" / "known_errors.csv"
CLOSED_LOOP, AT_ONCE, OPEN_LOOP = "closed loop", "at once", "open loop"
KERNELS, SCALED = "kernels", "kernels of another GPU"  # as the cost of a class
APART = "apart"  # any load of servers for prompts and others for decodes, whose errors are those of no single server
_ENOUGH = 3
_OTHER_ENGINES = {"sglang": "SGLang", "trtllm": "TensorRT-LLM"}  # by their policies


class RunClass(NamedTuple):
    """What decides how far off a simulation is; "" where it is left out."""

    cost: str
    device: str
    kind: str
    model: str
    precision: str
    load: str

    def without(self, *names: str) -> RunClass:
        return self._replace(**dict.fromkeys(names, ""))


LEVELS: dict[tuple[str, ...], str] = {
    (): "of the same model, weights, GPU and kind of load",
    ("load",): "of the same model, weights and GPU",
    ("load", "model"): "of {kind} models with such weights on this GPU",
    ("load", "model", "precision"): "of {kind} models on this GPU",
    ("load", "model", "device"): "of {kind} models with such weights on other GPUs",
}
"""From the nearest class to the farthest: what is left out, and the words for its runs."""


class Spread(NamedTuple):
    """Errors in percent: median and 90th percentile of the absolute ones, median, 10th and 90th percentile of the
    signed ones, which are above 0 where the simulation says more."""

    median: float
    p90: float
    signed: float
    low: float
    high: float


class KnownError(NamedTuple):
    """The errors of `runs` public measurements: by name of a metric, those that they tell."""

    runs: int
    words: str
    errors: dict[str, Spread]


def run_class(system: System, load: str) -> RunClass:
    """The class of a run on `system`."""
    source = system.profile.meta.source if system.profile is not None else {}
    kernels = SCALED if source.get("scaled_from") else KERNELS if source.get("database") else ""
    name = base_name(system.model.name).removesuffix("-instruct")
    return RunClass(
        kernels or system.cost.kind, system.device.name, model_kind(system.model), name,
        system.model.quantization.name, load,
    )  # fmt: skip


def model_kind(model: Model) -> str:
    """Such as `dense`, or `latent-attention expert`: what a model's errors have in common with those of others."""
    mlp = "dense" if not model.first(Experts) else "expert" if model.num_expert_ranks == 1 else "expert-parallel"
    attention = "latent-attention " if model.first(Latent) else "linear-attention " if model.first(LinearState) else ""
    return attention + mlp


def load_of(arrival: str) -> str:
    """The kind of load that `arrival.kind` makes."""
    return {"closed_loop": CLOSED_LOOP, "all_at_once": AT_ONCE}.get(arrival, OPEN_LOOP)


def known_error(of: RunClass) -> KnownError | None:
    """The errors of the nearest class of runs; None where no class is near."""
    known = _known()
    near = [(words, known[key]) for left_out, words in LEVELS.items() if (key := left_out_of(of, left_out)) in known]
    found = next((each for each in near if each[1].runs >= _ENOUGH), near[0] if near else None)
    where = ", prompts and decodes apart" if of.load == APART else ""
    return None if found is None else found[1]._replace(words=f"{found[0].format(kind=of.kind)}{where}")


def left_out_of(of: RunClass, names: tuple[str, ...]) -> RunClass:
    """The class without what a level leaves out; that prompts and decodes are apart is never left out."""
    return of.without(*(name for name in names if not (name == "load" and of.load == APART)))


def known_error_of(system: System, load: str) -> KnownError | None:
    """The errors of the nearest class of runs; None with fitted constants, and for the scheduler of an engine of which
    no class is kept."""
    if system.calibration or system.scheduler.policy in _OTHER_ENGINES:
        return None
    return known_error(run_class(system, load))


def cost_model_text(system: System, load: str) -> str:
    """The cost model and its known error, such as "profiled (aiconfigurator h100_sxm vllm 0.24.0): TPOT -0.8 %, 90 %
    within 6.2 %; ... in 45 public runs of the same model, weights, GPU and kind of load"."""
    fitted = f", constants of {Path(system.calibration.path).name}" if system.calibration else ""
    name: str = system.cost.kind
    if system.profile is not None:
        source = system.profile.meta.source
        database = str(source.get("database") or "")
        told = f"({source['tool'].removesuffix('_core')} {database.replace('/', ' ')})" if database else ""
        name = f"profiled {told}" if told else f"profiled on {system.profile.meta.device}"
    if fitted:
        return f"{name}{fitted}, not validated with fitted constants"
    if engine := _OTHER_ENGINES.get(system.scheduler.policy):
        return f"{name}, known errors are of servers of vLLM: how far off {engine} was is in docs/fidelity.md"
    known = known_error_of(system, load)
    if known:
        return f"{name}: {known_error_text(known)}"
    where = " with prompts and decodes apart" if load == APART else ""
    return f"{name}, not validated: no public run{where} is like this one"


def known_error_text(known: KnownError) -> str:
    """Such as "TPOT -0.8 % (90 % within 6.2 %), TTFT +2.1 % (90 % within 32 %) in 45 public runs of the same model"."""
    told = {name: each for name, each in known.errors.items() if name in ("ttft", "tpot")}
    errors = [f"{name.upper()} {each.signed:+.1f} % (90 % within {each.p90:.0f} %)" for name, each in told.items()]
    return f"{', '.join(errors)} in {known.runs} public run{'s' if known.runs > 1 else ''} {known.words}"


@cache
def _known() -> dict[RunClass, KnownError]:
    known = {}
    with KNOWN_ERRORS.open(encoding="utf-8", newline="") as file:
        names, *rows = csv.reader(file)
    places = {
        name: [names.index(f"{name}_{each}") for each in Spread._fields]
        for name in ("ttft", "tpot", "e2el", "throughput")
    }
    of_class, runs = [names.index(each) for each in RunClass._fields], names.index("runs")
    for row in rows:
        errors = {name: Spread(*[float(row[place]) for place in own]) for name, own in places.items() if row[own[0]]}
        known[RunClass(*[row[place] for place in of_class])] = KnownError(int(row[runs]), "", errors)
    return known
