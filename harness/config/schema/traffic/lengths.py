"""Configuration of how many tokens a prompt or an output has."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from harness.config.schema.base import ConfigModel
from simulator.quantities import MAX_TOKENS

Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]


class ConstantLengths(ConfigModel):
    """Every length is `value` tokens."""

    kind: Literal["constant"] = "constant"
    value: Tokens


class UniformLengths(ConfigModel):
    """Whole numbers of tokens from `low` to `high`, both included, equally likely."""

    kind: Literal["uniform"] = "uniform"
    low: Tokens
    high: Tokens

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.high < self.low:
            raise ValueError(f"high={self.high}: must be >= low={self.low}")
        return self


class LognormalLengths(ConfigModel):
    """Lognormal with `mean` and `std` in tokens (not in logarithms), before rounding and clipping to [min, max].

    Attributes:
        mean: tokens.
        std: standard deviation in tokens.
        min: shorter lengths become this one.
        max: longer lengths become this one; null: no upper bound.
    """

    kind: Literal["lognormal"] = "lognormal"
    mean: Annotated[float, Field(ge=1e-3, le=MAX_TOKENS)]
    std: Annotated[float, Field(gt=0, le=MAX_TOKENS)]
    min: Tokens = 1
    max: Tokens | None = None

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max={self.max}: must be >= min={self.min}")
        return self


LengthsConfig = Annotated[ConstantLengths | UniformLengths | LognormalLengths, Field(discriminator="kind")]
