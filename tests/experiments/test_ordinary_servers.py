"""A small run of the experiment on what ordinary users measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from experiments import ordinary_servers

RUN = {
    "page": "qwen3-8b/h100.md", "line": 1, "command": "vllm serve Qwen/Qwen3-8B", "workload": "# random 128 input",
    "versions": {"vLLM": "v0.11.0"}, "num_prompts": 10.0, "max_concurrency": 2.0, "duration_s": 1.0,
    "input_tokens": 1280.0, "output_tokens": 40.0, "output_throughput": 100.0, "mean_ttft_ms": 20.0,
    "mean_tpot_ms": 7.0,
}  # fmt: skip
SGLANG = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B-FP8 --tp-size 2"


def test_servers_are_entered_by_their_command_lines_and_scored_by_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        RUN,
        {**RUN, "line": 2, "command": SGLANG, "workload": None, "max_concurrency": None},
        {**RUN, "line": 3, "command": "vllm serve Qwen/Qwen3-8B --enable-expert-parallel"},
        {**RUN, "line": 4, "command": "vllm serve Qwen/Qwen3-14B"},
    ]
    data = tmp_path / "runs.jsonl"
    data.write_text("".join(json.dumps(run) + "\n" for run in runs))
    monkeypatch.setattr(ordinary_servers, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["ordinary_servers", "--data", str(data)])
    ordinary_servers.main()
    found = json.loads((tmp_path / "ordinary_servers.json").read_text())
    vllm, other = found["rows"]
    assert vllm["class"] == "vLLM, Qwen/Qwen3-8B, none, h100-80gb" and vllm["cost"] == "measured kernels"
    assert other["class"] == "SGLang, Qwen/Qwen3-8B, fp8_block, h100-80gb" and other["cost"] == "measured kernels"
    assert 4 < vllm["simulated"]["tpot"] < 9
    assert [each["run"] for each in found["refused"]] == ["qwen3-8b/h100:3", "qwen3-8b/h100:4"]
    assert found["by_cost"]["vLLM, measured kernels"]["runs"] == 1
    assert "2 refused" in capsys.readouterr().out
