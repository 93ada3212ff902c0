"""How the weights of a model are stored, and in which arithmetic its matrix products run.

The formats apply to the linear layers of attention and MLPs. Embeddings, norms, the router of a mixture of experts and
the LM head stay in the model's dtype, as in the checkpoints that vLLM serves; some routers are float32 in vLLM. The
dtype of the KV cache is a setting of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class UnsupportedQuantizationError(ValueError):
    """No kernel of vLLM multiplies weights of this format on the device; the message is one line."""


class Arithmetic(NamedTuple):
    """How a device multiplies by weights of a format.

    Attributes:
        flops: operations/s.
        input_bytes: bytes of an element of the quantised input; 0 where the input stays in the model's dtype.
    """

    flops: float
    input_bytes: float = 0.0


@dataclass(frozen=True)
class Quantization:
    """A format of weights.

    Attributes:
        name: as in the configuration, `quantization=<name>`.
        weight_bits: bits of an element without its scale; None keeps the model's dtype.
        scale_bytes: bytes of a scale.
        scale_block: rows and columns of a weight matrix that share a scale; None stands for all columns.
        arithmetic: key of the device's `flops` that prices products; None takes that of the model's dtype.
        input_bits: bits of an element of a product's input, which is quantised first; None leaves it as it is.
        is_weight_only_elsewhere: whether a device without that arithmetic multiplies in the model's dtype, as vLLM's
            Marlin kernels do; False where vLLM refuses such a device.
        experts_only: whether only the experts of a mixture are quantised.
    """

    name: str
    weight_bits: int | None = None
    scale_bytes: int = 0
    scale_block: tuple[int, int | None] = (1, None)
    arithmetic: str | None = None
    input_bits: int | None = None
    is_weight_only_elsewhere: bool = True
    experts_only: bool = False

    def matrix_bytes(self, rows: float, columns: float, dtype_bytes: int) -> float:
        """Bytes of a weight matrix and its scales; an element that is not quantised has `dtype_bytes`."""
        if self.weight_bits is None:
            return rows * columns * dtype_bytes
        block_rows, block_columns = self.scale_block
        scales = -(-rows // block_rows) * (-(-columns // block_columns) if block_columns else 1)
        return rows * columns * self.weight_bits / 8 + scales * self.scale_bytes

    def products(self, dtype: str, flops: Mapping[str, float], device: str) -> Arithmetic:
        """How `device` with rates `flops` multiplies inputs of `dtype` ("bf16" or "fp32") by weights of this format.

        Raises:
            UnsupportedQuantizationError: the device lacks the arithmetic, and vLLM has no kernel without it.
        """
        if self.arithmetic is None:
            return Arithmetic(flops[dtype])
        if self.arithmetic in flops:
            return Arithmetic(flops[self.arithmetic], (self.input_bits or 0) / 8)
        if self.is_weight_only_elsewhere:
            return Arithmetic(flops[dtype])
        raise UnsupportedQuantizationError(
            f"quantization={self.name}: {device} has no rate flops.{self.arithmetic} (there: {', '.join(flops)}); vLLM "
            "refuses this format on GPUs that it has no kernels for"
        )


NONE = Quantization("none")
FLOAT32 = Quantization("float32", 32, arithmetic="fp32")  # of routers, in no checkpoint as a whole
QUANTIZATIONS = {
    entry.name: entry
    for entry in (
        NONE,
        Quantization("fp8", 8, 4, arithmetic="fp8", input_bits=8),  # e4m3, a float32 scale per output channel
        Quantization("fp8_block", 8, 4, (128, 128), arithmetic="fp8", input_bits=8),  # DeepSeek's blocks
        # W8A8, a float32 scale per output channel.
        Quantization("int8", 8, 4, arithmetic="int8", input_bits=8, is_weight_only_elsewhere=False),
        Quantization("int4", 4, 2, (1, 128)),  # W4A16: a 16-bit scale per group of 128 (GPTQ, AWQ); products in 16 bits
        Quantization("int4_32", 4, 2, (1, 32)),  # the same with groups of 32, as Kimi-K2.5
        Quantization("nvfp4_w4a16", 4, 1, (1, 16)),  # weights as nvfp4; products in 16 bits
        Quantization("nvfp4", 4, 1, (1, 16), arithmetic="fp4", input_bits=4),  # e2m1, an e4m3 scale per 16
        Quantization("mxfp4", 4, 1, (1, 32), experts_only=True),  # e2m1, 8-bit scale per 32; W4A16, as gpt-oss
    )
}
