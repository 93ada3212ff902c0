"""The `vllm serve` line of a configuration whose pool follows from its device."""

from harness.config import RunConfig
from harness.config.command_lines.vllm_serve import serve_command
from harness.engines.resolving.system import pool_of


def serve_line(config: RunConfig) -> str:
    """The line, with a `--max-model-len` that the pool holds.

    Raises:
        ConfigError: the model does not fit on the device.
    """
    return serve_command(config, pool_of(config).num_blocks if config.engine.kind == "sim" else None)
