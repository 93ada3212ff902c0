"""The KV cache that vLLM keeps in host memory, by `--kv-offloading-size` or the JSON of `--kv-transfer-config`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.config.command_lines.values import decimal
from harness.config.command_lines.vllm.servers import OFFLOADING, TRANSFER, connectors_of, more_of
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
    found = [each for each in connectors_of(values) if each.get("kv_connector") == OFFLOADING]
    if not found:
        return made
    extra = more_of(found[0])
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


def transfer_words(tiers: TiersConfig, mover: dict[str, Any] | None) -> list[object]:
    """The flags of these tiers, none where vLLM has no such tiers, and of the connector that hands KV over, if any."""
    connectors = [mover] if mover else []
    if has_offloading(tiers):
        if not mover and tiers.chunk_blocks == 1:
            return [_SIZE, tiers.host.gib]
        extra: dict[str, Any] = {"cpu_bytes_to_use": int(tiers.host.gib * _GIB)}
        if tiers.chunk_blocks > 1:
            extra["blocks_per_chunk"] = tiers.chunk_blocks
        connectors.append({"kv_connector": OFFLOADING, "kv_role": "kv_both", "kv_connector_extra_config": extra})
    if not connectors:
        return []
    both = {"kv_connector": "MultiConnector", "kv_role": connectors[0]["kv_role"]}
    whole = {**both, "kv_connector_extra_config": {"connectors": connectors}} if len(connectors) > 1 else connectors[0]
    return [TRANSFER, json.dumps(whole)]


def has_offloading(tiers: TiersConfig) -> bool:
    """Whether flags of vLLM give a server this memory on the host."""
    return tiers.offload and tiers.rule == "vllm"
