"""Speculative decoding of a configuration, in the types that the simulator takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.documents import errors_as, read_yaml
from harness.config.schema.speculation import AcceptanceConfig, SpeculationConfig
from harness.errors import ConfigError
from simulator.acceptance import Speculation, rates_of, rates_of_length


def resolve_speculation(config: SpeculationConfig, seed: int) -> Speculation | None:
    """What is drafted and accepted; None without speculation.

    Raises:
        ConfigError: the file of accepted lengths cannot be used.
    """
    if config.kind == "none":
        return None
    num_drafts = config.num_speculative_tokens
    if config.acceptance_rates is not None:
        rates = config.acceptance_rates
    elif config.acceptance_lengths is not None:
        length = accepted_length(Path(config.acceptance_lengths), config.acceptance_mode, num_drafts)
        rates = rates_of_length(length, num_drafts)
    else:
        rates = rates_of(config.acceptance_rate, num_drafts)
    return Speculation(rates, seed)


def accepted_from(config: AcceptanceConfig) -> str:
    """Where the accepted drafts of a simulation come from, in one line."""
    if config.acceptance_rates is not None:
        how = "at the given rates"
    elif config.acceptance_lengths is not None:
        how = f"as {config.acceptance_lengths} says on average"
    else:
        how = f"with an assumed probability of {config.acceptance_rate:g} each"
    return f"speculative drafts are accepted {how}: a simulation has no tokens to verify"


def accepted_length(path: Path, mode: str, num_drafts: int) -> float:
    """Mean tokens per step from a file with one model, whose modes have lengths by number of drafts.

    Keys that begin with an underscore are no models.

    Raises:
        ConfigError: the file cannot be read or has no such length.
    """
    key = f"speculation.acceptance_lengths={str(path)!r}"
    with errors_as(ConfigError, key):
        document = read_yaml(path)
    models = [value for name, value in _items(document) if not str(name).startswith("_")]
    if len(models) != 1:
        raise ConfigError(f"{key}: must hold the lengths of one model, holds {len(models)}")
    modes = {str(name): lengths for name, lengths in _items(models[0])}
    if mode not in modes:
        raise ConfigError(f"speculation.acceptance_mode={mode!r}: {path} has {', '.join(modes) or 'none'}")
    lengths = {str(number): length for number, length in _items(modes[mode])}
    length = lengths.get(str(num_drafts))
    if length is None:
        raise ConfigError(
            f"speculation.num_speculative_tokens={num_drafts}: {path} has lengths for {', '.join(lengths) or 'none'}"
        )
    if type(length) not in (int, float) or not 1 <= length <= 1 + num_drafts:
        raise ConfigError(f"{key}: {num_drafts} drafts bring from 1 to {1 + num_drafts} tokens, not {length!r}")
    return float(length)


def _items(document: Any) -> list[tuple[Any, Any]]:
    return list(document.items()) if isinstance(document, dict) else []
