"""The command lines of a configuration's servers, whose KV pools follow from its devices."""

from harness.config import RunConfig
from harness.config.command_lines.serving import fleet_command
from harness.config.pools import pools_of
from harness.engines.resolving.system import pool_of


def serve_line(config: RunConfig) -> str:
    """The lines of vLLM, each with a `--max-model-len` that the pool holds, or of SGLang or TensorRT-LLM.

    Raises:
        ConfigError: the model does not fit on the device.
    """
    is_simulated = config.engine.kind == "sim"
    pools = pools_of(config)
    blocks = [pool_of(own).num_blocks if is_simulated else None for _, own in pools]
    return fleet_command(pools, blocks, config.kv_connector)
