"""The configuration of one run."""

from typing import Self

from pydantic import model_validator

from harness.config.consistency import check_together
from harness.config.run_keys import RunKeys


class RunConfig(RunKeys):
    """The keys of a run, checked together."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        check_together(self)
        return self
