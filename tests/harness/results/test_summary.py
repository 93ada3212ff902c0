"""What the summary of a run says in the terminal."""

import pytest

from harness.results.summary import scheduler_text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("vllm serve m", "vLLM"),
        ("vllm serve m  # vLLM 0.19.0; not in vLLM: quantization=fp8_block", "vLLM"),
        ("vllm serve m  # not in vLLM: scheduler.policy=mixed", "mixed"),
        ("python -m sglang.launch_server --model-path m", "mixed"),
        (None, "mixed"),
    ],
)
def test_a_run_is_called_after_its_scheduler(line: str | None, text: str) -> None:
    assert scheduler_text({"policy": "mixed", "vllm_command": line}) == text
