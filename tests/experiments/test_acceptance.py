"""The acceptance keeps what it measured: sections that crash, hang or run out of memory cost themselves only."""

from __future__ import annotations

import importlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("triton")

from experiments.acceptance import __main__ as acceptance  # noqa: E402
from experiments.acceptance import kernels, rates, wheels  # noqa: E402
from experiments.acceptance.campaigns import device_of  # noqa: E402
from experiments.acceptance.common import Context  # noqa: E402
from experiments.acceptance.engines import OUTPUT_TOKENS, PROMPT_TOKENS, workload  # noqa: E402
from experiments.acceptance.processes import Section  # noqa: E402
from experiments.acceptance.record import Record  # noqa: E402
from experiments.acceptance.report import compared  # noqa: E402
from experiments.acceptance.sections import CALLS, REHEARSED  # noqa: E402

CRASH, HANG, EXHAUST = REHEARSED


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def children() -> set[int]:
    """Child processes of this one; other tests may have left a fork server."""
    listed = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return {int(pid) for pid in listed.read_text().split()} if listed.exists() else set()


def test_sections_that_go_wrong_leave_their_first_results_and_no_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hanging section ignores requests to end."""
    earlier = children()
    sections = (CRASH, Section("hang", HANG.target, 1.0), EXHAUST)
    assert acceptance.run("first", sections, tmp_path, 30.0, rehearse=True, revision="abc") == 1
    printed = capsys.readouterr().out
    record = json.loads((tmp_path / "acceptance_rehearsal.json").read_text())["sections"]
    expected = {"crash": "failed", "hang": "killed", "memory": "out of memory"}
    for name, status in expected.items():
        entry = record[name]
        assert entry["status"] == status and f"{name}: {status}" in printed
        assert len(entry["checks"]) == 1 and entry["seconds"] < 20 and entry["environment"]["revision"] == "abc"
    assert "SIGABRT" in record["crash"]["error"]
    assert "in hang" in record["hang"]["output_tail"]  # the stack where it hung
    assert not any(is_alive(pid) for pid in children() - earlier)


def test_sections_without_time_are_skipped_at_once(tmp_path: Path) -> None:
    started = time.monotonic()
    assert acceptance.run("first", (CRASH,), tmp_path, 0.5, rehearse=True) == 0
    entry = json.loads((tmp_path / "acceptance_rehearsal.json").read_text())["sections"]["crash"]
    assert entry["status"] == "skipped" and "no time" in entry["error"]
    assert time.monotonic() - started < 20


def entry(status: str, checks: int, started: str = "now", **more: Any) -> dict[str, Any]:
    return {"status": status, "checks": [{}] * checks, "record": {}, "started": started, "seconds": 1.0, **more}


@pytest.mark.parametrize(
    ("old", "new", "is_replaced"),
    [
        (entry("ok", 3), entry("ok", 3, "later"), True),
        (entry("ok", 3), entry("ok", 2, "later"), False),
        (entry("ok", 3), entry("killed", 5, "later"), False),
        (entry("killed", 5), entry("failed", 4, "later"), False),
        (entry("killed", 5), entry("out of memory", 6, "later"), True),
        (entry("failed", 0), entry("skipped", 0, "later"), False),
        (entry("skipped", 0), entry("failed", 0, "later"), True),
        (entry("killed", 9), entry("ok", 1, "later"), True),
    ],
)
def test_a_rerun_that_says_less_is_only_noted(
    tmp_path: Path, old: dict[str, Any], new: dict[str, Any], is_replaced: bool
) -> None:
    record = Record(tmp_path / "record.json")
    record.add("a", old)
    record.add("a", new)
    record.save()
    kept = Record(record.path).sections["a"]
    assert kept["started"] == ("later" if is_replaced else "now")
    assert [note["status"] for note in kept.get("reruns", [])] == ([] if is_replaced else [new["status"]])


def test_merging_files_twice_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, status, checks in (("here", "ok", 2), ("there", "failed", 0)):
        record = Record(tmp_path / folder / "acceptance_x.json")
        found = [{"name": "n", "value": "v", "goal": "", "passed": None}] * checks
        record.add("a", {**entry(status, 0, folder), "checks": found})
        record.save()
    merged = []
    for _ in range(2):
        acceptance.merge([tmp_path / "there" / "acceptance_x.json"], tmp_path / "here")
        merged.append((tmp_path / "here" / "acceptance_x.json").read_text())
    assert merged[0] == merged[1]
    assert json.loads(merged[0])["sections"]["a"]["reruns"][0]["status"] == "failed"
    assert "a: ok" in capsys.readouterr().out


def test_engines_are_compared_by_their_medians(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.json")
    for name, speeds in (("engine", [3.0, 30.0, 2.0]), ("nano_vllm", [1.0, 2.5]), ("vllm", [])):
        record.add(name, {**entry("ok", 1), "record": {"output_tokens_per_s": speeds}})
    assert compared(record) == ["this engine / nano_vllm: 1.71, goal 1.5: ok"]


def test_every_section_exists_and_a_call_ends_within_nine_minutes() -> None:
    for section in [section for call in CALLS.values() for section in call]:
        module, _, function = section.target.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
        assert section.limit_s <= acceptance.LIMIT_S
    assert acceptance.LIMIT_S < 540


def test_rates_and_shapes_report_as_they_go(tmp_path: Path) -> None:
    context = Context(torch.device("cpu"), True, time.monotonic() + 60, tmp_path / "result.json")
    for section in (rates.device, rates.attention, kernels.real_shapes):
        section(context)
    saved = json.loads(context.result.read_text())
    assert saved["record"]["flops"] > 0 and len(saved["checks"]) == len(context.checks) > 6
    assert not any(check["passed"] is False for check in saved["checks"])


def test_outcomes_of_tests_are_read_with_workers_and_without(tmp_path: Path) -> None:
    context = Context(torch.device("cpu"), True, 0.0, tmp_path / "result.json")
    lines = "a.py::one PASSED [ 50%]\n[gw3] [ 60%] PASSED a.py::two[x y] \n[gw0] [ 70%] FAILED a.py::three[1]\n"
    kernels.report(context, lines + "a.py::four SKIPPED (no)\nFAILED a.py::three[1] - boom\n")
    assert context.checks[0].value == "2 of 3" and context.checks[0].passed is False
    assert context.record["failed"] == ["a.py::three[1]"] and context.record["skipped"] == 1


@pytest.mark.parametrize(
    ("name", "device"),
    [("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100-80gb"), ("NVIDIA GeForce RTX 4090", "rtx-4090")],
)
def test_a_gpu_is_found_among_the_devices(name: str, device: str) -> None:
    assert device_of(name) == device


def test_packages_to_carry_have_versions() -> None:
    assert all("==" in wheels.pinned(name) for name in wheels.PACKAGES)
    with pytest.raises(LookupError, match="no-such"):
        wheels.pinned("no-such-package")


def test_the_workload_is_that_of_the_benchmark() -> None:
    requests = workload(rehearse=False)
    assert len(requests) == 256
    assert (sum(len(prompt) for prompt, _ in requests), sum(n for _, n in requests)) == (PROMPT_TOKENS, OUTPUT_TOKENS)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_rehearsal(call: str, tmp_path: Path) -> None:
    assert acceptance.run(call, CALLS[call], tmp_path, 900.0, rehearse=True) == 0
    record = json.loads((tmp_path / "acceptance_rehearsal.json").read_text())["sections"]
    assert {name for name, each in record.items() if each["status"] != "ok"} <= {"nano_vllm", "vllm", "sanitizer"}
