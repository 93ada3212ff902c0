"""Parameters of towers for images, from the `vision_config` of a `config.json`: they take memory beside the text half.

Matrices and embeddings count; norms and biases, 0.1 %, do not. A layer of most towers has 4 matrices of attention, of
hidden·hidden each, and 2 of the MLP, of hidden·intermediate; Gemma-4 has 3. Beside the layers there are:

    Gemma-3           embeddings of patches and positions, a projection to the width of the text
    Gemma-4           the same, with a table of positions in each direction
    Kimi-K2.5         the same, with two matrices over 2·2 patches as projection
    Qwen3-VL, -3.5    the same, with such a projection for each layer that feeds the text, and frames in pairs
    Llama-4           the same, with an adapter of two matrices before the projection
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from engine.json_file import Fields, ModelError
from engine.model_sizes import MOST_LAYERS, MOST_WIDTH

_COLOURS = 3


def tower_parameters(data: Mapping[str, Any]) -> int:
    """Parameters of the tower for images that a `config.json` describes; 0 without one, and where its kind is not known
    or a size is not stated."""
    with suppress(ModelError):
        fields = Fields(data, "config.json")
        tower, text = fields.fields("vision_config"), fields.fields("text_config")
        kind = "kimi" if tower.data.get("vt_hidden_size") else str(tower.data.get("model_type"))
        if kind in _KINDS:
            return _KINDS[kind](tower, _size(text, "hidden_size"))
    return 0


def _size(fields: Fields, key: str) -> int:
    return fields.count(key, most=MOST_WIDTH)


def _layers(tower: Fields, prefix: str = "", *, layers: str = "num_hidden_layers", mlp_matrices: int = 2) -> int:
    hidden, number = _size(tower, f"{prefix}hidden_size"), tower.count(f"{prefix}{layers}", most=MOST_LAYERS)
    return number * hidden * (4 * hidden + mlp_matrices * _size(tower, f"{prefix}intermediate_size"))


def _patches(tower: Fields, hidden: int, frames: int = 1) -> int:
    return _COLOURS * frames * _size(tower, "patch_size") ** 2 * hidden


def _siglip(tower: Fields, text: int) -> int:
    hidden, positions = _size(tower, "hidden_size"), (_size(tower, "image_size") // _size(tower, "patch_size")) ** 2
    return _layers(tower) + _patches(tower, hidden) + positions * hidden + hidden * text


def _gemma4(tower: Fields, text: int) -> int:
    hidden = _size(tower, "hidden_size")
    positions = 2 * _size(tower, "position_embedding_size")
    return _layers(tower, mlp_matrices=3) + _patches(tower, hidden) + positions * hidden + hidden * text


def _kimi(tower: Fields, text: int) -> int:
    hidden = _size(tower, "vt_hidden_size")
    positions, merged = _size(tower, "init_pos_emb_height") * _size(tower, "init_pos_emb_width"), 4 * hidden
    return _layers(tower, "vt_") + _patches(tower, hidden) + positions * hidden + merged * (merged + text)


def _qwen3(tower: Fields, text: int) -> int:
    hidden, frames = _size(tower, "hidden_size"), _size(tower, "temporal_patch_size")
    merged = _size(tower, "spatial_merge_size") ** 2 * hidden
    number = 1 + len(tower.counts("deepstack_visual_indexes", most=MOST_LAYERS, most_values=MOST_LAYERS))
    projections = number * merged * (merged + _size(tower, "out_hidden_size"))
    positions = _size(tower, "num_position_embeddings")
    return _layers(tower, layers="depth") + _patches(tower, hidden, frames) + positions * hidden + projections


def _llama4(tower: Fields, text: int) -> int:
    hidden, positions = _size(tower, "hidden_size"), (_size(tower, "image_size") // _size(tower, "patch_size")) ** 2
    inner, output = _size(tower, "projector_input_dim"), _size(tower, "vision_output_dim")
    adapter = inner * (_size(tower, "intermediate_size") + _size(tower, "projector_output_dim")) + output * text
    return _layers(tower) + _patches(tower, hidden) + positions * hidden + adapter


_KINDS: dict[str, Callable[[Fields, int], int]] = {
    "siglip_vision_model": _siglip,
    "gemma4_vision": _gemma4,
    "kimi": _kimi,
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), _qwen3),
    "llama4_vision_model": _llama4,
}
