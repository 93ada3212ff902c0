"""Made-up records of measured runs, simulated runs that pass for measured ones, and the tasks on measured runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.config import RunConfig
from harness.engines.resolving import calibration_files
from harness.errors import TwinServeError
from harness.measured import load_measured
from harness.measured.measured_run import requests_table
from harness.results.stored.files import CALIBRATION, VALIDATION
from simulator.calibration import Calibration
from tests.harness.builders import GROUND_TRUTH, config, execute_in

needs_ground_truth = pytest.mark.skipif(
    not GROUND_TRUTH.exists(), reason=f"needs the public measurements at {GROUND_TRUTH}"
)
# Preempts requests.
STARVED = ["trace.num_requests=40", "num_blocks=190", "arrival.rate=30", "max_num_seqs=32", "max_num_batched_tokens=64"]

CLOCKS = 1000.0  # offset of the engine's clock to the client's in `write_llmservingsim`
# sent by the client; on the engine's clock minus CLOCKS: queued, scheduled, first token, last token; prompt, output
REQUESTS: list[tuple[float, float, float, float, float, int, int]] = [
    (5.0, 5.0, 5.0, 5.2, 5.6, 100, 5),
    (5.1, 5.2, 5.4, 5.5, 5.5, 40, 1),
    (5.3, 5.4, 5.5, 5.8, 6.8, 60, 11),
]


def write_llmservingsim(folder: Path, kv_cache_pct: float = 0.0) -> tuple[Path, Path]:
    """A folder of LLMServingSim's bench with `REQUESTS` in reverse order of arrival, and its workload."""
    folder.mkdir(parents=True, exist_ok=True)
    lines, workload = [], []
    for i, (sent, queued, scheduled, first, last, prompt, output) in enumerate(REQUESTS):
        engine = [time + CLOCKS for time in (queued, scheduled, first, last)]
        names = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
        record = {"request_id": f"bench-{i}", "input_toks": prompt, "output_toks": output, "arrival_time": sent}
        lines.append({**record, **dict(zip(names, engine, strict=True))})
        ids = list(range(prompt))
        workload.append({"input_toks": prompt, "output_toks": output, "arrival_time_ns": i, "input_tok_ids": ids})
    write_lines(folder / "requests.jsonl", lines)
    write_lines(folder / "workload.jsonl", workload)
    pd.DataFrame({"t": [1.0, 2.0], "running": [2, 1], "waiting": [1, 0], "kv_cache_pct": [kv_cache_pct, 0.0]}).to_csv(
        folder / "timeseries.csv", index=False
    )
    meta = {"vllm_version": "0.19.0", "model": "m", "started_at": "1970-01-01T00:00:04.500000Z"}
    (folder / "meta.json").write_text(json.dumps({**meta, "engine_kwargs": {"max_num_seqs": 128}}))
    return folder, folder / "workload.jsonl"


def write_distserve(path: Path, requests: pd.DataFrame) -> Path:
    """A measured-*.exp of a requests table, in order of completion."""
    names = {
        "num_prompt_tokens": "prompt_len", "num_output_tokens": "output_len", "arrival_time": "issue_time",
        "first_token_time": "first_token_time", "finish_time": "complete_time",
    }  # fmt: skip
    rows = requests.sort_values("finish_time").rename(columns=names)[list(names.values())].to_dict("records")
    path.write_text(f"{rows!r}\n{{\n\tnum_requests: {len(rows)}\n}}\n")
    return path


def write_lines(path: Path, records: Sequence[Any]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def pretend_measured(folder: Path, *overrides: str) -> RunConfig:
    """Simulate into `folder` as the real engine decides, and mark the result as measured; returns the configuration."""
    settings = config("progress=false", *overrides)
    execute_in(folder, settings)
    change_summary(folder, simulated=False)
    return settings


def change_summary(folder: Path, **changes: Any) -> None:
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def made_up() -> pd.DataFrame:
    """Four requests with TTFT 1, 2, 3, 4 s; TPOT 0.1, none, 0.3, 0.2 s; E2EL 1.2, 2, 3.9, 4.4 s."""
    arrival = np.array([0.0, 1.0, 2.0, 3.0])
    first = arrival + [1, 2, 3, 4]
    return requests_table(
        {
            "arrival_time": arrival,
            "first_token_time": first,
            "finish_time": first + [0.2, 0.0, 0.9, 0.4],
            "num_prompt_tokens": [10, 20, 30, 40],
            "num_output_tokens": [3, 1, 4, 3],
            "num_cached_tokens": [0, 5, 0, 20],
            "num_preemptions": [0, 2, 0, 1],
        }
    )


def compare(measured: str, out: Path, *overrides: str) -> dict[str, Any]:
    """Run task=validate; returns the content of validation.json."""
    execute_in(out, config("progress=false", "task=validate", f"validation.measured={measured}", *overrides))
    document: dict[str, Any] = json.loads((out / VALIDATION).read_text())
    return document


def calibrate(out: Path, measured: str, *overrides: str) -> Calibration:
    """Run task=calibrate; returns the calibration file."""
    execute_in(out, config("progress=false", "task=calibrate", f"validation.measured={measured}", *overrides))
    return calibration_files.read(out / CALIBRATION)


def fitted_on(path: Path, **on: Any) -> Path:
    """Write a calibration file for cost=roofline whose `fitted_on` has the entries `on`."""
    known = {"measured": "x", "data_sha256": "0", "part": "all", "num_requests": 2}
    calibration_files.write(path, {"constants": {"flops_efficiency": 0.5}, "cost": "roofline", "fitted_on": known | on})
    return path


def refusal(name: str, workload: Path | None = None) -> str:
    """The one line with which a measured run is refused."""
    with pytest.raises(TwinServeError) as caught:
        load_measured(name, None if workload is None else str(workload))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edit_lines(path: Path, row: int, **changes: Any) -> None:
    """Change fields of one record of a JSON-lines file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[row] = {key: value for key, value in (lines[row] | changes).items() if value != "remove"}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


BENCH: dict[str, Any] = {
    "backend": "vllm", "model_id": "m", "num_prompts": 2, "max_concurrency": None, "input_lens": [30, 20],
    "output_lens": [3, 1], "ttfts": [0.5, 0.25], "itls": [[0.1, 0.3], []], "start_times": [11.0, 10.0],
    "errors": ["", ""],
}  # fmt: skip


def bench(path: Path, **changes: Any) -> str:
    """Write a record of `vllm bench serve` with these changes, and return the name of the measured run."""
    path.write_text(json.dumps({key: value for key, value in (BENCH | changes).items() if value != "remove"}))
    return f"vllm_bench:{path}"


FILES = Path(__file__).parent / "files"
TABLE = "sent_at,ttft_ms,e2el,prompt,num_output_tokens\n11,500,0.9,30,3\n10,250,0.25,20,1\n"
NAMES = {"sent_at": "arrival_time", "prompt": "num_prompt_tokens"}  # ours, of columns of TABLE


SECRET = "correct-horse-battery-staple"
REFERENCE = "${oc.env:SECRET}"


def refer_to_secret(folder: Path) -> None:
    """Replaces the names in a folder's config.yaml."""
    path = folder / "config.yaml"
    lines = path.read_text().splitlines()
    names = [row for row, line in enumerate(lines) if line.startswith("  name: ")]
    assert len(names) == 3  # of the model, the device and the network
    for row in names:
        lines[row] = f"  name: {REFERENCE}"
    path.write_text("\n".join(lines) + "\n")


def assert_no_secret(folder: Path, output: str) -> None:
    assert SECRET not in output
    for path in folder.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path


ROW: dict[str, Any] = {
    "id": "a", "backend": "vllm", "backend_version": "0.19.0", "model_path": "m", "system": "h100_sxm",
    "precision": "fp8", "mode": "agg", "isl": 256, "osl": 32, "batch_size": 4, "tp_size": 2, "pp_size": 1,
    "attention_dp_size": 1, "moe_tp_size": 1, "moe_ep_size": 1, "silicon_ttft_ms": 60.0, "silicon_tpot_ms": 18.0,
}  # fmt: skip
