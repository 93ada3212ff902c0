"""Configuration of what serves the requests: engine, model, device, scheduler, step cost."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from engine.core.scheduler_options import SchedulerOptions
from engine.engine_config import ExecutionOptions, KVDtype
from harness.config.schema.base import (
    ConfigModel,
    CustomConfig,
    Text,
    check_ranges,
    within,
)
from harness.config.schema.endpoint import OpenAIEngine
from simulator.versions.vllm_versions import vllm_version

AUTO = "auto"  # as cost.profile: the profile of the run's model and device that comes with the project


ALL_GATHER: Literal["allgather_reducescatter"] = "allgather_reducescatter"
HIGH_THROUGHPUT: Literal["deepep_high_throughput"] = "deepep_high_throughput"
All2AllBackend = Literal["allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency"]


class SimEngine(ConfigModel):
    """Discrete-event simulation.

    Attributes:
        compress: advance runs of identical decode steps as one event: the same results as step by step, faster.
        kv_cache_dtype: of keys and values: auto (the model's), 8 bits (fp8, int8) or 4 bits (int4) per element; int8
            and int4 have a scale of 16 bits per token, KV head and key or value.
        max_lookahead_steps: decode steps between two looks at the queue, as in the real engine that is simulated.
        vllm_version: of the vLLM that is predicted, such as 0.11.0; null is the newest. It decides asynchronous
            scheduling with scheduler=vllm, the memory account, and the kernels of profiles that come with the project.
        memory_account: what is held beside weights and KV blocks: as in vLLM since 0.20 (vllm), which sets memory for
            CUDA graphs apart, in 0.17 to 0.19 (vllm_0.17), in 0.9 to 0.16 (vllm_0.9), whose sampler sorts all logits,
            or in an early one (vllm_v0), or as in SGLang (sglang), where gpu_memory_utilization is its
            --mem-fraction-static, or as in TensorRT-LLM (trtllm), where it is free_gpu_memory_fraction; null takes that
            of vllm_version.
        max_graph_tokens: tokens of the largest CUDA graph, 0 without graphs, null for vLLM's choice by max_num_seqs;
            of the memory account and of profiles that come with the project.
        pads_decodes: pad decode steps to the next CUDA graph of SGLang or TensorRT-LLM; false where they have one for
            each number of sequences (--disable-cuda-graph-padding). Of times of NVIDIA's database.
        all2all_backend: by which kernels data-parallel ranks that share out experts exchange tokens, as vLLM's
            --all2all-backend: an all-gather and a reduce-scatter, its default, or DeepEP's.
    """

    kind: Literal["sim"] = "sim"
    compress: bool = True
    kv_cache_dtype: KVDtype = "auto"
    max_lookahead_steps: Annotated[int, within("max_lookahead_steps")] = 1
    vllm_version: Text | None = None
    memory_account: Literal["vllm", "vllm_0.17", "vllm_0.9", "vllm_v0", "sglang", "trtllm"] | None = None
    max_graph_tokens: Annotated[int, within("max_graph_tokens")] | None = None
    pads_decodes: bool = True
    all2all_backend: All2AllBackend = ALL_GATHER

    @field_validator("vllm_version", mode="before")
    @classmethod
    def _take_number(cls, value: object) -> object:
        """The text of a version that YAML takes for a number, as it does 0.19."""
        return repr(value) if isinstance(value, float) else value

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


EngineConfig = Annotated[SimEngine | GpuEngine | CpuEngine | OpenAIEngine, Field(discriminator="kind")]


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
        flash_attention: the version of FlashAttention that vLLM runs on the device, where decodes that share a prefix
            were compared with measurements; null where each is taken to read all of its context from memory.
        kv_reuse_bandwidth: bytes/s of KV that attention takes where other sequences of the step have just read it.
        aiconfigurator_system: the device's name in NVIDIA's database of operator times, from which the profiles that
            come with the project are compiled; null where it is not in there.
        kernels_like: the option of `device` whose measured kernels, scaled by the rates of both, price models that were
            not timed on this one; null for none, as for a device that is like no other.
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
    flash_attention: Literal[2, 3] | None = None
    kv_reuse_bandwidth: Annotated[float, within("memory_bandwidth")] | None = None
    aiconfigurator_system: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")] | None = None
    kernels_like: Text | None = None
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

    @field_validator("options", mode="before")
    @classmethod
    def _leave_out_nulls(cls, value: object) -> object:
        """Those of vLLM's version, which are null where another policy is configured."""
        of_version = vllm_version(None).options
        if not isinstance(value, dict):
            return value
        return {key: each for key, each in value.items() if each is not None or key not in of_version}

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
    in place of the kernels of engine.vllm_version: piecewise_graphs, separate_norms, deepgemm, flashinfer_cutlass,
    cutlass_fp4, routing_kernels, static_scales, marlin, mxfp4_mxfp8, triton_experts, tf32_router. `calibration` is a
    file with fitted constants, `other_device` as for roofline. `statistic=mean` prices decode steps at their mean,
    which is what latencies add up; `median` prices all steps at their median.
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
