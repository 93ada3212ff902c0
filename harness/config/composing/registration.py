"""What Hydra knows of this project: the option sets, as `/schema/<name>`, and the defaults of a version of vLLM."""

from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from harness.config.composing.option_sets import OPEN_KEYS, OPTION_SETS, defaults
from simulator.vllm_versions import vllm_version


def _register() -> None:
    store = ConfigStore.instance()
    for name, (_, model) in OPTION_SETS.items():
        node = {key: _open(value) if value == {} else value for key, value in defaults(model).items()}
        store.store(group="schema", name=name, node=node)
    for name in OPEN_KEYS:
        store.store(group="schema", name=f"open_{name}", node={name: _open({})})
    OmegaConf.register_new_resolver("vllm_version", _of_version, replace=True)


def _open(value: Any) -> DictConfig:
    """A group in which Hydra lets any key be set; the schema says which of them there are."""
    return DictConfig(value, flags={"struct": False})


def _of_version(name: str, _root_: DictConfig) -> Any:
    """A default of the configured version of vLLM; of the newest where none is configured, or one that is refused."""
    configured = OmegaConf.select(_root_, "engine.vllm_version")
    try:
        return getattr(vllm_version(None if configured is None else str(configured)), name)
    except ValueError:
        return getattr(vllm_version(None), name)


_register()
