"""What each task needs, and which groups of keys only it reads."""

from typing import Literal

from harness.config.schema.metrics import SloConfig
from harness.config.schema.sinks import SinksConfig
from harness.config.schema.system import CostConfig, EngineConfig
from harness.config.schema.tasks.capacity import CapacityConfig, SearchConfig
from harness.config.schema.tasks.profiling import ProfileConfig
from harness.config.schema.tasks.serving import ServeConfig
from harness.config.schema.tasks.validation import CalibrationConfig, ObserveConfig, ValidationConfig

Task = Literal[
    "run", "report", "profile", "import", "validate", "calibrate", "observe", "plot", "capacity", "search", "serve"
]


def check_profile(task: Task, profile: ProfileConfig, engine: EngineConfig, cost: CostConfig) -> None:
    """Raise ValueError where no profile can be measured or imported, or keys are given that the task does not read."""
    if task == "profile" and engine.kind == "sim":
        raise ValueError("engine=sim: task=profile measures the real engine; use engine=cpu or engine=gpu")
    if task == "import" and ":" not in (getattr(cost, "profile", None) or ""):
        raise ValueError(
            "cost.profile: task=import needs a profile that another tool measured, such as "
            "cost=profiled cost.profile=aiconfigurator:h100_sxm"
        )
    but = "out" if task == "import" else None
    if task != "profile" and (key := profile.changed(but)):
        raise ValueError(f"profile.{key}: task={task} does not read it; a simulation reads cost.profile")


def check_measured(
    task: Task,
    engine: EngineConfig,
    validation: ValidationConfig,
    calibration: CalibrationConfig,
    observe: ObserveConfig,
) -> None:
    """Raise ValueError where the task lacks a measured run, or keys are given that it does not read."""
    simulates = task in ("validate", "calibrate")
    if simulates and validation.measured is None:
        raise ValueError(
            f"validation.measured: task={task} needs a measured run, such as validation.measured=run:outputs/a"
        )
    if not simulates and (key := validation.changed()):
        raise ValueError(f"validation.{key}: task={task} does not read it, task=validate does")
    if task not in ("calibrate", "observe") and (key := calibration.changed()):
        raise ValueError(f"calibration.{key}: read by task=calibrate and task=observe only")
    if task != "observe" and (key := observe.changed()):
        raise ValueError(f"observe.{key}: read by task=observe only")
    if task == "observe" and (calibration.part, calibration.objective) != ("all", None):
        raise ValueError("calibration.part, calibration.objective: task=observe fits latencies of its own loads")
    if task == "observe" and engine.kind != "openai":
        raise ValueError(f"engine={engine.kind}: task=observe drives a server; use engine=openai engine.endpoint=...")
    if simulates and engine.kind != "sim":
        raise ValueError(f"engine={engine.kind}: task={task} simulates; use engine=sim")


def check_searches(task: Task, slo: SloConfig, capacity: CapacityConfig, search: SearchConfig) -> None:
    """Raise ValueError where a search lacks its limits or its space, or keys are given that the task does not read."""
    finds_capacity = task == "capacity" or (task == "search" and search.objective == "capacity_per_gpu")
    if finds_capacity and (slo.ttft_ms, slo.tpot_ms, slo.e2el_ms) == (None, None, None):
        raise ValueError(f"metrics.slo: task={task} needs a limit to hold, such as metrics.slo.ttft_ms=500")
    if not finds_capacity and (key := capacity.changed()):
        raise ValueError(f"capacity.{key}: read by task=capacity, and by task=search for capacity_per_gpu, only")
    if task == "search" and not search.space:
        raise ValueError("search.space: task=search needs keys to vary, such as search.space={block_size:[16,32]}")
    if task != "search" and (key := search.changed()):
        raise ValueError(f"search.{key}: read by task=search only")


def check_sinks(task: Task, sinks: SinksConfig) -> None:
    """Raise ValueError where a task leaves nothing that the tools take."""
    if sinks.names and task not in ("run", "capacity", "validate"):
        raise ValueError(f"sinks={sinks.names[0]}: task={task} sends nothing; task=run, capacity and validate do")
    if sinks.otel is not None and task != "run":
        raise ValueError(f"sinks=otel: task={task} leaves no requests of its own; task=run does")


def check_serving(task: Task, serve: ServeConfig, engine: EngineConfig) -> None:
    """Raise ValueError where nothing could be served, or keys are given that the task does not read."""
    if task != "serve" and (key := serve.changed()):
        raise ValueError(f"serve.{key}: read by task=serve only")
    if engine.kind == "openai" and task not in ("run", "report", "plot", "capacity", "observe"):
        raise ValueError(f"engine=openai: task={task} needs another engine; task=run drives a server")
