"""Configuration of the tasks on measured runs: which run, which part of it, which constants."""

from typing import Annotated, Literal

from pydantic import Field

from harness.config.base import ConfigModel, PositiveFloat, PositiveInt, Text

Part = Literal["all", "first_half", "second_half"]
StepStatistic = Literal["median", "fastest"]
Objective = Literal["steps", "statistics", "requests"]


class ValidationConfig(ConfigModel):
    """The measured run that a simulation is compared with, as `<kind>:<path>`; kinds are those of `harness.measured`.

    `workload` is the file that was replayed, for formats whose log lacks the prompts; `repeats` are more runs of the
    same, as `measured`; `retimed` are folders of task=retime with more executions of its steps; `score` is the part of
    the requests, by order of arrival, that is compared; `step_times` says whether its latencies are those of the run or
    as if each step had taken the median of its executions, or the fastest of them, a profile's too;
    `latency_from` is where TTFT and E2EL start: at the arrival, or when the scheduler first saw the request;
    `recover_steps` finds the steps of another engine's run from its log and compares them one by one.
    """

    measured: Text | None = None
    workload: Text | None = None
    repeats: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    retimed: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    score: Part = "all"
    step_times: Literal["measured"] | StepStatistic = "measured"
    latency_from: Literal["arrival", "queued"] = "arrival"
    recover_steps: bool = False


class RetimingConfig(ConfigModel):
    """How often task=retime executes the steps of `validation.measured`."""

    repeats: PositiveInt = 5


class CalibrationConfig(ConfigModel):
    """What is fitted to the measured run of `validation.measured`: `constants` of the cost model, all it has when
    empty, to the `part` of the requests, with at most `max_evaluations` simulations. `objective` is what counts: the
    errors of the "steps" one by one, known of our own engine and recovered from logs of vLLM, of "statistics" of the
    latencies, or of the latencies of "requests" one by one. None takes steps where they are known, and else statistics.
    `widths` replaces how far from their defaults constants may well be, which a fit weighs against the misfit."""

    constants: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    part: Part = "all"
    objective: Objective | None = None
    widths: dict[str, PositiveFloat] | None = None
    max_evaluations: PositiveInt = 400
