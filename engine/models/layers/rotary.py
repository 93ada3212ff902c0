"""The table of a rotary embedding."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from engine.models.model_config import ModelConfig
from engine.models.rope_scaling import RopeScaling, YarnRopeScaling


class Rotary(nn.Module):
    """Rotary position embedding from a float32 table `[max_position_embeddings, rope_dim]`, cosines before sines."""

    cos_sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        scaling = config.rope_scaling
        frequencies = rotary_frequencies(config.rope_dim, config.rope_theta, scaling)
        positions = torch.arange(config.max_position_embeddings, dtype=torch.float32)
        angles = torch.outer(positions, frequencies)
        table = torch.cat((angles.cos(), angles.sin()), dim=-1)
        factor = scaling.attention_factor if isinstance(scaling, YarnRopeScaling) else 1.0
        self.register_buffer("cos_sin", table.mul_(factor), persistent=False)


def rotary_frequencies(rope_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """Radians per position of each pair of dimensions, `float32[rope_dim / 2]`.

    A scaling keeps short wavelengths, stretches long ones by `factor`, and interpolates between the two (transformers,
    `modeling_rope_utils`): that of Llama 3.1 by the turns that a wavelength makes in the original context, that of YaRN
    by the number of the dimension.
    """
    frequencies = 1.0 / (theta ** (torch.arange(0, rope_dim, 2, dtype=torch.float32) / rope_dim))
    if scaling is None:
        return frequencies
    longest = scaling.original_max_position_embeddings
    if isinstance(scaling, YarnRopeScaling):
        low, high = (
            rope_dim * math.log(longest / (turns * 2 * math.pi)) / (2 * math.log(theta))
            for turns in (scaling.beta_fast, scaling.beta_slow)
        )
        if scaling.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rope_dim - 1)
        stretched = (torch.arange(rope_dim // 2, dtype=torch.float32) - low) / (high - low or 0.001)
        kept = 1 - stretched.clamp(0, 1)
    else:
        turns = longest * frequencies / (2 * math.pi)
        kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        kept = kept.clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor
