"""Turns a composed Hydra configuration into a checked RunConfig, or into one line that says what is wrong."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from pydantic import ValidationError

from engine.documents import DocumentError, read_yaml, yaml_text
from harness.config.explaining import explain
from harness.config.huggingface import resolve_model
from harness.config.pools import pools_of
from harness.config.run import RunConfig
from harness.config.targets import import_targets
from harness.errors import ConfigError
from simulator.vllm_versions import VllmVersion, vllm_version

_TASK_GROUPS = ("profile", "validation", "calibration", "plot", "report", "capacity", "search")


def parse(cfg: DictConfig) -> RunConfig:
    """Checks a composed configuration, and imports the code of the user's own that it names.

    Raises:
        ConfigError: one line naming the first wrong key, its value and what is allowed, and how many more are wrong.
    """
    try:
        values = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise ConfigError(f"{error.full_key}: missing; give it as {error.full_key}=...") from None
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {str(error).splitlines()[0]}") from None
    if isinstance(values, dict) and isinstance(model := values.get("model"), dict) and "config" in model:
        values = {**values, "model": resolve_model(model)}
    import_targets({str(key): value for key, value in values.items()} if isinstance(values, dict) else {})
    return validated(values)


def _of_version(name: str, _root_: DictConfig) -> Any:
    """A default of the configured version of vLLM; of the newest where none is configured, or one that is refused.

    `name` is a field of `VllmVersion`, or: options, those of the policy admission_order (other policies have none of
    them); max_num_seqs and max_num_batched_tokens, which the device decides, too.
    """
    configured = OmegaConf.select(_root_, "engine.vllm_version")
    try:
        version = vllm_version(None if configured is None else str(configured))
    except ValueError:
        version = vllm_version(None)
    if name == "options" and _root_.scheduler.policy != "admission_order":
        return {}
    if name in ("max_num_seqs", "max_num_batched_tokens"):
        return _batch_default(name, version, _root_)
    if name == "async_scheduling":
        return version.async_scheduling and _can_plan_ahead(_root_)
    return getattr(version, name)


def _can_plan_ahead(root: DictConfig) -> bool:
    """Whether the core plans a step while the one before it runs, with these settings."""
    return (root.speculation.kind, root.pipeline_parallel_size, root.data_parallel_size) == ("none", 1, 1)


def _batch_default(name: str, version: VllmVersion, root: DictConfig) -> int:
    """What `vllm serve` takes for `max_num_seqs` or `max_num_batched_tokens` on the configured device."""
    num_seqs, num_tokens = version.batch_defaults(root.device.memory_bytes, root.device.name)
    if name == "max_num_seqs":
        given = not OmegaConf.is_interpolation(root, "max_num_batched_tokens")
        return min(num_seqs, root.max_num_batched_tokens) if given else num_seqs
    longest = root.max_model_len or root.model.get("max_position_embeddings")
    if not root.scheduler.enable_chunked_prefill:
        if longest is None:
            raise ConfigError("with scheduler.enable_chunked_prefill=false it is the longest sequence; give max_model_len")
        num_tokens = max(num_tokens, longest)
    return int(min(num_tokens, root.max_num_seqs * longest)) if longest else num_tokens


OmegaConf.register_new_resolver("vllm_version", _of_version, replace=True)


def to_yaml(config: RunConfig) -> str:
    """The resolved configuration as YAML, for `load` to read.

    Groups that belong to one task, and are not used here, are left out: a later default must not look like a setting.
    """
    fields = RunConfig.model_fields
    unused = {name for name in _TASK_GROUPS if getattr(config, name) == fields[name].get_default()}
    return yaml_text(config.model_dump(mode="json", exclude=unused))


def load(path: Path) -> RunConfig:
    """Reads a file of `to_yaml`. Text such as `${oc.env:HOME}` stays text: the file may be of another person.

    Raises:
        ConfigError: the file cannot be read, or does not hold a configuration of this version.
    """
    try:
        values = read_yaml(path)
    except DocumentError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: holds no configuration")
    try:
        return validated(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def validated(values: Any) -> RunConfig:
    """Checks the values of a whole configuration; raises ConfigError as `parse` does."""
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error)) from None
    pools_of(config)
    return config
