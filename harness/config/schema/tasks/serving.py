"""Configuration of `task=serve`."""

from typing import Annotated

from pydantic import Field

from harness.config.schema.base import ConfigModel, PositiveInt, Text


class ServeConfig(ConfigModel):
    """The server; the comments in conf/config.yaml explain the keys."""

    host: Text = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8000
    model_name: Text | None = None
    max_waiting: Annotated[int, Field(ge=0)] | None = None
    answer_tokens: PositiveInt = 256
    servers: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    record: bool = False
