"""Configuration of how the slots of the KV memory are handed out."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from engine.core.kv.reserved.reservation import Contiguous
from harness.config.schema.base import ConfigModel


class PagedAllocator(ConfigModel):
    """Blocks, taken one by one as sequences grow."""

    kind: Literal["paged"] = "paged"


class ContiguousAllocator(ConfigModel, Contiguous):  # type: ignore[misc]  # frozen, as ConfigModel says
    """A range of consecutive blocks for each sequence, taken as a whole when it is admitted."""

    kind: Literal["contiguous"] = "contiguous"

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        self.__post_init__()
        return self


AllocatorConfig = Annotated[PagedAllocator | ContiguousAllocator, Field(discriminator="kind")]
