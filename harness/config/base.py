"""What all configuration models share: strict, frozen pydantic models and the number types they are made of."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Text = Annotated[str, Field(min_length=1)]


class ConfigModel(BaseModel):
    """Base of all configuration models: unknown keys are errors, types are not converted (but int to float)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)
