"""The servers of the public measurements in silicon_sample.csv that can be simulated, and their clients.

`task=validate validation.measured=inferencex:<csv>` takes from here what is not given (`with_server`), and so does
`experiments.board`: what the page publishes is what a user gets.

Llama-3.1-70B and gpt-oss-120b were served by InferenceX (https://github.com/SemiAnalysisAI/InferenceX), with prefix
cache off, at most 8,192 tokens a step, 0.9 of the memory, asynchronous scheduling, and as many seats as clients (512
on B200). The scripts are those of the days on which the rows were measured:

    Llama      29 October 2025, commit 9596d23d7: benchmarks/70b_*.sh, vLLM 0.10.2, nvidia/Llama-3.3-70B-Instruct-FP8
    gpt-oss    27 March 2026, commit cec542a9a: benchmarks/single_node/gptoss_fp4_h100.sh and _h200.sh, vLLM 0.18.0
               25 February 2026, commit d2c2acb19: gptoss_fp4_b200.sh, vLLM 0.15.1
               2 November 2025, commit e06929c70: gptoss_fp4_*_docker.sh, vLLM 0.10.2, KV cache in 16 bits
               5 to 8 December 2025, commit 25506e87c: gptoss_fp4_h100_docker.sh, vLLM 0.11.2
    MiniMax    March and April 2026: minimaxm2.5_fp8_h100.sh (commit 1d5cae141), _h200.sh (a36346339, 1d5cae141),
               _b200.sh (f342df18e, bddbf4031, 41ed82dc1), fp4_b200.sh (08bcde8f1, 79bd988e9, 13962fcfa),
               fp8_b300.sh (340d7854c, 0c2467c15) and fp4_b300.sh (22d0f12f7, 633fd2377). Those of 0.17 and, on H200,
               0.18 ask for expert parallelism, whatever the rows say (`[ "$EP_SIZE" -ge 1 ]`)
    Kimi       commit 79a42e20a of March 2026, 6c3acebfa of April: kimik2.5_int4_h200.sh, int4_b200.sh, fp4_b200.sh and
               fp4_b300.sh

Rows of one version are of several days with scripts of their own. The file labels every row of expert parallelism that
it has since 6 April with data-parallel ranks, too. The scripts do not: those of Kimi know neither, those of MiniMax in
FP8 only experts, and those in FP4 ranks where nvidia-master.yaml of the day says `dp-attn: true`. The times agree:
MiniMax FP8 on two B200 has the TPOT of its rows without ranks within 1 % at all clients, and Kimi on four B200 has the
same times under both labels.

Where a script and the measured times disagree, `why` says so. Llama ran with a whole decode step in one CUDA graph and
fused norms on B200 only, where the script asks for both; so did gpt-oss in November.

Qwen3 was measured by NVIDIA with vLLM 0.12 in Dynamo 0.8. The client is that of aiconfigurator's `eval` of that month
(genai_perf_runner.py, commit 612e5b102): all lengths alike, 10 requests a client. The server is that of its
generator (rule_plugin/vllm.rule, commit 2063ee024, of February 2026): 512 seats, and 512 + 1,500 tokens a step beyond
the length of a prompt. That it made these servers is likely, not stated; the rows of Qwen3-32B have the numbers of
clients of its bench_run.sh (commit f90534bc2), which would send 50 requests a client.
"""

from __future__ import annotations

import re
from collections import abc
from types import MappingProxyType
from typing import Any, Literal, NamedTuple


class PublicServer(NamedTuple):
    """One model on one system.

    Attributes:
        name: of the model and its weights, for tables.
        model_path, precision: of the rows; precision "nan" where the file leaves it empty.
        row_version: backend_version of the rows; "" takes all.
        row_day: what the days start with on which the rows were measured; "" takes all.
        ranks_from, shares_experts: as `harness.measured.inferencex.Labels`.
        device, model: of conf/.
        quantization: format of the weights.
        vllm_version: of the server.
        why: what the settings rest on.
        kv_cache_dtype: auto is 16 bits.
        is_async: whether the server schedules asynchronously; None takes the default of its version.
        kernels: what the server ran, as in `cost.profile=auto+<kernels>`; "" takes the choice of its version.
        max_num_seqs: None takes the number of clients.
        tokens_beyond_prompt: as `validation.tokens_beyond_prompt`; None: 8,192 tokens a step.
        gpu_memory_utilization: None takes the default of the version.
        max_graph_tokens: largest CUDA graph; None takes the one that vLLM chooses by max_num_seqs.
        length_ratio: shortest length that the client sends, as a share of the longest.
        has_front_end: whether clients reached vLLM's own API server, at its endpoint of completions, or another.
        excluded: why no row of this server can be right; such rows are shown and left out of the totals of the page.
        more: keys of the configuration that replace those of a server of vLLM.
    """

    name: str
    model_path: str
    precision: str
    device: str
    model: str
    quantization: str
    vllm_version: str
    why: str
    kv_cache_dtype: str = "auto"
    is_async: bool | None = None
    kernels: str = ""
    max_num_seqs: int | None = None
    tokens_beyond_prompt: int | Literal["prompt"] | None = None
    max_graph_tokens: int | None = None
    length_ratio: float = 0.8
    has_front_end: bool = True
    excluded: str = ""
    row_version: str = ""
    row_day: str = ""
    ranks_from: abc.Mapping[int, int] | None = None
    shares_experts: bool = True
    gpu_memory_utilization: float | None = None
    more: abc.Mapping[str, str] = MappingProxyType({})

    @property
    def key(self) -> str:
        return f"{self.name}, {self.device}"

    def settings(self) -> dict[str, str]:
        """Keys of the configuration and their values."""
        return {
            "model": self.model,
            "device": self.device,
            "quantization": self.quantization,
            "engine.kv_cache_dtype": self.kv_cache_dtype,
            "engine.vllm_version": self.vllm_version,
            "scheduler": "vllm",
            "frontend": "vllm" if self.has_front_end else "http",
            **({"frontend.endpoint": "completions"} if self.has_front_end else {}),
            **({} if self.is_async is None else {"scheduler.async_scheduling": str(self.is_async).lower()}),
            **({"cost.profile": f"auto+{self.kernels}"} if self.kernels else {}),
            **_given("gpu_memory_utilization", self.gpu_memory_utilization),
            **_given("engine.max_graph_tokens", self.max_graph_tokens),
            **_given("validation.seats", self.max_num_seqs),
            **_given("validation.tokens_beyond_prompt", self.tokens_beyond_prompt),
            **_given("validation.ranks_from", _as_mapping(self.ranks_from)),
            **({} if self.shares_experts else {"validation.shares_experts": "false"}),
            "validation.length_ratio": str(self.length_ratio),
            **self.more,
        }


def _given(key: str, value: float | str | None) -> dict[str, str]:
    return {} if value is None else {key: str(value)}


def _as_mapping(ranks_from: abc.Mapping[int, int] | None) -> str | None:
    """As a command line has it."""
    if ranks_from is None:
        return None
    return "{" + ",".join(f"{prompt}:{clients}" for prompt, clients in ranks_from.items()) + "}"


_PIECES = "piecewise_graphs+separate_norms+static_scales"  # of vLLM 0.10 with ModelOpt's FP8 checkpoints
_MINIMAX, _KIMI = "MiniMaxAI/MiniMax-M2.5", "moonshotai/Kimi-K2.5"
_L70, _QWEN, _OSS = "meta-llama/Llama-3.1-70B", "Qwen/Qwen3-32B", "openai/gpt-oss-120b"
_SCRIPT = "script: fp8 KV cache, which the pool at TP 1 shows too, and asynchronous scheduling"
_MARLIN = "script: KV cache in 16 bits, VLLM_MXFP4_USE_MARLIN=1"
_W4A8 = "script: fp8 KV cache, VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1"
_OLD_SCRIPT = "script: KV cache in 16 bits, asynchronous scheduling"
_DEFAULTS = "script: 0.9 of the memory, defaults of vLLM, no expert parallelism; checkpoint: fp8 KV cache"
_TF32 = "cutlass_fp4+routing_kernels+tf32_router"  # of vLLM 0.19 with VLLM_FLOAT32_MATMUL_PRECISION=high
_NIGHTLY = "nightly-5b8c30d62b754b57"  # of 25 March 2026, a week before 0.19.0
_HOPPER = "script: 0.95 of the memory, defaults of vLLM"
# The script asks for expert parallelism, whatever the rows say; the number of GPUs is that of each row.
_WHOLE_EXPERTS = {"expert_parallel": "true", "tensor_parallel_size": "2"}
_SEATS = 1024  # by default
_BLACKWELL = "script: fp8 KV cache, two prompts a step, graphs up to 2,048 tokens"
_TWO_PROMPTS: dict[str, Any] = {"kv_cache_dtype": "fp8", "tokens_beyond_prompt": "prompt", "max_graph_tokens": 2048}
_NVIDIA = "likely aiconfigurator's generator and client"
_NVIDIA_SETTINGS: dict[str, Any] = {"length_ratio": 1.0, "max_num_seqs": 512, "tokens_beyond_prompt": 2012}
_NVIDIA_SETTINGS["has_front_end"] = False  # but Dynamo's

SERVERS = (
    PublicServer(
        "Llama-3.1-70B FP8", _L70, "fp8", "h100-80gb", "llama-3.1-70b", "fp8", "0.10.2",
        "script: fp8 KV cache, but at TP 2 and 64 clients TTFT shows a pool in 16 bits", is_async=True, kernels=_PIECES,
    ),
    PublicServer(
        "Llama-3.1-70B FP8", _L70, "fp8", "h200", "llama-3.1-70b", "fp8", "0.10.2", _SCRIPT, "fp8", is_async=True,
        kernels=_PIECES,
    ),
    PublicServer(
        "Llama-3.1-70B FP8", _L70, "fp8", "b200", "llama-3.1-70b", "fp8", "0.10.2", _SCRIPT, "fp8", is_async=True,
        kernels="static_scales", max_num_seqs=512,
    ),
    PublicServer(
        "Llama-3.1-70B FP4", _L70, "fp4", "b200", "llama-3.1-70b", "nvfp4", "0.10.2", _SCRIPT, "fp8", is_async=True,
        kernels="cutlass_fp4", max_num_seqs=512,
    ),
    PublicServer("Qwen3-32B", _QWEN, "nan", "h100-80gb", "qwen3-32b", "none", "0.12.0", _NVIDIA, **_NVIDIA_SETTINGS),
    PublicServer("Qwen3-32B FP8", _QWEN, "fp8", "h100-80gb", "qwen3-32b", "fp8", "0.12.0", _NVIDIA, **_NVIDIA_SETTINGS),
    PublicServer(
        "Llama-3.1-8B FP8", "nvidia/Llama-3.1-8B-Instruct-FP8", "fp8", "h200", "llama-3.1-8b", "fp8", "0.12.0", _NVIDIA,
        excluded="up to 98 % of the FP8 peak would be needed: its prompts were most likely cached",
        **_NVIDIA_SETTINGS,
    ),
    PublicServer(
        "Qwen3-235B-A22B FP8", "Qwen/Qwen3-235B-A22B-FP8", "fp8", "h200", "qwen3-235b-a22b", "fp8_block", "0.12.0",
        _NVIDIA, **_NVIDIA_SETTINGS,
    ),
    *(
        PublicServer(
            "gpt-oss-120b", _OSS, "fp4", device, "gpt-oss-120b", "mxfp4", "0.18.0", _MARLIN, kernels="marlin",
            max_graph_tokens=2048, row_day="2026",
        )
        for device in ("h100-80gb", "h200")
    ),
    PublicServer(
        "gpt-oss-120b", _OSS, "fp4", "b200", "gpt-oss-120b", "mxfp4", "0.15.1", _W4A8, "fp8", kernels="mxfp4_mxfp8",
        max_num_seqs=512, max_graph_tokens=2048, row_day="2026",
    ),
    *(
        PublicServer(
            "gpt-oss-120b", _OSS, "fp4", device, "gpt-oss-120b", "mxfp4", version, _OLD_SCRIPT, is_async=True,
            max_graph_tokens=2048, row_day=day,
        )
        for device, version, day in (("h100-80gb", "0.10.2", "2025-11"), ("h200", "0.10.2", "2025-11"))
    ),
    PublicServer(
        "gpt-oss-120b", _OSS, "fp4", "h100-80gb", "gpt-oss-120b", "mxfp4", "0.11.2", _OLD_SCRIPT, is_async=True,
        max_graph_tokens=2048, row_day="2025-12",
        excluded="the server ran fewer requests at a time than there were clients",
    ),
    PublicServer(
        "gpt-oss-120b", _OSS, "fp4", "b200", "gpt-oss-120b", "mxfp4", "0.10.2", _OLD_SCRIPT, is_async=True,
        kernels="mxfp4_mxfp8", max_num_seqs=512, max_graph_tokens=2048, row_day="2025-11",
    ),
    PublicServer(
        "MiniMax-M2.5 FP8", _MINIMAX, "fp8", "h100-80gb", "minimax-m2.5", "fp8_block", "0.18.0",
        "script: graphs in pieces", kernels="piecewise_graphs", max_num_seqs=256, ranks_from={},
    ),
    *(
        PublicServer(
            "MiniMax-M2.5 FP8", _MINIMAX, "fp8", "h200", "minimax-m2.5", "fp8_block", version, _HOPPER,
            row_version=version, gpu_memory_utilization=0.95, max_num_seqs=_SEATS, more=more,
        )
        for version, more in (("0.16.0", {}), ("0.18.0", _WHOLE_EXPERTS))
    ),
    PublicServer(
        "MiniMax-M2.5 FP8", _MINIMAX, "fp8", "b200", "minimax-m2.5", "fp8_block", "0.17.0",
        "script: 0.95 of the memory, Triton's experts", kernels="triton_experts", row_version="0.17.0",
        gpu_memory_utilization=0.95, max_num_seqs=_SEATS, more=_WHOLE_EXPERTS,
    ),
    *(
        PublicServer(
            f"MiniMax-M2.5 {precision.upper()}", _MINIMAX, precision, device, model, quantization, "0.19.0", _BLACKWELL,
            kernels=kernels, row_version=row_version, row_day=day, ranks_from=ranks_from, max_num_seqs=_SEATS,
            **_TWO_PROMPTS,
        )
        for precision, device, model, quantization, row_version, day, ranks_from, kernels in (
            ("fp8", "b200", "minimax-m2.5", "fp8_block", "0.19.0", "2026-04-0", {}, ""),
            ("fp8", "b200", "minimax-m2.5", "fp8_block", "0.19.0", "2026-04-2", {}, _TF32),
            ("fp8", "b300", "minimax-m2.5", "fp8_block", "0.19.0", "2026-04-1", {}, ""),
            ("fp8", "b300", "minimax-m2.5", "fp8_block", "0.19.0", "2026-04-2", {}, _TF32),
            ("fp8", "b300", "minimax-m2.5", "fp8_block", _NIGHTLY, "", {}, ""),
            ("fp4", "b200", "minimax-m2.5-nvfp4", "nvfp4", "0.19.0", "2026-04-0", {}, ""),
            ("fp4", "b200", "minimax-m2.5-nvfp4", "nvfp4", "0.19.0", "2026-04-2", {1024: 256}, _TF32),
            ("fp4", "b300", "minimax-m2.5-nvfp4", "nvfp4", "0.19.0", "2026-04-1", {}, ""),
            ("fp4", "b300", "minimax-m2.5-nvfp4", "nvfp4", "0.19.0", "2026-04-2", {1024: 256, 8192: 256}, _TF32),
        )
    ),
    PublicServer(
        "MiniMax-M2.5 FP4", _MINIMAX, "fp4", "b200", "minimax-m2.5-nvfp4", "nvfp4", "0.19.0",
        "script: fp8 KV cache, 0.95 of the memory", "fp8", max_num_seqs=_SEATS, row_version=_NIGHTLY,
        gpu_memory_utilization=0.95,
    ),
    *(
        PublicServer(
            "Kimi-K2.5 int4", _KIMI, "int4", device, "kimi-k2.5", "int4_32", version, "script: 0.95 of the memory",
            gpu_memory_utilization=0.95,
        )
        for device, version in (("h200", "0.16.0"), ("b200", "0.15.1"))
    ),
    PublicServer(
        "Kimi-K2.5 FP4", _KIMI, "fp4", "b200", "kimi-k2.5-nvfp4", "nvfp4", "0.17.0", _DEFAULTS, "fp8",
        row_day="2026-03", gpu_memory_utilization=0.9, ranks_from={}, shares_experts=False,
    ),
    PublicServer(
        "Kimi-K2.5 FP4", _KIMI, "fp4", "b200", "kimi-k2.5-nvfp4", "nvfp4", "0.17.0", _BLACKWELL, row_day="2026-04",
        **_TWO_PROMPTS,
    ),
    *(
        PublicServer(
            "Kimi-K2.5 FP4", _KIMI, "fp4", "b300", "kimi-k2.5-nvfp4", "nvfp4", version, _DEFAULTS, "fp8",
            row_version=version, gpu_memory_utilization=0.9, ranks_from={}, shares_experts=False,
        )
        for version in ("0.17.0", "0.19.0")
    ),
)  # fmt: skip

_SELECT = re.compile(r"\+{0,2}validation\.select\.(model_path|precision|backend_version|day)=(.*)")
_DEFAULT_DEVICE = "h100-80gb"


def with_server(arguments: abc.Sequence[str], given: abc.Mapping[str, str]) -> tuple[list[str], str | None]:
    """The arguments of run.py with the settings of the server whose rows they select, all but those that are `given`
    in them; and a line that names it. Where they select no known one, or several, they stay as they are."""
    selected = {match[1]: match[2].strip("'\"") for text in arguments if (match := _SELECT.fullmatch(text))}
    found = [
        server
        for server in SERVERS
        if server.model_path == selected.get("model_path")
        and server.precision == selected.get("precision", server.precision)
        and server.row_version in ("", selected.get("backend_version", server.row_version))
        and selected.get("day", server.row_day).startswith(server.row_day)
        and server.device == given.get("device", server.device)
    ]
    if "device" not in given and len(found) > 1:
        found = [server for server in found if server.device == _DEFAULT_DEVICE]
    if len(found) != 1:
        return list(arguments), None
    taken = {key: value for key, value in found[0].settings().items() if key not in given}
    lines = [f"{key}={value}" for key, value in taken.items()]
    return [*arguments, *lines], f"{found[0].key}, vLLM {found[0].vllm_version} ({found[0].why}): {' '.join(lines)}"
