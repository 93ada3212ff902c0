"""Random command lines: an option for each group of conf/, and random values for some keys of the schema."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from harness.config import RunConfig
from tests.fuzzing.files import Damage
from tests.fuzzing.inputs import REAL, Inputs
from tests.fuzzing.values import HOSTILE, Leaf, draw, leaves
from tests.harness.builders import CONF

FILE_TRACES = (
    "azure", "bailian", "baseten", "burstgpt", "csv", "jsonl", "mooncake", "otel", "servegen", "tracelab", "weka",
)  # fmt: skip
SHARE_OF_WHOLE_COMMANDS = 0.03
# Group, option: those that are drawn more often than others of their group.
_LIGHT = {
    "model": "tiny", "device": "laptop-cpu", "engine": "sim", "cost": "roofline", "trace": "synthetic",
    "speculation": "none", "fleet": "replicas", "router": "round_robin",
}  # fmt: skip
# Presets but for sweeps, and for those of the real engine.
_EXPERIMENTS = ("conversations", "shared_contexts", "starved_pool", "tensor_parallel", "vllm", "vllm_v0", "null")
_GROUPS = (
    "engine", "trace", "arrival", "model", "device", "scheduler", "speculation", "allocator", "tiers", "cost",
    "metrics", "fleet", "router", "network",
)  # fmt: skip
_POOLS = ("{role:serve}", "{role:serve,replicas:2}", "{role:prefill}", "{role:decode,device:h100-80gb,replicas:3}",
          "{device:laptop-cpu,scheduler:fair,max_num_seqs:4}", "{replicas:0}", "{role:x}", "{}", "3")  # fmt: skip
_REAL_KINDS = {
    "engine": "cpu", "trace": "synthetic", "arrival": "all_at_once", "cost": "roofline", "trace.prompt": "uniform",
    "trace.output": "uniform",
}  # fmt: skip
# What is added to a command line that runs as a whole.
_FOR_HYDRA: tuple[list[str], ...] = (
    [], [], [], ["hydra.run.dir=/dev/null"], ["hydra.run.dir=/dev/null/x"], ["hydra.run.dir=/proc/x"],
    ["hydra.run.dir=''"], ["hydra.run.dir=null"], [f"hydra.run.dir={'x' * 300}"], ["hydra.run.dir='a\\x00b'"],
    ["hydra.run.dir=[1]"], ["hydra.run.dir='${no.such.key}'"], ["hydra.job.chdir=true"], ["hydra.output_subdir=null"],
    ["hydra.verbose=x"], ["hydra.mode=x"], ["hydra.job.name=1"], ["hydra.x=1"], ["hydra=null"], ["-m", "seed=0,1"],
    ["-m", "block_size=8,x,-1"], ["-m", "scheduler=mixed,x"], ["--no-such-flag"], ["--config-name=x"], ["--cfg=x"],
    ["--config-dir=/no/such"], ["--info=x"], ["--cfg=job"], ["--help"], ["--version"],
)  # fmt: skip
# Keys that say how much work there is. In this range of values a run is valid and takes longer than a case may.
_WORK = {
    "num_requests", "value", "low", "high", "mean", "std", "min", "max", "prefix_tokens", "limit", "max_evaluations",
    "max_context", "learned_positions", "max_probes", "confirm", "trials",
}  # fmt: skip
_LONG_WORK = (200, 1e10)
# Groups that only these tasks read.
_READ_BY = {
    "task": set[str](), "results": {"report"}, "profile": {"profile"}, "calibration": {"calibrate"},
    "capacity": {"capacity", "search"}, "search": {"search"},
    "validation": {"validate", "calibrate"},
}  # fmt: skip
_REPEATED = ("profile.repeats", "profile.time_budget_s")


@dataclass(frozen=True)
class Case:
    """A command line.

    Attributes:
        base: overrides that are composed once for many cases: options of groups, and what makes the run small.
        overrides: applied to that composition, one by one.
        is_whole: run as `run.py` runs it, through Hydra's own entry point.
        damage: a file to mutate first; `PLACE` in an override stands for its path.
    """

    base: tuple[str, ...]
    overrides: tuple[str, ...]
    is_whole: bool = False
    damage: Damage | None = None

    def command(self) -> str:
        """What to type to see the same."""
        quoted = (f"'{text}'" if any(sign in text for sign in " $'\"{[~") else text for text in self.arguments())
        note = f"  # {self.damage}" if self.damage else ""
        return "python run.py " + " ".join(quoted) + note

    @property
    def is_sweep(self) -> bool:
        return self.is_whole and "-m" in self.overrides

    def arguments(self) -> list[str]:
        """Flags come first, as Hydra wants them."""
        return sorted([*self.base, *self.overrides], key=lambda text: not text.startswith("-"))


def draw_case(rng: random.Random, inputs: Inputs, seed: int, num_bases: int) -> Case:
    """One case; cases with the same base share its composition."""
    base, kinds = _draw_base(random.Random(f"{seed}, base {rng.randrange(num_bases)}"), inputs)
    known = _by_group(leaves(RunConfig, kinds))
    task = base[0].removeprefix("task=")
    groups = [group for group in known if task in _READ_BY.get(group, {task}) or rng.random() < 0.02]
    overrides = []
    for group in rng.choices(groups, k=rng.choice([1, 1, 2, 3, 5])):
        leaf = rng.choice(known[group])
        value = draw(rng, leaf)
        while (leaf.key.rpartition(".")[2] in _WORK or leaf.key in _REPEATED) and _is_long(value):
            value = draw(rng, leaf)
        overrides.append(f"{rng.choices(['', '++', '+'], [90, 7, 3])[0]}{leaf.key}={value}")
    if rng.random() < 0.05:
        overrides.append(_odd_override(rng))
    is_whole = rng.random() < SHARE_OF_WHOLE_COMMANDS
    if is_whole:
        overrides += rng.choice(_FOR_HYDRA)
    return Case(tuple(base), tuple(overrides), is_whole)


def _by_group(found: Iterable[Leaf]) -> dict[str, list[Leaf]]:
    """Keys by the group they are in; a key at the top is a group of its own."""
    groups: dict[str, list[Leaf]] = {}
    for leaf in found:
        groups.setdefault(leaf.key.partition(".")[0], []).append(leaf)
    return groups


def _is_long(value: str) -> bool:
    try:
        return _LONG_WORK[0] < float(value) < _LONG_WORK[1]
    except ValueError:
        return False


def _odd_override(rng: random.Random) -> str:
    """An override of a group, of a key that does not exist, or of no known form."""
    group, value = rng.choice([*_GROUPS, "experiment", "slo"]), rng.choice(HOSTILE)
    forms = (
        f"{group}={value}", f"~{group}", f"+{group}.x={value}", f"{group}.kind={value}", f"x={value}", "x", "=",
        "a.b.c=1",
        f"{group}.={value}", f".{group}={value}", f"{group}@x={value}", f"+x={value}", "{}", "é=1", f"task={value}",
    )  # fmt: skip
    return rng.choice(forms)


def _draw_base(rng: random.Random, inputs: Inputs) -> tuple[list[str], dict[str, str]]:
    """Overrides that make a small valid run of a random task, and the kind of each group with variants."""
    task = rng.choices(
        ["run", "report", "validate", "calibrate", "profile", "capacity", "search"],
        [80, 3, 7, 4, 3, 3, 2],
    )[0]
    if task == "run" and rng.random() < (0.06 if inputs.real else 0.0):
        return ["task=run", *REAL], _REAL_KINDS
    chosen = {group: _option(rng, group) for group in _GROUPS}
    chosen["engine"] = rng.choice(["cpu", "gpu"]) if task == "profile" else "gpu" if rng.random() < 0.01 else "sim"
    if rng.random() < 0.95:
        _make_fitting(rng, chosen)
    base = [f"task={task}", "plots=false", "progress=false"]
    base += [f"{group}={option}" for group, option in chosen.items()]
    kinds = {group: option.removesuffix("_multiturn") for group, option in chosen.items()}
    base += _trace(rng, chosen["trace"], inputs, kinds)
    if chosen["allocator"] != "paged" and rng.random() < 0.9:
        base.append("scheduler.enable_prefix_caching=false")
    if chosen["fleet"] == "custom":
        base.append(f"fleet.pools=[{','.join(rng.choices(_POOLS, k=rng.choice((1, 2, 3))))}]")
    if chosen["cost"] == "profiled":
        base.append(f"cost.profile={inputs.profiles[0][1]}")
    elif chosen["cost"] == "roofline" and rng.random() < 0.2:
        base.append(f"cost.calibration={inputs.calibration}")
    if chosen["arrival"] in ("poisson", "gamma", "constant") and rng.random() < 0.5:
        base.append("arrival.rate=200")
    if chosen["model"] != "tiny" and rng.random() < 0.9:  # whatever the device, they fit
        base.append(f"num_blocks={rng.choice([500, 5000])}")
    if rng.random() < 0.1:
        base.append(f"experiment={rng.choice(_EXPERIMENTS)}")
    if rng.random() < 0.03:
        base[1:2] = ["plots=true", "plot.formats=[png]"]
    return base + _of_task(rng, task, inputs), kinds


def _make_fitting(rng: random.Random, chosen: dict[str, str]) -> None:
    """Replace options that do not go together."""
    if chosen["cost"] == "profiled":
        chosen |= {"model": "tiny", "device": "laptop-cpu"}
    if chosen["arrival"] == "sessions":
        chosen["trace"] = rng.choice(["sharegpt_multiturn", "agentic", "weka", "otel", "tracelab"])
    elif chosen["arrival"] == "trace" and chosen["trace"] not in FILE_TRACES:
        chosen["trace"] = rng.choice(FILE_TRACES)


def _option(rng: random.Random, group: str) -> str:
    if group in _LIGHT and rng.random() < 0.5:
        return _LIGHT[group]
    found = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    return rng.choice([each for each in found if each != "custom" or group == "fleet" or rng.random() < 0.1])


def _trace(rng: random.Random, option: str, inputs: Inputs, kinds: dict[str, str]) -> list[str]:
    """Overrides that make the trace small."""
    if option in FILE_TRACES or (option in inputs.traces and rng.random() < 0.5):
        return [f"trace.path={rng.choice(inputs.traces[option])}"]
    overrides = [f"trace.num_requests={rng.choice([1, 5, 30])}"]
    for name in {"synthetic": ("prompt", "output"), "shared_prefix": ("suffix", "output")}.get(option, ()):
        kinds[f"trace.{name}"] = kind = _option(rng, "trace/lengths")
        overrides.append(f"trace/lengths@trace.{name}={kind}")
    return overrides


def _of_task(rng: random.Random, task: str, inputs: Inputs) -> list[str]:
    """Overrides that the task cannot do without, and what keeps it short."""
    if task == "report":
        return [f"results=[{','.join(map(str, rng.sample(inputs.runs, rng.choice([1, 2]))))}]"]
    if task == "profile":
        return ["profile.time_budget_s=0.001", "model=llama-3.1-70b"]  # too large to be measured: ends in an error
    if task in ("capacity", "search"):
        short = ["capacity.num_requests=100", "capacity.max_probes=6", "capacity.workers=1"]
        space = ["search.space={block_size:[8,16]}", "search.trials=2"] if task == "search" else []
        return ["metrics.slo.ttft_ms=500", *short, *space]
    if task in ("validate", "calibrate"):
        measured, workload = rng.choice(inputs.measured)
        short = ["calibration.max_evaluations=10"] if task == "calibrate" else []
        return [f"validation.measured={measured}", *short, *([f"validation.workload={workload}"] if workload else [])]
    return []
