"""The servers of measured runs: versions in records and logs, and settings of public measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.measured.public_servers import SERVERS
from harness.measured.recorded_server import with_server
from tests.harness.builders import composed

LOG = "(APIServer pid=1) INFO 11-25 10:00:00 [api_server.py:1839] vLLM API server version {}\n"
ROWS = ("validation.measured=inferencex:rows.csv", "task=validate")


@pytest.mark.parametrize("in_log", [False, True])
def test_the_version_of_a_record_or_of_its_log_is_taken(tmp_path: Path, in_log: bool) -> None:
    record = {} if in_log else {"vllm_version": "0.11.0"}
    (tmp_path / "bench.json").write_text(json.dumps(record))
    (tmp_path / "meta.json").write_text(json.dumps(record))
    if in_log:
        for name in ("bench.log", "server.log"):
            (tmp_path / name).write_text(LOG.format("0.11.0"))
    for measured in (f"vllm_bench:{tmp_path / 'bench.json'}", f"llmservingsim:{tmp_path}"):
        asked = [f"validation.measured={measured}", "model=qwen3-8b"]
        found, note = with_server(asked)
        assert found == [*asked, "engine.vllm_version=0.11.0"] and note is not None
        given = [*asked, "engine.vllm_version=0.19.0"]
        assert with_server(given) == (given, None)
    (tmp_path / "meta.json").write_text('{"vllm_version": "0.20"}')
    if not in_log:
        assert (
            composed(*with_server([f"validation.measured=llmservingsim:{tmp_path}"])[0]).engine.vllm_version == "0.20"
        )


def test_a_version_that_contradicts_itself_or_is_not_known_is_not_taken(tmp_path: Path) -> None:
    asked = [f"validation.measured=llmservingsim:{tmp_path}"]
    for version, logged in (("0.11.0", "0.12.0"), ("0.2.1", "0.2.1")):
        (tmp_path / "meta.json").write_text(json.dumps({"vllm_version": version}))
        (tmp_path / "server.log").write_text(LOG.format(logged))
        assert with_server(asked) == (asked, None)


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.key.replace(" ", "_"))
@pytest.mark.sample(10)
def test_a_user_gets_the_settings_of_the_page(server: object) -> None:
    assert isinstance(server, type(SERVERS[0]))
    asked = [f"validation.select.model_path={server.model_path}", f"device={server.device}"]
    if server.row_version:
        asked.append(f"validation.select.backend_version={server.row_version}")
    if server.row_day:
        asked.append(f"validation.select.day={server.row_day}")
    found, note = with_server([*ROWS, *asked, f"validation.select.precision={server.precision}"])
    settings = [f"{key}={value}" for key, value in server.settings().items()]
    assert set(settings) <= set(found) and note is not None and server.vllm_version in note
    composed(*found)


def test_what_is_given_beside_rows_counts() -> None:
    asked = [*ROWS, "validation.select.model_path=Qwen/Qwen3-235B-A22B-FP8", "engine.vllm_version=0.19.0"]
    found, _ = with_server(asked)
    assert "device=h200" in found and "engine.vllm_version=0.12.0" not in found
    several = [*ROWS, "validation.select.model_path=meta-llama/Llama-3.1-70B", "device=b200"]
    assert with_server(several) == (several, None), "FP8 or FP4"
