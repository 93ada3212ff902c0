"""The acceptance keeps what it measured: sections that crash, hang or run out of memory cost themselves only."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("triton")

from experiments.acceptance import __main__ as acceptance  # noqa: E402
from experiments.acceptance import attention, kernels, products  # noqa: E402
from experiments.acceptance.context import Context  # noqa: E402
from experiments.acceptance.engines import OUTPUT_TOKENS, PROMPT_TOKENS, workload  # noqa: E402

FAULTY = "tests.experiments.faulty_sections"


@pytest.mark.slow
def test_sections_that_go_wrong_leave_their_first_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The hanging section ignores requests to end."""
    expected = {"hang": "killed", "exhaust": "failed"}
    sections = {name: (f"{FAULTY}:{name}", 12.0 if name == "hang" else 60.0) for name in expected}
    assert acceptance.run(sections, tmp_path, rehearse=True) == 1
    printed = capsys.readouterr().out
    record = json.loads((tmp_path / "acceptance_rehearsal.json").read_text())
    for name, status in expected.items():
        assert record[name]["status"] == status and f"{name}: {status}" in printed
        assert len(record[name]["checks"]) == 1
    assert "no more" in record["exhaust"]["error"]


@pytest.mark.slow
def test_sections_that_do_not_run_again_stay(tmp_path: Path) -> None:
    (tmp_path / "acceptance_rehearsal.json").write_text(json.dumps({"engine": {"record": {}}}))
    assert acceptance.run({"skip": (f"{FAULTY}:skip", 60.0)}, tmp_path, rehearse=True) == 0
    record = json.loads((tmp_path / "acceptance_rehearsal.json").read_text())
    assert set(record) == {"engine", "skip"} and record["skip"]["status"] == "skipped"
    assert record["skip"]["checks"] == [] and "not installed" in record["skip"]["error"]


def test_engines_are_compared_by_their_medians() -> None:
    def entry(*speeds: float) -> dict[str, Any]:
        return {"record": {"output_tokens_per_s": speeds}}

    record = {"engine": entry(3.0, 30.0, 2.0), "nano_vllm": entry(1.0, 2.5), "vllm": entry()}
    assert acceptance.compared(record) == ["this engine / nano_vllm: 1.71, goal 1.5: ok"]


def test_every_section_exists() -> None:
    for target, _ in acceptance.SECTIONS.values():
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_rates_and_shapes_report_as_they_go(tmp_path: Path) -> None:
    context = Context(torch.device("cpu"), True, tmp_path / "result.json")
    for section in (attention.device, attention.attention, kernels.real_shapes, products.linear, products.experts):
        section(context)
    saved = json.loads(context.result.read_text())
    assert saved["record"]["flops"] > 0 and len(saved["checks"]) == len(context.checks) > 6
    assert not any(check["passed"] is False for check in saved["checks"])


def test_the_workload_is_that_of_the_benchmark() -> None:
    requests = workload(rehearse=False)
    assert len(requests) == 256
    assert (sum(len(prompt) for prompt, _ in requests), sum(n for _, n in requests)) == (PROMPT_TOKENS, OUTPUT_TOKENS)


@pytest.mark.slow
def test_rehearsal(tmp_path: Path) -> None:
    sections = {name: (target, 900.0) for name, (target, _) in acceptance.SECTIONS.items()}
    assert acceptance.run(sections, tmp_path, rehearse=True) == 0
    record = json.loads((tmp_path / "acceptance_rehearsal.json").read_text())
    assert {name for name, each in record.items() if each["status"] != "ok"} <= {"nano_vllm", "vllm"}
