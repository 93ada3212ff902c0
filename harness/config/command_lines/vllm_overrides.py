"""What `--hf-overrides` and `--override-generation-config` of vLLM change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engine.json_file import Fields, ModelError
from harness.config.command_lines.vllm_line import KEY
from harness.config.huggingface import longest_context
from harness.config.huggingface_keys import is_harmless
from harness.errors import ConfigError

_HF, _GENERATION = "--hf-overrides", "--override-generation-config"
_LONGEST = ("max_position_embeddings", "rope_scaling", "rope_parameters")
# Keys of a config.json whose value is one key of ours.
_SIZES = {
    "num_hidden_layers": "num_layers", "hidden_size": "hidden_size", "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_kv_heads", "head_dim": "head_dim", "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size", "tie_word_embeddings": "tie_word_embeddings",
}  # fmt: skip


def hf_overrides(text: str, model: str, positions: int | None) -> dict[str, Any]:
    """Keys of ours for the JSON of `--hf-overrides`.

    Args:
        model: the option of the group `model`; `hf` has a `config.json`, whose keys are replaced.
        positions: the `max_position_embeddings` of any other option, None if it states none.

    Raises:
        ConfigError: it is no JSON object, or has a key that only a `config.json` tells the meaning of.
    """
    values = _object(_HF, text)
    if model == "hf":
        return {"model.hf_overrides": values}
    known = {*_LONGEST, *_SIZES}
    if odd := [key for key in values if key not in known and not is_harmless(key)]:
        raise ConfigError(
            f"{KEY}: {_HF}: {', '.join(odd)[:200]}: give the folder of the model's config.json in place of its name"
        )
    made = {f"model.{_SIZES[key]}": value for key, value in values.items() if key in _SIZES}
    if any(key in values for key in _LONGEST):
        fields = Fields({"max_position_embeddings": positions, **values}, _HF)
        try:
            longest = longest_context(fields)
        except ModelError as error:
            raise ConfigError(f"{KEY}: {error}") from None
        made["model.max_position_embeddings"] = longest
    return made


def generation_notes(text: str) -> list[str]:
    """What is said of `--override-generation-config`, which sets how tokens are chosen, and the longest answer.

    Raises:
        ConfigError: it is no JSON object.
    """
    longest = _object(_GENERATION, text).get("max_new_tokens")
    if longest is None:
        return [f"{_GENERATION}: left out"]
    return [f"{_GENERATION}: max_new_tokens={longest} cuts answers in vLLM; those of the trace keep their lengths here"]


def _object(flag: str, text: str) -> Mapping[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{KEY}: {flag}: no JSON ({error})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{KEY}: {flag}: must be a JSON object")
    return values
