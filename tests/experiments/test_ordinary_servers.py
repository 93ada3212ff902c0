"""Points of the board from what ordinary users measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.board.ordinary_servers import pages, points

RUN = {
    "page": "qwen3-8b/h100.md", "line": 1, "command": "vllm serve Qwen/Qwen3-8B", "workload": "# random 128 input",
    "versions": {"vLLM": "v0.11.0"}, "num_prompts": 10.0, "max_concurrency": 2.0, "duration_s": 1.0,
    "input_tokens": 1280.0, "output_tokens": 40.0, "output_throughput": 100.0, "mean_ttft_ms": 20.0,
    "mean_tpot_ms": 7.0,
}  # fmt: skip
SGLANG = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B-FP8 --tp-size 2"


def test_servers_are_entered_by_their_command_lines(tmp_path: Path) -> None:
    runs = [
        RUN,
        {**RUN, "line": 2, "command": SGLANG, "workload": None, "max_concurrency": None},
        {**RUN, "line": 3, "command": "vllm serve Qwen/Qwen3-8B --enable-expert-parallel"},
        {**RUN, "line": 4, "command": "vllm serve Qwen/Qwen3-14B"},
        {**RUN, "line": 5, "median_itl_ms": 0.0},
    ]
    data, messages = tmp_path / "gpustack/runs.jsonl", tmp_path / "distserve_vllm_opt13b/workload-vllm-300-3.exp"
    data.parent.mkdir()
    messages.parent.mkdir()
    messages.write_text(json.dumps([{"output_len": length} for length in (2, 10, 200, 1900)]))
    data.write_text("".join(json.dumps(run) + "\n" for run in runs))
    (page,) = pages(data)
    found = points(data, tmp_path / "silicon.csv", page)  # beside which are no times of SGLang's kernels
    (vllm,) = found.points
    _, other = points(data, tmp_path / "silicon.csv", page, cost="roofline").points
    assert (vllm.engine, vllm.version, vllm.kind.load, vllm.clients) == ("vLLM", "0.11.0", "closed loop", 2)
    assert (vllm.kind.cost, vllm.kind.kind, vllm.kind.model) == ("kernels", "dense", "qwen3-8b")
    assert (other.engine, other.kind.precision, other.kind.load) == ("SGLang", "fp8_block", "at once")
    assert 4 < vllm.predicted["tpot"] < 9 and vllm.measured["tpot"] == pytest.approx(7)
    assert other.assumed == "mean lengths" and sorted(found.left_out.values()) == [1, 1, 1, 1]
    assert any("were not timed for this model on this GPU" in reason for reason in found.left_out)
