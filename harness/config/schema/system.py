"""Configuration of what serves the requests: engine, model, device, scheduler, step cost."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from engine.core.scheduler_options import SchedulerOptions
from engine.engine_config import ExecutionOptions, KVDtype
from harness.config.schema.base import (
    ConfigModel,
    CustomConfig,
    Text,
    check_ranges,
    within,
)
from simulator.vllm_versions import vllm_version

Dtype = Literal["float32", "bfloat16", "float16"]
WeightFormat = Literal["none", "fp8", "fp8_block", "int8", "int4", "nvfp4", "mxfp4"]
AUTO = "auto"  # as cost.profile: the profile of the run's model and device that comes with the project


class SimEngine(ConfigModel):
    """Discrete-event simulation.

    Attributes:
        compress: advance runs of identical decode steps as one event: the same results as step by step, faster.
        cache_outputs: blocks of generated tokens enter the prefix cache, as in the real engine; slower.
        kv_cache_dtype: of keys and values: auto (the model's), 8 bits (fp8, int8) or 4 bits (int4) per element; int8
            and int4 have a scale of 16 bits per token, KV head and key or value.
        max_lookahead_steps: decode steps between two looks at the queue, as in the real engine that is simulated.
        vllm_version: of the vLLM that is predicted, such as 0.11.0; null is the newest. It decides asynchronous
            scheduling with scheduler=vllm, the memory account, and the kernels of profiles that come with the project.
        memory_account: what is held beside weights and KV blocks: as in vLLM since 0.20 (vllm), which sets memory for
            CUDA graphs apart, in 0.17 to 0.19 (vllm_0.17), in 0.9 to 0.16 (vllm_0.9), whose sampler sorts all logits,
            or in an early one (vllm_v0); null takes that of vllm_version.
        max_graph_tokens: tokens of the largest CUDA graph, 0 without graphs, null for vLLM's choice by max_num_seqs;
            of the memory account and of profiles that come with the project.
    """

    kind: Literal["sim"] = "sim"
    compress: bool = True
    cache_outputs: bool = False
    kv_cache_dtype: KVDtype = "auto"
    max_lookahead_steps: Annotated[int, within("max_lookahead_steps")] = 1
    vllm_version: Text | None = None
    memory_account: Literal["vllm", "vllm_0.17", "vllm_0.9", "vllm_v0"] | None = None
    max_graph_tokens: Annotated[int, within("max_graph_tokens")] | None = None

    @model_validator(mode="after")
    def _check_version(self) -> Self:
        vllm_version(self.vllm_version)
        return self


class RealEngineConfig(ConfigModel, ExecutionOptions):  # type: ignore[misc]  # frozen, as ConfigModel says
    """The real engine.

    Attributes:
        weights: model folder in Hugging Face format, of the sizes of model=; null for seeded random weights.
        temperature: of sampling; 0 is greedy.
        warm_up: run a few steps first that are not counted.
        num_threads: of the CPU; null uses all cores.
    """

    weights: Text | None = None
    temperature: Annotated[float, within("temperature")] = 0.0
    warm_up: bool = True
    num_threads: Annotated[int, within("num_threads")] | None = None

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        self.__post_init__()
        check_ranges(self)
        return self


class GpuEngine(RealEngineConfig):  # type: ignore[misc]  # frozen, as ConfigModel says
    """The real engine on a CUDA device."""

    kind: Literal["gpu"] = "gpu"


class CpuEngine(RealEngineConfig):  # type: ignore[misc]  # frozen, as ConfigModel says
    """The real engine on the CPU."""

    kind: Literal["cpu"] = "cpu"


EngineConfig = Annotated[SimEngine | GpuEngine | CpuEngine, Field(discriminator="kind")]


class ModelConfig(ConfigModel):
    """Shape of a decoder-only transformer with grouped-query attention and a gated MLP, dense or mixture of experts.

    Sizes are counts of elements.

    Attributes:
        name: of the model on Hugging Face.
        num_layers: decoder layers.
        hidden_size: width of the activations between layers.
        num_attention_heads: query heads of a layer.
        num_kv_heads: heads of keys and values of a layer; divides the number of query heads.
        head_dim: width of a head.
        intermediate_size: width of the dense MLP.
        vocab_size: tokens of the vocabulary.
        tie_word_embeddings: whether the output uses the weights of the input embedding.
        max_position_embeddings: longest context in tokens.
        dtype: of weights, activations and KV cache.
        num_experts: 0 means a dense MLP of intermediate_size; with experts every layer's MLP is this many gated MLPs.
        num_experts_per_token: experts that a token uses.
        moe_intermediate_size: width of an expert.
        learned_positions: length of a table of position embeddings; in simulation only.
        sliding_window: tokens that some layers attend to, 0 for all tokens in all layers; in simulation only.
        num_sliding_layers: layers that attend to sliding_window tokens.
        qk_norm: whether each head of query and key is normed.
        extra_layer_parameters: of a layer, beside its matrices, two norms of hidden_size, and norms of a query and a
            key head: biases and other norms.
        quantization: format of the published weights (simulator/models/weight_formats.py); the top-level key of that
            name can ask for another one.
        kv_cache_dtype: of the KV cache that the published checkpoint asks for: auto (the model's dtype) or fp8;
            engine.kv_cache_dtype can ask for another one.
        ignored_keys: keys of the file of model.config that are not understood.
    """

    name: Text
    num_layers: Annotated[int, within("num_layers")]
    hidden_size: Annotated[int, within("hidden_size")]
    num_attention_heads: Annotated[int, within("num_attention_heads")]
    num_kv_heads: Annotated[int, within("num_kv_heads")]
    head_dim: Annotated[int, within("head_dim")]
    intermediate_size: Annotated[int, within("intermediate_size")]
    vocab_size: Annotated[int, within("vocab_size")]
    tie_word_embeddings: bool
    max_position_embeddings: Annotated[int, within("max_position_embeddings")]
    dtype: Dtype
    num_experts: Annotated[int, within("num_experts")] = 0
    num_experts_per_token: Annotated[int, within("num_experts_per_token")] = 0
    moe_intermediate_size: Annotated[int, within("moe_intermediate_size")] = 0
    learned_positions: Annotated[int, within("learned_positions")] = 0
    sliding_window: Annotated[int, within("sliding_window")] = 0
    num_sliding_layers: Annotated[int, within("num_sliding_layers")] = 0
    qk_norm: bool = False
    extra_layer_parameters: Annotated[int, within("extra_layer_parameters")] = 0
    quantization: WeightFormat = "none"
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    ignored_keys: Annotated[tuple[Text, ...], Field(strict=False)] = ()

    def shares_out(self, size: int) -> bool:
        """Whether `size` ranks can share its KV heads; ranks beyond their number hold copies."""
        return self.num_kv_heads % size == 0 or size % self.num_kv_heads == 0

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one weight or KV-cache element."""
        return 4 if self.dtype == "float32" else 2

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.num_attention_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads={self.num_kv_heads}: must divide num_attention_heads={self.num_attention_heads}"
            )
        return self

    @model_validator(mode="after")
    def _check_experts(self) -> Self:
        sizes = (self.num_experts, self.num_experts_per_token, self.moe_intermediate_size)
        if any(sizes) and not all(sizes):
            raise ValueError(
                f"num_experts={self.num_experts}: num_experts_per_token and moe_intermediate_size must be >= 1 with "
                "experts, and all three 0 without"
            )
        if self.num_experts_per_token > self.num_experts:
            raise ValueError(
                f"num_experts_per_token={self.num_experts_per_token}: must be <= num_experts={self.num_experts}"
            )
        return self

    @model_validator(mode="after")
    def _check_windows(self) -> Self:
        if bool(self.sliding_window) != bool(self.num_sliding_layers) or self.num_sliding_layers > self.num_layers:
            raise ValueError(
                f"num_sliding_layers={self.num_sliding_layers}: must be from 1 to num_layers={self.num_layers} with a "
                "sliding_window, and 0 without"
            )
        return self


class DeviceConfig(ConfigModel):
    """One accelerator (or CPU) and its link to its peers.

    Attributes:
        name: of the hardware.
        memory_bytes: memory of the device, as the driver reports it.
        memory_bandwidth: bytes/s, of the datasheet.
        flops: dense operations/s by format: bf16 (also prices float16) and fp32; fp8, int8 and fp4 only where the
            device and vLLM's kernels for it have them.
        memory_efficiency: share of the memory bandwidth that kernels reach.
        flops_efficiency: share of the datasheet's operations/s that kernels reach.
        link_bandwidth: bytes/s to the other devices, in one direction.
        link_latency_s: fixed time of one all-reduce.
        step_overhead_s: time of the host for one engine step.
        multiprocessors: streaming multiprocessors of a GPU, for imported profiles whose attention times depend on them.
        shares_kv_reads: whether the query heads of a KV head read it once in steps with prompts, too; false where each
            reads it for itself, as FlashAttention 2 does on A100.
        aiconfigurator_system: the device's name in NVIDIA's database of operator times, from which the profiles that
            come with the project are compiled; null where it is not in there.
    `price_per_gpu_hour` is the rent of one in US dollars and `tdp_w` its thermal design power, from which a capacity
    has its cost and its energy per token; null where none is known.
    """

    name: Text
    memory_bytes: Annotated[int, within("memory_bytes")]
    memory_bandwidth: Annotated[float, within("memory_bandwidth")]
    flops: dict[Literal["bf16", "fp8", "int8", "fp4", "fp32"], Annotated[float, within("flops")]]
    memory_efficiency: Annotated[float, within("memory_efficiency")]
    flops_efficiency: Annotated[float, within("flops_efficiency")]
    link_bandwidth: Annotated[float, within("link_bandwidth")]
    link_latency_s: Annotated[float, within("link_latency_s")]
    step_overhead_s: Annotated[float, within("step_overhead_s")]
    multiprocessors: Annotated[int, within("multiprocessors")] | None = None
    shares_kv_reads: bool = True
    aiconfigurator_system: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")] | None = None
    price_per_gpu_hour: Annotated[float, Field(gt=0, le=1e6)] | None = None
    tdp_w: Annotated[float, Field(gt=0, le=1e6)] | None = None

    @model_validator(mode="after")
    def _check_flops(self) -> Self:
        for name in ("bf16", "fp32"):
            if name not in self.flops:
                raise ValueError(f"flops.{name}: missing; must be a number > 0 (operations per second)")
        return self


class SchedulerConfig(ConfigModel, SchedulerOptions):  # type: ignore[misc]  # frozen, as ConfigModel says
    """The scheduler's own options: fields, defaults and limits are those of `SchedulerOptions`."""

    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        self.__post_init__()
        check_ranges(self)
        return self


class RooflineCost(ConfigModel):
    """Step times from the device's datasheet rates and efficiencies, or from those in a `calibration` file, which may
    be of another device only with `other_device`."""

    kind: Literal["roofline"] = "roofline"
    calibration: Text | None = None
    other_device: bool = False


class ProfiledCost(ConfigModel):
    """Step times from measured kernel times.

    `profile` is the profile's folder, `<tool>:<folder>` for one that another tool measured, or "auto" for one that
    comes with the project; where none does, `roofline` prices. "auto+<kernel>", or several, names what the server ran
    in place of the kernels of engine.vllm_version: piecewise_graphs, separate_norms, deepgemm, cutlass_fp4,
    static_scales, marlin, mxfp4_mxfp8. `calibration` is a file with fitted constants,
    `other_device` as for roofline. `statistic=mean` prices decode steps at their mean, which is what latencies add up;
    `median` prices all steps at their median.
    """

    kind: Literal["profiled"] = "profiled"
    profile: Text = AUTO
    calibration: Text | None = None
    other_device: bool = False
    statistic: Literal["mean", "median"] = "mean"


class LinearCost(ConfigModel):
    """Step times linear in contexts and prompt tokens, with the four constants of a `calibration` file, or
    derived from the device's rates."""

    kind: Literal["linear"] = "linear"
    calibration: Text | None = None
    other_device: bool = False


class CustomCost(CustomConfig):
    """Step times of the user's own: a function that is given `model`, `device`, `tensor_parallel_size` and the options,
    and returns an object like `simulator.costs.cost.CostModel`. It has no constants to fit."""

    @property
    def calibration(self) -> None:
        return None


CostConfig = Annotated[RooflineCost | LinearCost | ProfiledCost | CustomCost, Field(discriminator="kind")]
