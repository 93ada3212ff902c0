"""Configuration of speculative decoding: what drafts tokens, and in simulation how many of them are accepted."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from engine.prompt_lookup import NgramOptions
from harness.config.schema.base import ConfigModel, Text, check_ranges, default_of, within
from harness.config.schema.model import ModelConfig
from harness.config.schema.system import EngineConfig, SchedulerConfig

Share = Annotated[float, Field(ge=0, le=1)]


class NoSpeculation(ConfigModel):
    """Every step brings one token of a sequence."""

    kind: Literal["none"] = "none"


class AcceptanceConfig(ConfigModel):
    """How many drafts a simulation accepts; the real engine verifies them.

    Attributes:
        acceptance_rate: probability that a draft is accepted if those before it are.
        acceptance_rates: instead, for each draft the probability that it and all before it are accepted, as vLLM logs
            them.
        acceptance_lengths: instead, a YAML file of mean tokens per step by number of drafts, as InferenceX's
            golden_al_distribution/*.yaml.
        acceptance_mode: which of the lengths in that file, such as thinking_on or thinking_off.
    """

    acceptance_rate: Share = 0.7
    acceptance_rates: Annotated[tuple[Share, ...], Field(strict=False)] | None = None
    acceptance_lengths: Text | None = None
    acceptance_mode: Text = "thinking_on"

    @property
    def changed_acceptance(self) -> str | None:
        """The first key of these that is not at its default."""
        fields = AcceptanceConfig.model_fields
        return next((name for name in fields if getattr(self, name) != default_of(AcceptanceConfig, name)), None)


class NgramSpeculation(AcceptanceConfig, NgramOptions):  # type: ignore[misc]  # frozen, as ConfigModel says
    """Drafts by prompt lookup: the fields of `NgramOptions`."""

    kind: Literal["ngram"] = "ngram"

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        self.__post_init__()
        check_ranges(self)
        _check_acceptance(self, self.num_speculative_tokens)
        return self


class DraftModelSpeculation(AcceptanceConfig):
    """Drafts by a model, in simulation only.

    Attributes:
        num_speculative_tokens: drafts that a step verifies per sequence.
        drafter: sizes of the model that drafts; null for drafts that take draft_token_s and no memory, such as those
            of prediction heads.
        draft_token_s: seconds that drafting a token takes beside what the drafter's sizes say, for all sequences of a
            step together.
    """

    kind: Literal["draft_model"] = "draft_model"
    num_speculative_tokens: Annotated[int, within("num_speculative_tokens")] = 3
    drafter: ModelConfig | None = None
    draft_token_s: Annotated[float, within("draft_token_s")] = 0.0

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        _check_acceptance(self, self.num_speculative_tokens)
        return self


SpeculationConfig = Annotated[NoSpeculation | NgramSpeculation | DraftModelSpeculation, Field(discriminator="kind")]


def _check_acceptance(config: AcceptanceConfig, num_drafts: int) -> None:
    rates = config.acceptance_rates
    if rates is not None:
        if config.acceptance_lengths is not None:
            raise ValueError(f"acceptance_lengths={config.acceptance_lengths!r}: give this or acceptance_rates")
        if len(rates) != num_drafts:
            raise ValueError(
                f"acceptance_rates={list(rates)}: must have num_speculative_tokens={num_drafts} numbers, one per draft"
            )
        from simulator.acceptance import check_rates  # imported late, as it brings numpy

        if wrong := check_rates(rates):
            raise ValueError(f"acceptance_rates={list(rates)}: {wrong}")
    if (rates or config.acceptance_lengths) and config.changed_acceptance == "acceptance_rate":
        name = "acceptance_rates" if rates else "acceptance_lengths"
        raise ValueError(f"acceptance_rate={config.acceptance_rate:g}: give this or {name}")


def check_fits(
    config: SpeculationConfig,
    engine: EngineConfig,
    scheduler: SchedulerConfig,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    tensor_parallel_size: int,
) -> None:
    """Raise ValueError where drafts go with no such engine, scheduler or limits."""
    if config.kind == "none":
        return
    per_decode = 1 + config.num_speculative_tokens
    if max_num_batched_tokens < per_decode * max_num_seqs:
        raise ValueError(
            f"max_num_batched_tokens={max_num_batched_tokens}: must be >= {per_decode} * max_num_seqs={max_num_seqs}, "
            f"so that the tokens of all sequences and their speculation.num_speculative_tokens={per_decode - 1} drafts "
            "fit into a step"
        )
    if scheduler.async_scheduling and engine.kind != "sim":
        raise ValueError(
            f"scheduler.async_scheduling=true: must be false with speculation={config.kind} and engine={engine.kind}, "
            "which knows what a step brings only when it has run; use engine=sim"
        )
    if engine.kind == "sim":
        if engine.max_lookahead_steps > 1:
            raise ValueError(
                f"engine.max_lookahead_steps={engine.max_lookahead_steps}: must be 1 with speculation={config.kind}, "
                "since the drafts of a step depend on the tokens of the one before"
            )
    elif config.kind == "draft_model":
        raise ValueError(
            f"speculation=draft_model: engine={engine.kind} drafts by prompt lookup only; use speculation=ngram or "
            "engine=sim"
        )
    elif key := config.changed_acceptance:
        raise ValueError(
            f"speculation.{key}: engine={engine.kind} verifies its drafts, so it reads no acceptance; use engine=sim"
        )
    if config.kind == "draft_model" and (drafter := config.drafter) is not None:
        size = tensor_parallel_size
        if wrong := drafter.shares_out(size):
            raise ValueError(f"speculation.drafter: tensor_parallel_size={size} {wrong} of the drafter")
