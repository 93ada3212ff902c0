"""Step times that are linear in the tokens of a step: four constants, for engines of which only request latencies are
known.

    decode step   step_s + context_token_s · sum of the contexts
    prompt step   prefill_step_s + prompt_token_s · prompt tokens
    mixed step    prefill_step_s + both sums

Prompt tokens include the padding to the longest prompt of the step where the engine pads. Attention within a prompt
grows with the square of the prompt's length; `prompt_token_s` includes it for prompts of average length. There is no
term per sequence, and so none per speculative token: in a served workload the number of sequences and the sum of their
contexts grow together, and request latencies hardly tell the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from engine.core.work import StepWork
from simulator.costs.constants import Constant
from simulator.costs.cost import step_time_ns
from simulator.device import Device
from simulator.models.model import Model

_NS = 1e9
_HIGH = 10.0  # the upper limit of a constant, as a multiple of its default


def constants(model: Model, device: Device, tensor_parallel_size: int) -> dict[str, Constant]:
    """The four constants, with defaults from the device's rates: weights, KV of a token and FLOPs of a token.

    Raises:
        UnsupportedQuantizationError: the device has no arithmetic for the model's weights.
    """
    bandwidth = device.memory_bandwidth * device.memory_efficiency
    step = device.step_overhead_s + model.weight_bytes(tensor_parallel_size) / bandwidth
    growing = model.kv_bytes_per_token(tensor_parallel_size, growing_only=True)  # a window does not grow
    defaults = {
        "step_s": step,
        "context_token_s": (growing or model.kv_bytes_per_token(tensor_parallel_size)) / bandwidth,
        "prefill_step_s": step,
        "prompt_token_s": _products_s(model, device, tensor_parallel_size),
    }
    return {name: Constant(value, 0.0, _HIGH * value) for name, value in defaults.items()}


def _products_s(model: Model, device: Device, tensor_parallel_size: int) -> float:
    """Seconds of the matrix products of one token in all layers."""
    seconds = 0.0
    for count, weights in model.matrices(tensor_parallel_size):
        if not weights.part.endswith("router"):
            quantization = model.format_of(weights.part)
            rate = quantization.products(model.dtype, device.flops, device.name).flops * device.flops_efficiency
            seconds += count * 2 * weights.used * weights.rows * weights.columns / rate
    return seconds


class LinearCost:
    """Cost model with four constants.

    Args:
        values: the value of each constant that `constants` names, in seconds.
        pads_prompts: whether the prompts of a step are padded to the longest of them.
    """

    def __init__(self, values: Mapping[str, float], *, pads_prompts: bool = False) -> None:
        self._step_ns = values["step_s"] * _NS
        self._context_token_ns = values["context_token_s"] * _NS
        self._prefill_step_ns = values["prefill_step_s"] * _NS
        self._prompt_token_ns = values["prompt_token_s"] * _NS
        self._pads_prompts = pads_prompts

    def step_ns(self, work: StepWork) -> int:
        contexts = self._context_token_ns * work.num_context_tokens
        if not work.chunks:
            return _at_least_1(self._step_ns + contexts)
        sizes = [chunk.num_tokens for chunk in work.chunks]
        num_tokens = max(sizes) * len(sizes) if self._pads_prompts else sum(sizes)
        return _at_least_1(self._prefill_step_ns + contexts + self._prompt_token_ns * num_tokens)

    def decode_ns(self, work: StepWork, num_steps: int) -> NDArray[np.int64]:
        times = self._step_ns + self._context_token_ns * work.contexts(num_steps)
        return np.maximum(np.rint(times), 1).astype(np.int64)


def _at_least_1(time_ns: float) -> int:
    """`time_ns` rounded. Fitted constants may all be 0, but every step takes time."""
    return step_time_ns(time_ns)
