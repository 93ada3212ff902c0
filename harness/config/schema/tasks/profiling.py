"""Configuration of task=profile: where the profile goes, and how long to measure."""

from typing import Annotated

from harness.config.schema.base import ConfigModel, Text, within


class ProfileConfig(ConfigModel):
    """`out` is the profile's folder, None for one named after device, model and ranks in `simulator/profiles`;
    `time_budget_s` is how long to measure; `max_context` the longest context, None for `max_model_len`; `repeats` how
    often every point is measured in the time that refining the grids leaves; `overwrite` replaces a profile of
    another model or format."""

    out: Text | None = None
    time_budget_s: Annotated[float, within("time_budget_s")] = 120.0
    max_context: Annotated[int, within("max_context")] | None = None
    repeats: Annotated[int, within("repeats")] = 4
    overwrite: bool = False
