"""Configuration of the tools that results are sent to, beside the output folder."""

from datetime import datetime
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from harness.config.schema.base import ConfigModel, Text


def check_address(key: str, address: str | None, variable: str) -> None:
    """Raises ValueError for an address with a password, which results would hold."""
    if address is not None and urlsplit(address).password is not None:
        raise ValueError(f"{key}: must hold no password; put the address into the environment variable {variable}")


class MlflowSink(ConfigModel):
    """A run of MLflow for each run; those of a sweep are children of one.

    Attributes:
        tracking_uri: address of the server, or a local store such as sqlite:///mlflow.db; null takes
            MLFLOW_TRACKING_URI, and without it MLflow's own default. Passwords and tokens are read from
            MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD and MLFLOW_TRACKING_TOKEN.
        experiment_name: the experiment, which is made if it is not there.
        run_name: null takes the name of the output folder.
        tags: more tags, such as {team: serving}.
        artifacts: whether tables, figures and the page are sent, too.
    """

    tracking_uri: Text | None = None
    experiment_name: Text = "twinserve"
    run_name: Text | None = None
    tags: dict[str, str] = {}
    artifacts: bool = True

    @model_validator(mode="after")
    def _check_address(self) -> Self:
        check_address("tracking_uri", self.tracking_uri, "MLFLOW_TRACKING_URI")
        return self


class WandbSink(ConfigModel):
    """A run of Weights & Biases for each run; those of a sweep are a group. The key is read from WANDB_API_KEY.

    Attributes:
        project: the project.
        entity: user or team; null takes the default of the account.
        name: of the run; null takes the name of the output folder.
        group: of the runs; null takes the name of the folder of the sweep.
        tags: of the runs.
        mode: online; or offline, to be sent with `wandb sync`.
        artifacts: whether tables, figures and the page are sent, too.
    """

    project: Text = "twinserve"
    entity: Text | None = None
    name: Text | None = None
    group: Text | None = None
    tags: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    mode: Literal["online", "offline"] = "online"
    artifacts: bool = True


class OtelSink(ConfigModel):
    """A trace of OpenTelemetry for each request, with a span for each thing that happened to it.

    Attributes:
        exporter: otlp (to a collector, by HTTP), file (spans.jsonl in the output folder: OTLP as JSON lines), console.
        endpoint: of the collector, such as http://localhost:4318; null takes OTEL_EXPORTER_OTLP_ENDPOINT, and without
            it that address. Headers with keys are read from OTEL_EXPORTER_OTLP_HEADERS.
        service_name: of the resource that the spans are of.
        start: date with time and zone that the start of the run stands for, such as 2026-01-31T12:00:00Z; null lets the
            run end when its results were written.
    """

    exporter: Literal["otlp", "file", "console"] = "otlp"
    endpoint: Text | None = None
    service_name: Text = "twinserve"
    start: Text | None = None

    @model_validator(mode="after")
    def _check_address(self) -> Self:
        check_address("endpoint", self.endpoint, "OTEL_EXPORTER_OTLP_ENDPOINT")
        if self.endpoint is not None and self.exporter != "otlp":
            raise ValueError(f"endpoint: exporter={self.exporter} sends to none")
        return self

    @model_validator(mode="after")
    def _check_start(self) -> Self:
        try:
            has_zone = self.start is None or datetime.fromisoformat(self.start).tzinfo is not None
        except ValueError:
            has_zone = False
        if not has_zone:
            raise ValueError(f"start={self.start!r}: must be a date with time and zone, such as 2026-01-31T12:00:00Z")
        return self


class SinksConfig(ConfigModel):
    """Tools that results are sent to; those that are null get nothing."""

    mlflow: MlflowSink | None = None
    wandb: WandbSink | None = None
    otel: OtelSink | None = None

    @property
    def names(self) -> list[str]:
        """Of the tools that results are sent to."""
        return [name for name in type(self).model_fields if getattr(self, name) is not None]
