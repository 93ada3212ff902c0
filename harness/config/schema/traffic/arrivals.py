"""Configuration of when requests arrive."""

from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, WrapValidator

from harness.config.schema.base import ConfigModel, CustomConfig, NonNegativeFloat, PositiveFloat, PositiveInt

RECORDED = "trace"  # as a think time: that of the trace
ThinkTime = Annotated[
    NonNegativeFloat,
    WrapValidator(lambda value, validate: RECORDED if value == RECORDED else validate(value)),
    PlainSerializer(lambda value: value, return_type=Any),
]


class TraceArrival(ConfigModel):
    """The trace's own arrival times, multiplied by `time_scale`."""

    kind: Literal["trace"] = "trace"
    time_scale: PositiveFloat = 1.0


class PoissonArrival(ConfigModel):
    """Independent arrivals at `rate` requests/s."""

    kind: Literal["poisson"] = "poisson"
    rate: PositiveFloat


class GammaArrival(ConfigModel):
    """Gamma-distributed gaps at `rate` requests/s; `burstiness` is the shape, their CV is 1/sqrt(burstiness)."""

    kind: Literal["gamma"] = "gamma"
    rate: PositiveFloat
    burstiness: PositiveFloat


class ConstantArrival(ConfigModel):
    """Equal gaps at `rate` requests/s."""

    kind: Literal["constant"] = "constant"
    rate: PositiveFloat


class AllAtOnceArrival(ConfigModel):
    """Every request at time 0."""

    kind: Literal["all_at_once"] = "all_at_once"


class ClosedLoopArrival(ConfigModel):
    """`concurrency` clients, each sending its next request when the one before has finished."""

    kind: Literal["closed_loop"] = "closed_loop"
    concurrency: PositiveInt


class SessionsArrival(ConfigModel):
    """Sessions start at `rate` per second (Poisson); a turn follows the end of the one before after a think time,
    exponential with mean `think_time` seconds, or as the trace has recorded it (`think_time=trace`)."""

    kind: Literal["sessions"] = "sessions"
    rate: PositiveFloat
    think_time: ThinkTime = 0.0


class CustomArrival(CustomConfig):
    """Arrivals of a function of the user's own: it is given `trace`, `rng` and the options, and returns the times
    of the requests in s, ascending, or an object like `simulator.arrivals.Arrivals`."""


ArrivalConfig = Annotated[
    TraceArrival
    | PoissonArrival
    | GammaArrival
    | ConstantArrival
    | AllAtOnceArrival
    | ClosedLoopArrival
    | SessionsArrival
    | CustomArrival,
    Field(discriminator="kind"),
]
