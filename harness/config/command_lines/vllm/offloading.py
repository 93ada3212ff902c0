"""The KV cache that vLLM keeps in host memory, by `--kv-offloading-size` or the JSON of `--kv-transfer-config`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.config.command_lines.values import decimal
from harness.config.command_lines.vllm.servers import OFFLOADING, TRANSFER
from harness.config.schema.tiers import TiersConfig
from harness.errors import ConfigError

_SIZE = "--kv-offloading-size"
_GIB = 2**30
# Keys of kv_connector_extra_config, and values with which they leave all as it is.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "eviction_policy": ("lru",), "store_threshold": (0, 1), "spec_name": ("CPUOffloadingSpec",),
    "offload_prompt_only": (False,),
}  # fmt: skip


def offloading(values: Mapping[str, str], block_size: float) -> dict[str, Any]:
    """Keys of ours for these flags.

    Raises:
        ConfigError: the JSON changes what is served in a way that is not simulated.
    """
    made: dict[str, Any] = {}
    if _SIZE in values and (gib := decimal(_SIZE, values[_SIZE])) > 0:
        made = {"tiers": "vllm", "tiers.host.gib": gib}
    if TRANSFER not in values or json.loads(values[TRANSFER]).get("kv_connector") != OFFLOADING:
        return made
    extra = dict(json.loads(values[TRANSFER]).get("kv_connector_extra_config") or {})
    num_bytes, tokens, blocks = (extra.pop(key, None) for key in ("cpu_bytes_to_use", "block_size", "blocks_per_chunk"))
    if not isinstance(num_bytes, int | float) or num_bytes <= 0:
        raise ConfigError(f"{TRANSFER}: {OFFLOADING} needs cpu_bytes_to_use in kv_connector_extra_config")
    for key, value in extra.items():
        if value not in _NEUTRAL.get(key, ()):
            raise ConfigError(f"{TRANSFER}: {key}: not simulated, and it changes what is served; leave it out to go on")
    made = {"tiers": "vllm", "tiers.host.gib": num_bytes / _GIB}
    if (chunk := int(blocks or (tokens or block_size) // block_size)) > 1:
        made["tiers.chunk_blocks"] = chunk
    return made


def offloading_words(tiers: TiersConfig) -> list[object]:
    """The flags of these tiers; none where vLLM has no such tiers."""
    if not tiers.offload or tiers.rule != "vllm":
        return []
    if tiers.chunk_blocks == 1:
        return [_SIZE, tiers.host.gib]
    extra = {"cpu_bytes_to_use": int(tiers.host.gib * _GIB), "blocks_per_chunk": tiers.chunk_blocks}
    return [
        TRANSFER,
        json.dumps({"kv_connector": OFFLOADING, "kv_role": "kv_both", "kv_connector_extra_config": extra}),
    ]
