"""Configuration of the tasks that search: for the capacity of a configuration, and for the best configuration."""

from typing import Annotated, Literal

from pydantic import Field

from harness.config.schema.base import ConfigModel, NonNegativeFloat, PositiveFloat, PositiveInt, Text
from harness.config.schema.traffic.workload import RequestCount

Choices = Annotated[tuple[str | int | float | bool | None, ...], Field(strict=False, min_length=1)]
Direction = Literal["maximize", "minimize"]


class CapacityConfig(ConfigModel):
    """How task=capacity searches for the highest load at which the SLO holds.

    Attributes:
        over: the key to raise; null takes the load of the arrival process (arrival.rate, arrival.concurrency or
            arrival.time_scale). The search starts at the value that the key has. With over=replicas it looks for the
            fewest servers that hold the SLO at the load as it is.
        target_rate: how many servers bear so many requests/s; the same as over=replicas arrival.rate=<this>.
        precision: the search ends when the 95 % interval reaches this share of the capacity to each side, or less.
        max_probes: most runs of a search.
        num_requests: requests of a probe; the first ones, which find the neighbourhood, have a fifth, the next two a
            half, and the last ones up to six times as many, where the interval would stay too wide. Each leaves out its
            own ramp-up, in place of metrics.warmup and metrics.drain.
        workers: processes that run probes; null takes one per core.
        confirm: run the lower end of the interval with this many times the requests of a probe, in up to four runs
            side by side with other seeds (in one, where a trace comes from a file); 0 does not.
    """

    over: Text | None = None
    target_rate: PositiveFloat | None = None
    precision: Annotated[float, Field(ge=0.001, le=0.5)] = 0.02
    max_probes: Annotated[int, Field(ge=6, le=500)] = 12
    num_requests: Annotated[RequestCount, Field(ge=100)] = 40_000
    workers: PositiveInt | None = None
    confirm: NonNegativeFloat = 0.0


class SearchConfig(ConfigModel):
    """What task=search explores, and for what.

    Attributes:
        space: values to choose from by key, such as {block_size: [16, 32], max_num_seqs: "128..1024"}; low..high is a
            range, of whole numbers if both ends are.
        objective: capacity_per_gpu, or a number of the summary such as request_goodput or output_throughput_per_gpu.
        direction: of the objective.
        trials: configurations to try, those of an earlier search in the folder included.
        time_s: begin no further trial after this many seconds; null sets no limit.
        workers: trials at a time, each in a process of its own. With one, a trial runs its probes in parallel.
    """

    space: dict[str, str | Choices] | None = None
    objective: Text = "capacity_per_gpu"
    direction: Direction = "maximize"
    trials: Annotated[int, Field(ge=1, le=100_000)] = 30
    time_s: PositiveFloat | None = None
    workers: PositiveInt = 1
