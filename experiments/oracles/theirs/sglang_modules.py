"""The scheduler of SGLang 0.5.23, out of an unpacked wheel and without the rest of SGLang."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from enum import IntEnum, auto
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from experiments.oracles.stubs import Corrections, SelectiveFinder, selective_imports

VERSION = "0.5.23"
_STOOD_IN_FOR = ("sglang", "triton", "msgspec", "psutil", "setproctitle", "sgl_kernel", "zmq")
_MANAGERS, _MEMORY = "sglang.srt.managers", "sglang.srt.mem_cache"
_SCHEDULER, _POLICY, _BATCH = f"{_MANAGERS}.scheduler", f"{_MANAGERS}.schedule_policy", f"{_MANAGERS}.schedule_batch"
_RESULTS = f"{_MANAGERS}.scheduler_components.batch_result_processor"
_RATIO = f"{_MANAGERS}.scheduler_components.new_token_ratio_tracker"
_REAL = (
    "sglang.srt.environ", _SCHEDULER, _POLICY, _BATCH, _RESULTS, _RATIO, f"{_MEMORY}.allocation",
    f"{_MEMORY}.allocator.base", f"{_MEMORY}.allocator.paged", f"{_MEMORY}.allocator.token",
    f"{_MEMORY}.base_prefix_cache", f"{_MEMORY}.cache_init_params", f"{_MEMORY}.common",
    f"{_MEMORY}.evict_policy", f"{_MEMORY}.prefill_budget", f"{_MEMORY}.radix_cache", f"{_MEMORY}.utils",
    f"{_MEMORY}.unified_cache", f"{_MEMORY}.unified_radix_cache", "sglang.srt.session.streaming_session",
)  # fmt: skip
_SETTINGS = [
    "disagg",
    "exec",
    "memory",
    "observability",
    "parallel",
    "platform",
    "schedule",
    "server_args",
    "serving",
    "spec",
]


class Settings:
    """What was set, and something false for all else."""

    def __init__(self, **values: Any) -> None:
        self.__dict__ |= values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _NOTHING

    def __bool__(self) -> bool:
        return bool(self.__dict__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return None


_NOTHING = Settings()


class _Field:
    """In place of `msgspec.field`."""

    def __init__(self, *, default_factory: Callable[[], Any], **others: Any) -> None:
        self.make = default_factory


class _Struct:
    """In place of msgspec's: fields by their annotations."""

    def __init_subclass__(cls, **kwargs: Any) -> None: ...

    def __init__(self, *values: Any, **named: Any) -> None:
        names = [name for each in reversed(type(self).__mro__) for name in each.__dict__.get("__annotations__", ())]
        given = dict(zip(names, values, strict=False)) | named
        for name in names:
            default = getattr(type(self), name, None)
            if name not in given:
                given[name] = default.make() if isinstance(default, _Field) else copy(default)
        self.__dict__ |= given


class _NoDiffusion:
    dllm_config = None

    def init_diffusion_llm(self, config: Any) -> None: ...

    def is_dllm(self) -> bool:
        return False


class _ForwardMode(IntEnum):
    EXTEND = auto()
    DECODE = auto()
    MIXED = auto()

    def is_extend(self) -> bool:
        return self is not _ForwardMode.DECODE

    def is_decode(self) -> bool:
        return self is _ForwardMode.DECODE


class _CaptureHiddenMode(IntEnum):
    NULL = 0

    def need_capture(self) -> bool:
        return False


def _num_new_pages(seq_lens: Any, page_size: int, prefix_lens: Any = None, decode: bool = False) -> int:
    if decode:
        return int((seq_lens % page_size == 1).sum())
    return int((-(-seq_lens // page_size) - -(-prefix_lens // page_size)).sum())


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


class _Decorator:
    """Leaves what it decorates as it is."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return lambda function: function


def _values(settings: dict[str, Settings]) -> dict[str, dict[str, Any]]:
    context = {f"get_{name}": _constant(values) for name, values in settings.items()}
    common = {
        "is_pin_memory_available": _constant(False), "ceil_align": lambda value, size: -(-value // size) * size,
        "flatten_arrays_to_pinned_cpu": lambda parts, pin: torch.tensor([token for part in parts for token in part]),
        "is_cuda": _constant(False), "is_hip": _constant(False), "is_npu": _constant(False),
        "is_xpu": _constant(False), "is_cpu": _constant(False), "support_triton": _constant(False),
        "get_bool_env_var": _constant(False), "get_num_new_pages": _num_new_pages,
        "is_gfx95_supported": _constant(False), "DynamicGradMode": _Decorator(),
    }  # fmt: skip
    return {
        "msgspec": {"Struct": _Struct, "field": _Field},
        "sglang.srt.runtime_context": context
        | {
            "attention_backends": _constant(("torch_native", "torch_native")),
            "get_context": _constant(Settings(is_config_namespace_published=_constant(False))),
        },
        "sglang.srt.utils": common,
        "sglang.srt.utils.common": common,
        "sglang.srt.platforms": {"current_platform": Settings(capabilities=Settings(supports_triton=False))},
        "sglang.srt.model_executor.forward_batch_info": {
            "ForwardMode": _ForwardMode, "CaptureHiddenMode": _CaptureHiddenMode,
            "get_server_return_hidden_states_mode": _constant(_CaptureHiddenMode.NULL),
        },
        "sglang.srt.observability.scheduler_stage_metrics": {"scheduler_stage_method": _Decorator()},
        "sglang.srt.sampling.sampling_batch_info": {
            "SamplingBatchInfo": Settings(from_schedule_batch=_constant(_NOTHING))
        },
        "sglang.srt.dllm.mixin.req": {"ReqDllmMixin": _NoDiffusion},
        "sglang.srt.disaggregation.utils": {
            "DisaggregationMode": SimpleNamespace(NULL="null", PREFILL="prefill", DECODE="decode")
        },
        f"{_MEMORY}.allocator.page_interleave": {"page_interleave_shard_size": _constant(1)},
        f"{_MEMORY}.allocator.swa": {"is_swa_req_ring": _constant(False)},
        "sglang.srt.beam_search.batch_tail": {
            "num_beam_member_rows": _constant(0), "beam_retraction_order": lambda order, reqs: order,
        },
        "sglang.srt.utils.rank_consensus_checker": {"rank_consensus": _Decorator()},
    }  # fmt: skip


@contextmanager
def loaded(folder: Path) -> Iterator[SimpleNamespace]:
    """The classes and modules of the scheduler, by name; they import each other while this is entered. `settings` are
    the parts of the server's configuration, which an engine fills.

    Args:
        folder: holds the directory `sglang` of the wheel.

    Raises:
        ImportError: it is another version than `VERSION`.
    """
    if f"'{VERSION}'" not in (folder / "sglang" / "_version.py").read_text("utf-8"):
        raise ImportError(f"{folder} holds another SGLang than {VERSION}")
    settings = {name: Settings() for name in _SETTINGS}
    finder = SelectiveFinder(folder, _STOOD_IN_FOR, _REAL, _values(settings), Corrections())
    with selective_imports(finder, _STOOD_IN_FOR):
        names = SimpleNamespace(settings=settings)
        for module, attributes in {
            _SCHEDULER: ["Scheduler"], _BATCH: ["Req", "ScheduleBatch"], _POLICY: ["SchedulePolicy", "PrefillAdder"],
            _RESULTS: ["SchedulerBatchResultProcessor"], _RATIO: ["NewTokenRatioTracker"],
            f"{_MEMORY}.radix_cache": ["RadixCache"], f"{_MEMORY}.cache_init_params": ["CacheInitParams"],
            f"{_MEMORY}.allocator.token": ["TokenToKVPoolAllocator"],
            f"{_MEMORY}.allocator.paged": ["PagedTokenToKVPoolAllocator"],
        }.items():  # fmt: skip
            loaded = importlib.import_module(module)
            for attribute in attributes:
                setattr(names, attribute, getattr(loaded, attribute))
        clock = count()  # all accesses one after the other, as on a clock that is fine enough
        radix = importlib.import_module(f"{_MEMORY}.radix_cache")
        vars(radix)["time"] = SimpleNamespace(monotonic=lambda: next(clock), perf_counter=lambda: 0.0)
        unified = importlib.import_module(f"{_MEMORY}.unified_radix_cache")
        vars(unified)["select_tree_core_backend"] = _constant("python")
        component = importlib.import_module(f"{_MEMORY}.unified_cache.component_type").ComponentType.FULL

        def unified_cache(params: Any) -> Any:
            params.tree_components = (component,)
            return unified.UnifiedRadixCache(params)

        names.caches = {"radix": names.RadixCache, "unified": unified_cache}
        names.policy_module = importlib.import_module(_POLICY)
        yield names
