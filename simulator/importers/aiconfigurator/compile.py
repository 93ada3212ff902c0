"""Compiles a profile of one model from the operator times of a database.

The database and the version of vLLM are named by

    aiconfigurator:h100_sxm                  the newest version of vLLM that was measured
    aiconfigurator:h100_sxm/vllm/0.24.0      a version
    aiconfigurator:h200_sxm/sglang/0.5.14    the kernels of SGLang, beside the rules and host times of vLLM
    aiconfigurator:h200_sxm/trtllm/1.3.0rc20    those of TensorRT-LLM
    aiconfigurator:<folder>:h100_sxm         tables in a folder instead of the installed package
    aiconfigurator:h100_sxm+marlin           another kernel for the experts than vLLM's choice (`experts`, `deep_gemm`)
    aiconfigurator:h100_sxm+separate_norms   all-reduces that are not fused with norms, as of old servers
    aiconfigurator:h100_sxm+static_scales    FP8 checkpoints that hold the scales of activations
    aiconfigurator:h100_sxm+piecewise_graphs attention that is launched between pieces of CUDA graphs, as of old servers
    aiconfigurator:h100_sxm+like_experts     experts that were not timed by others that are alike (`like_experts`)
    aiconfigurator:b200_sxm+routing_kernels  experts of MiniMax-M2 chosen by kernels beside theirs (`other_kernels`)
    aiconfigurator:b200_sxm+tf32_router      a router in float32 that rounds its inputs to TF32

and the tables of the profile are made from

    tokens        GEMMs, mixture of experts; norms, rotary, activation and KV store by `rules`; `other_kernels`
    sequences     GEMM of the LM head, NCCL's all-gather of the logits; sampler by `rules`
    attention     context and generation attention (`attention`, `other_attention`)
    all_reduce    all-reduces in CUDA graphs (`communication`)
    experts       experts that ranks share out whole, and `exchange` what ranks with attention of their own then send
    steps         the host's share of a step with piecewise graphs, by `rules`

Its other share is of servers without asynchronous scheduling.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

from simulator.device import Device
from simulator.importers.aiconfigurator.attention import Attention, stored_as
from simulator.importers.aiconfigurator.communication import all_gather, all_reduce, exchanges, fused_bytes
from simulator.importers.aiconfigurator.database import PACKAGE, Database, find_root
from simulator.importers.aiconfigurator.experts.deep_gemm import NAME as DEEP_GEMM
from simulator.importers.aiconfigurator.experts.deep_gemm import padded_experts
from simulator.importers.aiconfigurator.experts.kernels import (
    CUTLASS,
    OPEN_TRITON,
    TRITON,
    copying_work,
    experts,
    whole_experts,
)
from simulator.importers.aiconfigurator.experts.like_experts import like_experts, whole_like_experts
from simulator.importers.aiconfigurator.gemms import Gemms
from simulator.importers.aiconfigurator.latent_attention import launches_us
from simulator.importers.aiconfigurator.measured_curve import Floats, MeasuredCurve
from simulator.importers.aiconfigurator.other_attention import attention_table
from simulator.importers.aiconfigurator.other_kernels import choosing_us, float32_router, norm_exchange, routing_us
from simulator.importers.aiconfigurator.rules import (
    HOST,
    TRTLLM,
    Host,
    beside_experts,
    eager_layer_us,
    elementwise_work,
    memory_rule,
    sampler_bytes,
)
from simulator.models.block import Weights
from simulator.models.experts import Experts
from simulator.models.grouped_query import GroupedQuery
from simulator.models.latent import Latent
from simulator.models.model import Model
from simulator.models.weight_formats import FLOAT32
from simulator.profile.graph_sizes import graph_sizes
from simulator.profile.meta import ProfileMeta
from simulator.profile.profile import LIKE_EXPERTS, Profile, ProfileError

_SEPARATE_NORMS, _STATIC_SCALES, _PIECEWISE_GRAPHS = "separate_norms", "static_scales", "piecewise_graphs"
_ROUTING_KERNELS, _TF32_ROUTER, _WHOLE_TOPK = "routing_kernels", "tf32_router", "whole_topk"
_NOT_OF_EXPERTS = (_SEPARATE_NORMS, _STATIC_SCALES, _PIECEWISE_GRAPHS, _ROUTING_KERNELS, _TF32_ROUTER, _WHOLE_TOPK)
_GEMM_DTYPES = {"none": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}


def compile_profile(name: Path, model: Model, tensor_parallel_size: int, max_num_seqs: int, device: Device) -> Profile:
    """The profile of `model` on `tensor_parallel_size` GPUs of the system that `name` says.

    Raises:
        ProfileError: the database is not there, or lacks an operator of this model.
    """
    folder, _, key = str(name).rpartition(":")
    key, *chosen = key.split("+")
    database = _open(Path(folder) if folder else None, key)
    gemms, attention = Gemms(database, static_scales=_STATIC_SCALES in chosen), Attention(database)
    expert_kernel = "+".join(each for each in chosen if each not in _NOT_OF_EXPERTS)
    rounds = _TF32_ROUTER in chosen
    operators, calls = _operators(database, gemms, model, tensor_parallel_size, expert_kernel, device, rounds)
    if model.first(Experts):
        curve = operators["experts"]
        operators["experts"] = curve._replace(times_us=curve.times_us + _beside(database, model, chosen, curve.sizes))
    sequences, sequence_calls = _sequence_operators(database, gemms, model, tensor_parallel_size)
    attention_rows, kv_dtype = attention_table(
        database, attention, model, tensor_parallel_size, of_whole_topk=_WHOLE_TOPK in chosen
    )
    tables = {
        "tokens": _table(operators, "num_tokens"),
        "sequences": _table(sequences, "num_sequences"),
        "attention": attention_rows,
    }
    num_dropped = gemms.num_dropped + attention.num_dropped
    if tensor_parallel_size > 1:
        most_fused = 0.0 if _SEPARATE_NORMS in chosen else fused_bytes(database, tensor_parallel_size)
        reduced, dropped = all_reduce(database, tensor_parallel_size, most_fused)
        tables["all_reduce"] = pd.DataFrame({"num_bytes": reduced.sizes, "time_us": reduced.times_us})
        num_dropped += dropped
    if (shared_out := _whole_experts(database, gemms, model, expert_kernel)) is not None:
        sizes = shared_out["num_tokens"].to_numpy(float)
        tables["experts"] = shared_out.assign(time_us=shared_out["time_us"] + _beside(database, model, chosen, sizes))
        if (exchanged := exchanges(database)) is not None:
            tables["exchange"] = exchanged
    if _PIECEWISE_GRAPHS in chosen:
        tables["steps"] = steps_table(HOST)
    sparse_launches = launches_us(database, model, tensor_parallel_size, stored_as(kv_dtype))
    meta = ProfileMeta(
        device=database.device,
        model=model.name,
        tensor_parallel_size=tensor_parallel_size,
        num_layers=model.num_layers,
        calls=calls | sequence_calls,
        shape=model.sizes,
        token_buckets=graph_sizes(max_num_seqs),
        padded_steps="all",
        eager_step_us=max(eager_layer_us(database.backend, model), sparse_launches) * model.num_layers,
        synchronous_step_us=HOST.synchronous_step_us,
        synchronous_sequence_us=HOST.synchronous_sequence_us,
        source={
            "tool": PACKAGE,
            "database": f"{database.system}/{database.backend}/{database.version}",
            "versions": dict(sorted(database.versions.items())),
            "quantization": model.quantization.name,
            **({"server": chosen} if chosen else {}),
            "kv_cache_dtype": kv_dtype,
            "num_outliers": num_dropped,
            "licence": "Apache-2.0, Copyright NVIDIA CORPORATION & AFFILIATES",
        },
    )
    return Profile(meta, tables)


def _open(folder: Path | None, key: str) -> Database:
    parts = key.split("/")
    if len(parts) not in (1, 3):
        raise ProfileError(f"{key!r} must be <system> or <system>/<backend>/<version>, such as h100_sxm/vllm/0.24.0")
    return Database(find_root(folder), *parts)


def _beside(database: Database, model: Model, chosen: list[str], sizes: Floats) -> Floats | float:
    """Time of kernels that choose experts, beside the times of the experts themselves."""
    block = model.first(Experts)
    if block is not None and TRITON in chosen:
        return choosing_us(database, block, sizes)
    return routing_us(database, model, sizes) if _ROUTING_KERNELS in chosen else 0.0


def _whole_experts(database: Database, gemms: Gemms, model: Model, expert_kernel: str) -> pd.DataFrame | None:
    """Times of experts that ranks share out whole, of a kernel; None where it has none of its own."""
    if expert_kernel == LIKE_EXPERTS:
        return whole_like_experts(database, model)
    if _times_whole(database, expert_kernel):
        return whole_experts(database, model)
    if expert_kernel not in ("", TRITON, CUTLASS, DEEP_GEMM):
        return None
    shared_out = whole_experts(database, model, expert_kernel if expert_kernel == TRITON else "")
    if shared_out is None or expert_kernel != DEEP_GEMM:
        return shared_out
    curves = {each: padded_experts(gemms, model, 1, database.rates, each) for each in shared_out["num_ranks"].unique()}
    parts = [
        pd.DataFrame({"num_ranks": each, "num_tokens": curve.sizes, "time_us": curve.times_us})
        for each, curve in curves.items()
    ]
    return pd.concat(parts, ignore_index=True)


def _times_whole(database: Database, expert_kernel: str) -> bool:
    """Whether the backend itself was timed with this kernel, but only with whole experts on each rank."""
    return expert_kernel == OPEN_TRITON and database.backend == TRTLLM


def _operators(
    database: Database, gemms: Gemms, model: Model, ranks: int, expert_kernel: str, device: Device, rounds: bool
) -> tuple[dict[str, MeasuredCurve], dict[str, int]]:
    """Times over tokens of one call of each operator of a layer, and its calls in a step."""
    curves: dict[str, MeasuredCurve] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    calls: Counter[str] = Counter()
    products = [(count, block) for count, block in model.blocks if not isinstance(block, Latent)]  # which has its own
    for count, weights in ((count, each) for count, block in products for each in block.matrices(model, ranks)):
        if weights.part != "experts":
            name = weights.name
            if shapes.setdefault(name, weights[2:4]) != weights[2:4]:  # of another kind of layer
                name = f"{name}_{weights.rows}x{weights.columns}"
            calls[name] += count
            curves[name] = _product(database, gemms, model, weights, device, rounds)
    if expert_kernel == DEEP_GEMM:
        curves["experts"] = padded_experts(gemms, model, ranks, database.rates)
    elif expert_kernel == LIKE_EXPERTS:
        curves["experts"] = like_experts(database, model, ranks)
    elif expert_kernel or model.first(Experts):
        kernel = "" if ranks == 1 and _times_whole(database, expert_kernel) else expert_kernel
        curves["experts"], _ = experts(database, model, ranks, kernel)
    calls["experts"] = model.num_expert_layers
    if ranks > 1 and (spanning := sum(count for count, each in model.of_kind(GroupedQuery) if each.norm_spans_heads)):
        curves["qk_all_reduce"] = norm_exchange(database, ranks, curves["qkv_proj"].sizes)
        calls["qk_all_reduce"] = spanning
    rule = memory_rule(database.rates)
    num_kernels, num_bytes = elementwise_work(model, ranks, database.backend)
    num_copies, copied_bytes = copying_work(model, expert_kernel, pads_input=database.backend != TRTLLM)
    sizes = np.array([1.0, next(iter(curves.values())).sizes[-1]])
    times = [rule.time_us(num_kernels + num_copies, (num_bytes + copied_bytes) * size) for size in sizes]
    curves["elementwise"] = MeasuredCurve(sizes, np.array(times))
    calls["elementwise"] = model.num_layers
    return curves, {name: calls[name] for name in curves}


def _product(
    database: Database, gemms: Gemms, model: Model, weights: Weights, device: Device, rounds: bool
) -> MeasuredCurve:
    """The time over tokens of a product with matrices that are no experts."""
    stored = model.format_of(weights.part)
    dtype = "bfloat16" if stored is FLOAT32 else _dtype(_GEMM_DTYPES, stored.name, "linear layers")
    curve = gemms.curve(dtype, weights.rows, weights.columns)
    if stored is FLOAT32:
        return float32_router(database, curve, weights, device, rounds=rounds)
    return beside_experts(curve) if weights.part == "shared_experts" else curve


def _sequence_operators(
    database: Database, gemms: Gemms, model: Model, ranks: int
) -> tuple[dict[str, MeasuredCurve], dict[str, int]]:
    """Times over sampled sequences of the LM head, the gathering of its logits, and the sampler."""
    curves = {"lm_head": gemms.curve("bfloat16", model.vocab_size // ranks, model.hidden_size)}
    sizes = curves["lm_head"].sizes[curves["lm_head"].sizes <= 4096]
    rule = memory_rule(database.rates)
    curves["sampler"] = MeasuredCurve(sizes, np.array([rule.time_us(1, sampler_bytes(model) * n) for n in sizes]))
    if ranks > 1:
        gather = all_gather(database, ranks)
        if gather is not None:
            curves["logits_all_gather"] = MeasuredCurve(sizes, gather.at(sizes * model.vocab_size * model.dtype_bytes))
    return curves, dict.fromkeys(curves, 1)


def steps_table(host: Host) -> pd.DataFrame:
    """The host's share of every step, of a server that launches attention between pieces of CUDA graphs."""
    rows = [(kind, 1, host.step_us) for kind in ("decode", "mixed", "prefill")]  # a single point holds for all sizes
    return pd.DataFrame(rows, columns=["kind", "num_tokens", "time_us"])


def _table(curves: dict[str, MeasuredCurve], size: str) -> pd.DataFrame:
    parts = []
    for operator, curve in curves.items():
        thin = curve.thinned()
        parts.append(pd.DataFrame({"operator": operator, size: thin.sizes, "time_us": thin.times_us}))
    return pd.concat(parts, ignore_index=True)


def _dtype(known: dict[str, str], quantization: str, what: str) -> str:
    if quantization not in known:
        raise ProfileError(f"the database has no {what} in {quantization} (there: {', '.join(known)})")
    return known[quantization]
