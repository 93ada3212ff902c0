"""How the weights of a model are stored, and in which arithmetic its matrix products run.

The formats apply to the linear layers of attention and MLPs. Embeddings, norms, the router of a mixture of experts and
the LM head stay in the model's dtype, as in the checkpoints that vLLM serves. The dtype of the KV cache is a setting
of its own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Quantization:
    """A format of weights.

    Attributes:
        name: as in the configuration, `quantization=<name>`.
        weight_bits: bits of an element, with its share of the scales; None keeps the model's dtype.
        arithmetic: key of the device's `flops` that prices products; None takes that of the model's dtype.
        quantizes_activations: whether the input of each product is quantised first.
        experts_only: whether only the experts of a mixture are quantised.
    """

    name: str
    weight_bits: float | None = None
    arithmetic: str | None = None
    quantizes_activations: bool = False
    experts_only: bool = False


QUANTIZATIONS = {
    entry.name: entry
    for entry in (
        Quantization("none"),
        Quantization("fp8", 8, "fp8", quantizes_activations=True),  # e4m3, a scale per tensor or output channel
        Quantization("fp8_block", 8 + 32 / 128**2, "fp8", quantizes_activations=True),  # float32 scale per 128 x 128
        Quantization("int8", 8, "int8", quantizes_activations=True),  # W8A8, a scale per output channel
        Quantization("int4", 4 + 16 / 128),  # W4A16: 16-bit scale per group of 128 (GPTQ, AWQ); products in 16 bits
        Quantization("nvfp4", 4 + 8 / 16, "fp4", quantizes_activations=True),  # e2m1, an e4m3 scale per 16
        Quantization("mxfp4", 4 + 8 / 32, experts_only=True),  # e2m1, a scale of 8 bits per 32; W4A16, as gpt-oss
    )
}
