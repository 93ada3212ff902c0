"""What a command line changes of a model's `config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engine.json_file import Fields, ModelError
from harness.config.command_lines.known_models import KnownModels
from harness.config.huggingface.configs import longest_context
from harness.config.huggingface.keys import is_harmless
from harness.errors import ConfigError

_LONGEST = ("max_position_embeddings", "rope_scaling", "rope_parameters")
# Keys of a config.json whose value is one key of ours.
_SIZES = {
    "num_hidden_layers": "num_layers", "hidden_size": "hidden_size", "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_kv_heads", "head_dim": "head_dim", "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size", "tie_word_embeddings": "tie_word_embeddings",
}  # fmt: skip


def changed_model(
    flag: str, values: Mapping[str, str], made: Mapping[str, Any], known: KnownModels, notes: list[str]
) -> dict[str, Any]:
    """Keys of ours for the JSON of `flag`, if it is among `values`.

    Args:
        made: keys that the command line has given so far, `model` among them, unless that is given beside it.
    """
    if not (text := values.get(flag)):
        return {}
    if "model" in made:
        return hf_overrides(flag, text, made["model"], known.positions(made["model"]))
    notes.append(f"{flag}: left out, as model is given beside")
    return {}


def hf_overrides(flag: str, text: str, model: str, positions: int | None) -> dict[str, Any]:
    """Keys of ours for the JSON of `flag`.

    Args:
        model: the option of the group `model`; `hf` has a `config.json`, whose keys are replaced.
        positions: the `max_position_embeddings` of any other option, None if it states none.

    Raises:
        ConfigError: it is no JSON object, or has a key that only a `config.json` tells the meaning of.
    """
    values = json_object(flag, text)
    if model == "hf":
        return {"model.hf_overrides": values}
    known = {*_LONGEST, *_SIZES}
    if odd := [key for key in values if key not in known and not is_harmless(key)]:
        raise ConfigError(
            f"{flag}: {', '.join(odd)[:200]}: give the folder of the model's config.json in place of its name"
        )
    made = {f"model.{_SIZES[key]}": value for key, value in values.items() if key in _SIZES}
    if any(key in values for key in _LONGEST):
        fields = Fields({"max_position_embeddings": positions, **values}, flag)
        try:
            longest = longest_context(fields)
        except ModelError as error:
            raise ConfigError(str(error)) from None
        made["model.max_position_embeddings"] = longest
    return made


def json_object(flag: str, text: str) -> Mapping[str, Any]:
    """The JSON object of a flag; raises ConfigError."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{flag}: no JSON ({error})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{flag}: must be a JSON object")
    return values
