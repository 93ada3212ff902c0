"""Settings of run.py for the published vLLM runs that the simulator is compared with."""

from __future__ import annotations

from pathlib import Path

DISTSERVE_RATES = ("100-1", "200-2", "250-2.5", "300-3")  # requests and requests/s
DISTSERVE_POOL = 3389  # KV blocks at 3 requests/s, of 3,387 to 3,390 that its steps show (docs/fidelity.md)
_VLLM = {
    "llama": ("Llama-3.1-8B", ["model=llama-3.1-8b"], "sharegpt-llama-3.1-8b-300-sps10.jsonl"),
    "qwen": ("Qwen3-32B", ["model=qwen3-32b", "tensor_parallel_size=2"], "sharegpt-qwen3-32b-300-sps10.jsonl"),
}


def vllm_folder(data: Path, case: str) -> Path:
    """The folder of LLMServingSim's run of a case."""
    return data / "llmservingsim_vllm" / "RTXPRO6000" / _VLLM[case][0]


def vllm_settings(data: Path, case: str) -> list[str]:
    """Overrides for vLLM 0.19 on RTX PRO 6000; cases llama and qwen."""
    _, model, workload = _VLLM[case]
    measured = vllm_folder(data, case)
    return [
        "engine=sim", "device=rtx-pro-6000", "scheduler=vllm", "max_num_seqs=128", "max_num_batched_tokens=2048",
        "cost=profiled", *model, f"cost.profile=llmservingsim:{measured / 'profile'}",
        f"validation.measured=llmservingsim:{measured}",
        f"validation.workload={data / 'llmservingsim_vllm' / workload}",
    ]  # fmt: skip


def distserve_settings(data: Path, rate: str) -> list[str]:
    """Overrides for the early vLLM of DistServe on an A100.

    They are the settings of the server in DistServe's evaluation/2-benchmark-serving/2-start-api-server.py, except that
    the run at 2 requests/s pads without limit, as its steps show.
    """
    folder = data / "distserve_vllm_opt13b"
    return [
        "engine=sim", "device=a100-80gb", "model=opt-13b", "scheduler=vllm_v0", "max_num_batched_tokens=65536",
        "max_num_seqs=1024", "gpu_memory_utilization=0.92", "engine.memory_account=vllm_v0", "cost=linear",
        f"validation.measured=distserve:{folder / f'measured-vllm-{rate}.exp'}",
        f"validation.workload={folder / f'workload-vllm-{rate}.exp'}",
        *(["scheduler.max_padding=65536"] if rate == "200-2" else []),
    ]  # fmt: skip
