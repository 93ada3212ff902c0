"""What all configuration models share: strict, frozen pydantic models and the number types they are made of."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from simulator.quantities import RANGES

PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Text = Annotated[str, Field(min_length=1)]
_SECRET = re.compile(
    r"(^|[_-])(api_?key|key|secret|password|passwd|credentials?|authorization|bearer)$"
    r"|(access|auth|bearer|api|hf|id|refresh|session)[_-]?token$",
    re.IGNORECASE,
)


def within(quantity: str) -> Any:
    """Limits a key to the range of a quantity."""
    return Field(ge=RANGES[quantity].low, le=RANGES[quantity].high)


def check_ranges(options: BaseModel) -> None:
    """Check keys whose type comes from a package below, without limits.

    Raises:
        ValueError: a value is out of the range of its quantity.
    """
    for name in type(options).model_fields:
        value = getattr(options, name)
        if name in RANGES and value is not None and not RANGES[name].holds(value):
            raise ValueError(f"{name}={value}: must be {RANGES[name]}")


def secret_in(values: Mapping[str, Any], prefix: str = "") -> str | None:
    """The first key, dotted, whose name says that its value is a secret; None where there is none."""
    for name, value in values.items():
        if _SECRET.search(str(name)) and isinstance(value, str):
            return f"{prefix}{name}"
        if isinstance(value, Mapping) and (found := secret_in(value, f"{prefix}{name}.")):
            return found
    return None


class ConfigModel(BaseModel):
    """Base of all configuration models: unknown keys are errors, types are not converted (but int to float)."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True,
        defer_build=True,  # most models are only parts of RunConfig, and --help needs none
    )  # fmt: skip

    def changed(self, but: str | None = None) -> str | None:
        """The first key that is not at its default; the key `but` does not count. None if there is none."""
        names = [name for name in type(self).model_fields if name != but]
        return next((name for name in names if getattr(self, name) != default_of(type(self), name)), None)


def default_of(model: type[BaseModel], name: str) -> Any:
    """The default of a key. Groups are made anew: as values of their own they would be checked at each start."""
    return model.model_fields[name].get_default(call_default_factory=True)


class CustomConfig(ConfigModel):
    """Code of the user's own that stands in for an option of this project.

    Attributes:
        target: the function, as package.module:name; the module is found where Python finds its packages, or in the
            working directory.
        options: arguments for it, by name.
    """

    kind: Literal["custom"] = "custom"
    target: Text
    options: dict[str, Any] = {}
