"""What output tokens cost: GPU time at its price, and energy.

The price is the rent of a GPU per hour, `device.price_per_gpu_hour`. The energy is an estimate: nothing here measures
power. A GPU is taken to draw a tenth of its thermal design power while idle, all of it while a step runs, so

    power = num_gpus * tdp_w * (0.1 + 0.9 * busy)

with `busy` the share of time in which a step runs. Decode steps, which wait for memory, draw less than that, and the
host, the network and the cooling are not in it.
"""

from __future__ import annotations

from harness.config import RunConfig
from harness.config.pools import pools_of

_IDLE = 0.1  # of the thermal design power; 60 to 75 W of an H100's 700 W in nvidia-smi


def price_per_gpu_hour(config: RunConfig) -> float | None:
    """Rent of a GPU in US dollars, the mean where they differ; None where the price of one is not known."""
    if len({own.device.price_per_gpu_hour for _, own in pools_of(config)}) == 1:
        return pools_of(config)[0].config.device.price_per_gpu_hour
    price = _of_all(config, "price_per_gpu_hour")
    return None if price is None else price / config.num_gpus


def cost_per_million_tokens(config: RunConfig, tokens_per_s: float) -> float | None:
    """US dollars per million output tokens; None without a price or without tokens."""
    price = _of_all(config, "price_per_gpu_hour")
    return None if price is None or not tokens_per_s > 0 else price / 3600 / tokens_per_s * 1e6


def joules_per_token(config: RunConfig, tokens_per_s: float, busy: float) -> float | None:
    """Estimated energy per output token in J; None where a device's power is not known, or without tokens."""
    power_w = _of_all(config, "tdp_w")
    return None if power_w is None or not tokens_per_s > 0 else power_w * (_IDLE + (1 - _IDLE) * busy) / tokens_per_s


def _of_all(config: RunConfig, key: str) -> float | None:
    """The sum of a key of the device over all GPUs, None where one lacks it."""
    each = [(own.num_gpus, getattr(own.device, key)) for _, own in pools_of(config)]
    return None if any(value is None for _, value in each) else sum(count * value for count, value in each)
