"""The command lines of a fleet's servers, each of the tool whose scheduler they have."""

from __future__ import annotations

from collections.abc import Sequence

from harness.config.command_lines.sglang import serve_line as sglang_serve
from harness.config.command_lines.trtllm import serve_line as trtllm_serve
from harness.config.command_lines.vllm import serve_line as vllm_serve
from harness.config.pools import Pool


def fleet_command(pools: Sequence[Pool], pool_blocks: Sequence[int | None], connector: str) -> str:
    """The command lines of the pools of a fleet, one for each, with the sizes of their servers' KV pools.

    `connector` is vLLM's, by which prompts are handed over.
    """
    lines = []
    for (role, config), num_blocks in zip(pools, pool_blocks, strict=True):
        if config.scheduler.policy == "sglang":  # which has no servers that hand KV over
            line = sglang_serve.serve_command(config, num_blocks)
        elif config.scheduler.policy == "trtllm":
            line = trtllm_serve.serve_command(config, num_blocks)
        else:
            line = vllm_serve.serve_command(config, num_blocks, None if role == "serve" else (connector, role))
        if len(pools) > 1:
            of = "" if role == "serve" else f", for {role}"
            line += f"{';' if '  # ' in line else '  #'} {config.device.name}{of}"
        lines.append(line)
    return "\n".join(lines)
