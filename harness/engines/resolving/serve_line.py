"""The `vllm serve` lines of a configuration whose KV pools follow from its devices."""

from harness.config import RunConfig
from harness.config.command_lines.vllm_serve import fleet_command
from harness.config.pools import pools_of
from harness.engines.resolving.system import pool_of


def serve_line(config: RunConfig) -> str:
    """The lines, each with a `--max-model-len` that the pool holds.

    Raises:
        ConfigError: the model does not fit on the device.
    """
    pools = pools_of(config)
    if config.engine.kind != "sim":
        return fleet_command(pools, [None])
    return fleet_command(
        pools, [pool_of(each.config).num_blocks for each in pools for _ in range(each.config.replicas)]
    )
