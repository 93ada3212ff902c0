"""Option sets that several files under conf/ share: their keys, defaults and explanations, taken from the schema.

Hydra finds them (`registration.py`) as `/schema/<name>`, so that a file under conf/ states only what differs:

    defaults:
      - /schema/scheduler@_here_
      - _self_
    policy: prefill_first
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from pydantic import BaseModel

from harness.config.schema.allocator import ContiguousAllocator
from harness.config.schema.base import CustomConfig
from harness.config.schema.endpoint import OpenAIEngine
from harness.config.schema.fleet import ApartConfig, PoolConfig, RouterConfig, RuleConfig
from harness.config.schema.model import ModelConfig
from harness.config.schema.sinks import MlflowSink, OtelSink, WandbSink
from harness.config.schema.speculation import DraftModelSpeculation, NgramSpeculation
from harness.config.schema.system import RealEngineConfig, SchedulerConfig, SimEngine
from harness.config.schema.tiers import DiskTierConfig, HostTierConfig, OffloadConfig, StoreTierConfig
from harness.config.schema.traffic.trace_files import ColumnsTrace, EveryTrace, FileTrace
from harness.config.schema.traffic.workload import CustomTrace, ShareGptTrace

# By name, with where the keys stand in a configuration.
OPTION_SETS: dict[str, tuple[str, type[BaseModel]]] = {
    "model": ("model", ModelConfig),
    "scheduler": ("scheduler", SchedulerConfig),
    "router": ("router", RouterConfig),
    "pool": ("fleet.prefill, fleet.decode", PoolConfig),
    "decode_router": ("fleet.decode_router", RuleConfig),
    "apart": ("fleet=disaggregated, custom", ApartConfig),
    "ngram": ("speculation=ngram", NgramSpeculation),
    "draft_model": ("speculation=draft_model", DraftModelSpeculation),
    "contiguous": ("allocator=contiguous_*", ContiguousAllocator),
    "offload": ("tiers", OffloadConfig),
    "host_tier": ("tiers.host", HostTierConfig),
    "disk_tier": ("tiers.disk", DiskTierConfig),
    "store_tier": ("tiers.store", StoreTierConfig),
    "sim_engine": ("engine=sim", SimEngine),
    "real_engine": ("engine=gpu, engine=cpu", RealEngineConfig),
    "openai_engine": ("engine=openai", OpenAIEngine),
    "every_trace": ("every trace", EveryTrace),
    "trace_file": ("trace=azure, mooncake, burstgpt, bailian, servegen, baseten", FileTrace),
    "own_file": ("trace=csv, jsonl", ColumnsTrace),
    "custom_trace": ("trace=custom", CustomTrace),
    "custom": ("arrival=custom, cost=custom", CustomConfig),
    "sharegpt": ("trace=sharegpt, sharegpt_multiturn", ShareGptTrace),
    "mlflow_sink": ("sinks.mlflow", MlflowSink),
    "wandb_sink": ("sinks.wandb", WandbSink),
    "otel_sink": ("sinks.otel", OtelSink),
}


# Groups of any keys that stand in a file under conf/ of their own.
OPEN_KEYS = ("select", "columns", "hf_overrides")


def explained(model: type[BaseModel]) -> Iterator[tuple[str, Any, str]]:
    """Key, default and explanation of every option, in the order of the schema."""
    texts = attribute_texts(model)
    for name, default in defaults(model).items():
        yield name, default, texts.get(name, "")


def explained_settings(options_type: type[Any]) -> list[tuple[str, Any, str]]:
    """The same of the settings that a policy or a routing rule declares."""
    texts = attribute_texts(options_type)  # type: ignore[arg-type]
    return [(field.name, field.default, texts.get(field.name, "")) for field in fields(options_type)]


def defaults(model: type[BaseModel]) -> dict[str, Any]:
    """Every key but `kind` with its default; a key without one is `???`, which Hydra refuses to leave as it is."""
    fields = {name: field for name, field in model.model_fields.items() if name != "kind"}
    return {name: "???" if field.is_required() else field.default for name, field in fields.items()}


@cache
def attribute_texts(model: type) -> Mapping[str, str]:
    """What the docstrings of a class and its bases say under `Attributes:`, by attribute."""
    texts: dict[str, str] = {}
    for base in reversed(model.__mro__):
        lines = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2].splitlines()
        name = None
        for line in lines:
            if start := re.fullmatch(r" {4}(\w+): (.*)", line):
                name = start[1]
                texts[name] = start[2]
            elif name is not None and line.startswith(" " * 8):
                texts[name] += f" {line.strip()}"
            else:
                name = None
    return texts
