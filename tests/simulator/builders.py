"""Works, profiles, models and a clock for tests of the simulator, small enough to check by hand."""

from __future__ import annotations

import functools
import inspect
import itertools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from omegaconf import OmegaConf

from engine.core.work import ChunkWork, StepWork
from engine.engine_config import EngineConfig
from harness.config import ModelConfig as ConfiguredModel
from harness.engines.resolving.system import model_shape
from simulator.costs.constants import profiled_constants
from simulator.costs.profiled import ProfiledCost
from simulator.costs.shared_reads import SharedReads
from simulator.device import Device
from simulator.models.decoder import decoder
from simulator.models.model import Model
from simulator.models.weight_formats import QUANTIZATIONS
from simulator.profile.meta import ProfileMeta
from simulator.profile.profile import Profile

if TYPE_CHECKING:
    from engine.models.model_config import ModelConfig

CONF = Path(__file__).parents[2] / "conf"

# -- steps ------------------------------------------------------------------------------------------------------------


def work(chunks: list[tuple[int, int, bool]], contexts: list[int], **others: Any) -> StepWork:
    """A step of these chunks (start, number of tokens, last) and decodes of these contexts."""
    return StepWork(
        [ChunkWork(*chunk) for chunk in chunks],
        len(contexts),
        sum(contexts),
        sum(context * context for context in contexts),
        **others,
    )


# -- devices and models -----------------------------------------------------------------------------------------------

H100 = Device("H100", 81559 << 20, 3.35e12, {"bf16": 989e12, "fp32": 67e12}, 0.8, 0.7, 450e9, 1e-5, 1e-3)
SLOW_LINK = Device("link", 1 << 30, 1e12, {"bf16": 1e14, "fp32": 1e13}, 0.8, 0.7, 1e9, 1e-5, 1e-3)  # 1 ns a byte


def _fields(name: str) -> dict[str, Any]:
    fields: Any = OmegaConf.to_container(OmegaConf.load(CONF / "model" / f"{name}.yaml"))
    return dict(fields)


def load_model(name: str) -> Model:
    """A model of the configuration, its 16-bit weights in bfloat16."""
    fields = _fields(name)
    del fields["defaults"]
    quantization = QUANTIZATIONS[fields.get("quantization", "none")]
    return decoder(**fields | {"dtype": "bf16", "quantization": quantization})


def listed(name: str, quantization: str | None = None) -> Model:
    """A model of the configuration that lists its blocks; in another format of weights than its own."""
    config = ConfiguredModel(**{key: value for key, value in _fields(name).items() if key != "defaults"})
    return model_shape(config, quantization or config.quantization, "auto")


def num_float32(model: Model) -> int:
    """Elements of the routers that vLLM keeps in float32."""
    return sum(count * each.rows * each.columns for count, each in model.matrices() if each.part == "float32_router")


def resized(model: Model, **sizes: Any) -> Model:
    """`model` with other sizes; `sizes` by the keys of the configuration."""
    kept: dict[str, Any] = {"intermediate_size": 1} | vars(model) | model.sizes | {"blocks": ()}
    known = inspect.signature(decoder).parameters
    return decoder(**{key: value for key, value in kept.items() if key in known} | sizes)


QWEN, MOE = load_model("qwen3-8b"), load_model("qwen3-30b-a3b")
WINDOWED = resized(QWEN, sliding_window=1000, num_sliding_layers=20)

# -- a profile whose times follow simple formulas ---------------------------------------------------------------------

MODEL = decoder(
    name="test", num_layers=3, hidden_size=64, num_attention_heads=4, num_kv_heads=2, head_dim=16,
    intermediate_size=128, vocab_size=1000, tie_word_embeddings=False, max_position_embeddings=4096, dtype="bf16",
)  # fmt: skip
LAYERS = MODEL.num_layers
OPERATORS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
META = ProfileMeta("device", "test", 1, LAYERS, {**dict.fromkeys(OPERATORS, LAYERS), "lm_head": 1})


def by_tokens(token_us: float, sizes: tuple[int, ...] = (1, 8, 64, 512)) -> pd.DataFrame:
    """The operators of a layer take 10 us and `token_us` per token each."""
    rows = [(name, n, 10 + token_us * n) for name in OPERATORS for n in sizes]
    return pd.DataFrame(rows, columns=["operator", "num_tokens", "time_us"])


def attention_us(chunk: int, start: int, num_decodes: int, context: float) -> float:
    """A kernel that is linear in pairs and contexts, and slower for decodes beside a chunk."""
    pairs = chunk * start + chunk * (chunk + 1) / 2
    mixing = 2e-3 * num_decodes * context if chunk and num_decodes else 0.0
    return 5.0 + 1e-4 * pairs + 1e-2 * num_decodes * context + mixing


def attention() -> pd.DataFrame:
    """The attention table of `attention_us`."""
    batches, contexts = (1, 4, 16, 64), (16, 256, 4096)
    chunks, starts = (16, 128, 512), (0, 256, 2048)
    rows: list[tuple[Any, ...]] = [(0, 0, n, c) for n, c in itertools.product(batches, contexts)]
    rows += [(s, p, 0, 0) for s, p in itertools.product(chunks, starts)]
    rows += [(s, p, n, c) for s, p, n, c in itertools.product(chunks, starts, batches, contexts)]
    columns = ["prefill_tokens", "prefill_context", "num_decodes", "decode_context"]
    return pd.DataFrame(rows, columns=columns).assign(time_us=[attention_us(*row) for row in rows])


EXTRA_US = {50: 7.0, 100: 9.0}
"""What each of a few decodes adds to one layer's attention, by the deviation of the contexts in percent."""


def deviations() -> pd.DataFrame:
    """The deviations table of `EXTRA_US`; the addition is twice as large at a mean context of 400."""
    rows = [
        (n, mean, percent, attention_us(0, 0, n, mean) + n * extra_us * (2 if mean == 400 else 1))
        for n, mean, (percent, extra_us) in itertools.product((2, 4), (100, 400), EXTRA_US.items())
    ]
    return pd.DataFrame(rows, columns=["num_decodes", "decode_context", "deviation_pct", "time_us"])


@functools.cache
def _unchanged() -> Profile:
    heads = pd.DataFrame({"operator": "lm_head", "num_sequences": [1, 64, 256], "time_us": [20.0, 30.0, 70.0]})
    return Profile(META, {"tokens": by_tokens(0.5), "sequences": heads, "attention": attention()})


def profile(**changes: Any) -> Profile:
    """A profile of `MODEL`; keys of the metadata are changed as given."""
    return replace(_unchanged(), meta=replace(META, **changes)) if changes else _unchanged()


def with_tables(measured: Profile, **tables: pd.DataFrame) -> Profile:
    return Profile(measured.meta, {**measured.tables, **tables})


OPTIONAL_TABLES = {
    "uneven": pd.DataFrame({"prefill_tokens": [0, 0, 16], "num_decodes": [2, 8, 8], "gain": [0.1, 0.5, 0.9]}),
    "deviations": deviations(),
    "copies": pd.DataFrame({"num_blocks": [1, 16], "time_us": [3.0, 20.0], "spread_us": [0.0, 1.0]}),
    "all_reduce": pd.DataFrame({"num_bytes": [64, 8192], "time_us": [3.0, 20.0]}),
    "steps": pd.DataFrame(
        {"kind": ["decode", "mixed", "mixed"], "num_tokens": [1, 8, 64], "time_us": [9.0, 0.0, 50.0]}
    ),
}


def cost(
    measured: Profile | None = None,
    tensor_parallel_size: int = 1,
    shared_reads: SharedReads | None = None,
    **values: float,
) -> ProfiledCost:
    """The cost model of `profile()` or another profile of `MODEL`; constants not given have their defaults."""
    constants = profiled_constants(SLOW_LINK, tensor_parallel_size)
    defaults = {name: constant.default for name, constant in constants.items()}
    values = {**defaults, **values}
    return ProfiledCost(measured or profile(), MODEL, tensor_parallel_size, values, shared_reads=shared_reads)


# -- a model that the profiler measures within a test -----------------------------------------------------------------

SHAPE: dict[str, Any] = {
    "name": "small", "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_kv_heads": 2, "head_dim": 16,
    "intermediate_size": 128, "vocab_size": 300, "tie_word_embeddings": False, "max_position_embeddings": 256,
    "dtype": "float32", "num_experts": 0, "num_experts_per_token": 0, "moe_intermediate_size": 0,
}  # fmt: skip
EXPERTS = {"num_experts": 2, "num_experts_per_token": 2, "moe_intermediate_size": 32}  # all run, whatever the input
FAMILIES = {"qwen3": SHAPE, "qwen3_moe": SHAPE | EXPERTS, "llama": SHAPE | {"name": "Llama"}}
MODEL_SHAPE = decoder(**SHAPE | {"dtype": "fp32"})
ENGINE = EngineConfig(
    num_blocks=64, block_size=16, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=96, load_format="random"
)


def small_model(family: str = "qwen3") -> ModelConfig:
    """The model of a family as the real engine takes it; needs torch."""
    from engine.models.model_config import ModelConfig

    return ModelConfig.from_shape(FAMILIES[family])


class TickingClock:
    """A clock that every reading advances by `tick_ns`, whatever the time."""

    def __init__(self, tick_ns: int = 1_000_000) -> None:
        self.now_ns = 0
        self._tick_ns = tick_ns

    def __call__(self) -> int:
        self.now_ns += self._tick_ns
        return self.now_ns
