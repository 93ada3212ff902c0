"""What Hydra knows of this project: the option sets, as `/schema/<name>`, and the defaults of vLLM and SGLang."""

from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from harness.config.composing.option_sets import OPEN_KEYS, OPTION_SETS, defaults
from harness.errors import ConfigError
from simulator.versions.sglang_defaults import MAX_RUNNING_REQUESTS, mem_fraction_static, sglang_defaults
from simulator.versions.vllm_versions import VllmVersion, vllm_version


def _register() -> None:
    store = ConfigStore.instance()
    for name, (_, model) in OPTION_SETS.items():
        node = {key: _open(value) if value == {} else value for key, value in defaults(model).items()}
        store.store(group="schema", name=name, node=node)
    for name in OPEN_KEYS:
        store.store(group="schema", name=f"open_{name}", node={name: _open({})})
    OmegaConf.register_new_resolver("vllm_version", _of_version, replace=True)
    OmegaConf.register_new_resolver("sglang", _of_sglang, replace=True)


def _open(value: Any) -> DictConfig:
    """A group in which Hydra lets any key be set; the schema says which of them there are."""
    return DictConfig(value, flags={"struct": False})


def _of_version(name: str, _root_: DictConfig) -> Any:
    """A default of the configured version of vLLM; of the newest where none is configured, or one that is refused.

    `name` is a field of `VllmVersion`, and None if it is an option of another policy; or max_num_seqs and
    max_num_batched_tokens, which the device decides, too. The share of the memory is 0.9 for our own engine. What the
    schema will refuse counts as not given.
    """
    configured = OmegaConf.select(_root_, "engine.vllm_version")
    try:
        version = vllm_version(None if configured is None else str(configured))
    except ValueError:
        version = vllm_version(None)
    if name in version.options and OmegaConf.select(_root_, "scheduler.policy") != "admission_order":
        return None
    if name in ("max_num_seqs", "max_num_batched_tokens"):
        return _batch_default(name, version, _root_)
    if name == "async_scheduling":
        return version.async_scheduling and _can_plan_ahead(_root_, version)
    if name == "gpu_memory_utilization" and OmegaConf.select(_root_, "engine.kind") in ("gpu", "cpu"):
        return 0.9
    return getattr(version, name)


def _can_plan_ahead(root: DictConfig, version: VllmVersion) -> bool:
    """Whether the core plans a step while the one before it runs, with these settings, as this version would."""
    single = ("pipeline_parallel_size", "engine.max_lookahead_steps")
    is_single = all(OmegaConf.select(root, key, default=1) == 1 for key in single)
    kind = OmegaConf.select(root, "speculation.kind")
    has_heads = kind == "draft_model" and OmegaConf.select(root, "speculation.drafter") is None
    drafts_ahead = has_heads or kind == "draft_model" and version.draft_models_ahead
    is_simulated = OmegaConf.select(root, "engine.kind") == "sim"
    return is_single and (kind == "none" or drafts_ahead and is_simulated)


def _batch_default(name: str, version: VllmVersion, root: DictConfig) -> int:
    """What `vllm serve` takes for `max_num_seqs` or `max_num_batched_tokens` on the configured device."""
    memory, device = _whole(root, "device.memory_bytes") or 0, str(OmegaConf.select(root, "device.name"))
    num_seqs, num_tokens = version.batch_defaults(memory, device)
    if name == "max_num_seqs":
        is_given = not OmegaConf.is_interpolation(root, "max_num_batched_tokens")
        return min(num_seqs, is_given and _whole(root, "max_num_batched_tokens") or num_seqs)
    longest = _whole(root, "max_model_len") or _whole(root, "model.max_position_embeddings")
    if OmegaConf.select(root, "scheduler.enable_chunked_prefill") is False:
        if longest is None:
            raise ConfigError("scheduler.enable_chunked_prefill=false: give max_model_len, the tokens of a step")
        num_tokens = max(num_tokens, longest)
    seats = _whole(root, "max_num_seqs")
    return min(num_tokens, seats * longest) if seats and longest else num_tokens


def _whole(root: DictConfig, key: str) -> int | None:
    value = OmegaConf.select(root, key)
    return value if isinstance(value, int) and value > 0 else None


def _of_sglang(name: str, asked: int | bool = 1, *, _root_: DictConfig) -> Any:
    """A default of SGLang on the configured device: a field of `SglangDefaults`, page_size,
    max_running_requests, mem_fraction_static, or num_blocks, the pages of so many tokens; or overlap, whether steps are
    planned ahead, which a real engine does not with its radix tree.

    Args:
        asked: of page_size and num_blocks, tokens; of mem_fraction_static, whether there are CUDA graphs of prompts.
    """
    if name == "overlap":
        return OmegaConf.select(_root_, "engine.kind") not in ("gpu", "cpu")
    root, has_mla = _root_, any(each.kind == "latent" for each in _root_.model.get("blocks") or ())
    memory, ranks = root.device.memory_bytes, root.tensor_parallel_size
    if name == "num_blocks":
        return int(asked) // root.block_size
    if name == "max_running_requests":
        return min(MAX_RUNNING_REQUESTS, root.max_num_batched_tokens)
    if name == "mem_fraction_static":
        graphs = root.engine.get("max_graph_tokens") or 0  # of the simulation only
        return mem_fraction_static(
            memory, ranks, chunk_tokens=root.max_num_batched_tokens, graph_sequences=graphs,
            has_prefill_graphs=bool(asked) and root.scheduler.enable_chunked_prefill, has_mla=has_mla,
        )  # fmt: skip
    defaults = sglang_defaults(memory, root.device.name, ranks, has_mla=has_mla)
    if name == "page_size":
        return defaults.page_size(int(asked))
    if name == "cuda_graph_max_bs":
        return min(defaults.cuda_graph_max_bs, root.max_num_seqs)
    return getattr(defaults, name)


_register()
