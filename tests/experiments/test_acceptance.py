"""The GPU acceptance runs from end to end in tiny sizes, on the CPU, and a section that fails does not stop it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("triton")

from experiments.gpu_acceptance import __main__ as gpu_acceptance  # noqa: E402
from experiments.gpu_acceptance.engines import OUTPUT_TOKENS, PROMPT_TOKENS, workload  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_the_workload_is_that_of_the_benchmark() -> None:
    requests = workload(quick=False)
    assert len(requests) == 256
    assert (sum(len(prompt) for prompt, _ in requests), sum(n for _, n in requests)) == (PROMPT_TOKENS, OUTPUT_TOKENS)


def test_sections_leave_numbers_and_a_broken_one_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(context: object) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setitem(gpu_acceptance.SECTIONS, "gemm", (broken, 5.0))
    assert gpu_acceptance.run(CPU, ["gemm", "rates", "graphs", "attention", "models"], tmp_path, quick=True) == 1
    record = json.loads((tmp_path / "gpu_acceptance_cpu_quick.json").read_text())
    sections = record["sections"]
    assert "ZeroDivisionError: on purpose" in sections["gemm"]["error"]
    for name in ("rates", "graphs", "attention", "models"):
        assert "error" not in sections[name] and sections[name]["checks"]
    assert all(check["passed"] for check in sections["graphs"]["checks"])
    assert sections["rates"]["record"]["flops"] > 0


def test_a_section_ends_when_its_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(context: object) -> None:
        while True:
            pass

    monkeypatch.setitem(gpu_acceptance.SECTIONS, "gemm", (endless, 0.2))
    assert gpu_acceptance.run(CPU, ["gemm"], tmp_path, quick=True) == 1
    assert "OutOfTimeError" in (tmp_path / "gpu_acceptance_cpu_quick.json").read_text()


@pytest.mark.slow
def test_kernels_and_engines(tmp_path: Path) -> None:
    assert gpu_acceptance.run(CPU, ["kernels", "engines"], tmp_path, quick=True) == 0
    record = json.loads((tmp_path / "gpu_acceptance_cpu_quick.json").read_text())
    speeds = record["sections"]["engines"]["record"]["output_tokens_per_s"]
    assert speeds["this engine"] and speeds["transformers continuous batching"]
