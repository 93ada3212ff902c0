"""The sections of both calls, in the order of their value, with their limits in seconds."""

from __future__ import annotations

from experiments.acceptance.processes import Section

_HERE = "experiments.acceptance"
_MEASURED = ("outputs/fidelity/gpu_*/**/*", "experiments/results/fidelity_gpu_*.json", "docs/fidelity/gpu_*/**/*")

FIRST = (
    Section("device", f"{_HERE}.rates:device", 40),
    Section("kernels", f"{_HERE}.kernels:odd_shapes", 120),
    Section("models", f"{_HERE}.logits:models", 75),
    Section("graphs", f"{_HERE}.graphs:graphs", 75),
    Section("engine", f"{_HERE}.serving:engine", 75),
    Section("attention", f"{_HERE}.rates:attention", 75),
    Section("steps", f"{_HERE}.steps:steps", 60),
    Section("transformers", f"{_HERE}.serving:transformers", 110),
    Section("nano_vllm", f"{_HERE}.serving:nano_vllm", 75),
    Section("vllm", f"{_HERE}.serving:vllm", 100),
    Section("gemm", f"{_HERE}.rates:gemm", 25),
    Section("sanitizer", f"{_HERE}.sanitizer:sanitizer", 80),
    Section("occupancy", f"{_HERE}.occupancy:occupancy", 80),
)
SECOND = (
    Section("device", f"{_HERE}.rates:device", 40),
    Section("decode_configurations", f"{_HERE}.configurations:decode", 110),
    Section("prefill_configurations", f"{_HERE}.configurations:prefill", 80),
    Section("profile_small", f"{_HERE}.campaigns:profile_small", 80, _MEASURED[:1]),
    Section("fidelity", f"{_HERE}.campaigns:fidelity", 150, _MEASURED),
    Section("profile_large", f"{_HERE}.campaigns:profile_large", 100, _MEASURED[:1]),
)
CALLS = {"first": FIRST, "second": SECOND}
REHEARSED = (
    Section("crash", f"{_HERE}.rehearsal:crash", 30),
    Section("hang", f"{_HERE}.rehearsal:hang", 4),
    Section("memory", f"{_HERE}.rehearsal:exhaust", 30),
)
