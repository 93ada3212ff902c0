"""Configuration of the tasks on measured runs: which run, which part of its requests, which constants to fit."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from harness.config.schema.base import ConfigModel, Fraction, PositiveFloat, Text, within

Part = Literal["all", "first_half", "second_half", "fitted", "held_out"]
"""Halves are by order of arrival; fitted and held-out loads are those of task=observe."""
LatencyFrom = Literal["arrival", "queued"]
RequestColumn = Literal[
    "arrival_time", "first_token_time", "ttft", "finish_time", "e2el", "num_prompt_tokens", "num_output_tokens"
]
Objective = Literal["steps", "statistics"]


class ValidationConfig(ConfigModel):
    """The measured run to compare with, as `<kind>:<path>`; `harness.measured` has the kinds.

    `workload` is the file of replayed requests, for formats whose log lacks the prompts. `columns` are our columns by
    the names that a CSV file has for them. `repeats` are more measured runs of the same configuration.
    `score` selects the requests to compare. `latency_from` is where TTFT and E2EL start: at the
    arrival, or when the scheduler first saw the request.

    For public measurements (`inferencex:`): `select` has the values that columns of the file must have; each client
    sends `requests_per_client` requests, with lengths drawn from `length_ratio` times the stated length to that length.
    Each server has `seats`, None for as many as clients, and computes `tokens_beyond_prompt` more tokens a step than a
    prompt has, `prompt` for as many again, None for max_num_batched_tokens. `ranks_from` and `shares_experts` say which
    layouts the servers had that rows are labelled with (`harness.measured.inferencex.Labels`). Settings that are not
    given are those of the known servers of the rows (`harness.measured.public_servers`).
    """

    measured: Text | None = None
    workload: Text | None = None
    repeats: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    score: Part = "all"
    latency_from: LatencyFrom = "arrival"
    columns: dict[str, RequestColumn] = {}
    select: dict[str, str] = {}
    length_ratio: Fraction = 0.8
    requests_per_client: Annotated[int, Field(ge=1, le=10_000)] = 10
    seats: Annotated[int, within("max_num_seqs")] | None = None
    tokens_beyond_prompt: Annotated[int, within("num_tokens")] | Literal["prompt"] | None = None
    ranks_from: dict[int, int] | None = None
    shares_experts: bool = True

    @field_validator("select", mode="before")
    @classmethod
    def _empty_as_text(cls, select: Any) -> Any:
        """nan on a command line is a number; in the file it stands for an empty cell."""
        if not isinstance(select, dict):
            return select
        return {key: "nan" if value != value else value for key, value in select.items()}


_Load = Annotated[float, Field(gt=0, le=1)]


class ObserveConfig(ConfigModel):
    """`time_s`: task=observe drives the server for at most so long.

    `loads` are fitted and `held_out_load` is predicted; both are shares of the requests/s that the server can serve.
    """

    time_s: Annotated[float, Field(ge=1, le=86_400)] = 600.0
    loads: Annotated[tuple[_Load, ...], Field(strict=False, min_length=1)] = (0.2, 0.5, 0.8)
    held_out_load: _Load = 0.65

    @model_validator(mode="after")
    def _held_out_is_not_fitted(self) -> Self:
        if len({*self.loads, self.held_out_load}) < len(self.loads) + 1:
            raise ValueError("loads, held_out_load: must differ")
        return self


class CalibrationConfig(ConfigModel):
    """What task=calibrate fits to the run of `validation.measured`.

    `constants` names those to fit; empty means all of the cost model, for task=observe those that a client can see.
    `part` selects the requests. `objective` is the error to minimise: that of single `steps`, known for runs of our own
    engine, or that of the `statistics` of the latencies; None takes steps where they are known. task=observe decides
    both itself. `widths` replaces, for some constants, how far from its
    default the fitted value is expected to be. `max_evaluations` bounds the number of simulations.
    """

    constants: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    part: Part = "all"
    objective: Objective | None = None
    widths: dict[str, PositiveFloat] | None = None
    max_evaluations: Annotated[int, within("max_evaluations")] = 400
