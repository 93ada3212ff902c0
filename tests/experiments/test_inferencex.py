"""Rows of public measurements that contradict each other, and the fit of the host's times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.inferencex import sglang_servers, trtllm_servers
from experiments.inferencex.fit import with_synchronous
from experiments.inferencex.load import Load
from experiments.inferencex.other_engines import of_sglang, of_trtllm, other_server, sglang_kernels, trtllm_kernels
from experiments.inferencex.points import points, selections
from experiments.inferencex.row_servers import generated
from experiments.inferencex.simulation import CaseRows
from harness.errors import TwinServeError
from harness.measured.public_servers import SERVERS, PublicServer
from harness.validation.contradictions import contradicted
from simulator.importers.aiconfigurator.rules import HOST
from tests.harness.measured.builders import ROW


def table(**columns: list[float]) -> pd.DataFrame:
    rows = pd.DataFrame(columns)
    fixed = {
        "isl": 1024, "osl": 1024, "tensor_parallel_size": 2, "implied_share_of_flops": 0.5,
        "implied_share_of_bandwidth": 0.5, "ttft_ms": 100.0, "expert_parallel": False,
    }  # fmt: skip
    return rows.assign(**{name: value for name, value in fixed.items() if name not in columns})


def test_fewer_clients_cannot_wait_longer_for_a_token() -> None:
    rows = table(concurrency=[16, 32, 64], tpot_ms=[5.8, 15.9, 9.7])
    assert [bool(reason) for reason in contradicted(rows)] == [False, True, False]


def test_a_server_with_fewer_seats_than_clients_is_named() -> None:
    rows = table(concurrency=[32, 64, 512], tpot_ms=[10.9, 14.8, 5.6], ttft_ms=[119.0, 169.0, 23793.0])
    assert ["at a time" in reason for reason in contradicted(rows)] == [False, False, True]


def test_rows_beyond_the_hardware_are_named() -> None:
    rows = table(concurrency=[4, 4], tpot_ms=[5.0, 5.0], isl=[1, 2], implied_share_of_bandwidth=[0.5, 1.1])
    assert [bool(reason) for reason in contradicted(rows)] == [False, True]


def test_the_hosts_times_without_asynchronous_scheduling_are_found() -> None:
    clients = np.array([8, 16, 64])
    simulated = np.array([20.0, 21.0, 24.0])
    measured = simulated + 1e-3 * (400 + 30 * clients)
    rows = pd.DataFrame({"concurrency": clients, "simulated_tpot_ms": simulated, "tpot_ms": measured})
    host = with_synchronous(HOST._replace(synchronous_step_us=0.0, synchronous_sequence_us=0.0), rows)
    assert host.synchronous_step_us == pytest.approx(400) and host.synchronous_sequence_us == pytest.approx(30)


def test_servers_of_sglang_have_its_scheduler_its_kernels_and_mixed_chunks_by_who_started_them() -> None:
    made = {
        path: of_sglang(server, sglang_kernels(Path("/systems/silicon_sample.csv"), "h200_sxm")[0]).settings()
        for path in ("Qwen/Qwen3-32B", "Qwen/Qwen3-235B-A22B-FP8", "deepseek-ai/DeepSeek-R1")
        if (server := other_server(path, "nan" if path == "Qwen/Qwen3-32B" else "fp8", "h200_sxm")) is not None
    }
    assert [each.get("scheduler.options.enable_mixed_chunk") for each in made.values()] == [None, "true", None]
    for each in made.values():
        assert (each["scheduler"], each["frontend"]) == ("sglang", "http")
        assert each["cost.profile"] == "aiconfigurator:/systems:h200_sxm/sglang/0.5.14"


def trtllm(path: str, precision: str, system: str, load: Load) -> PublicServer:
    server = other_server(path, precision, system)
    assert server is not None
    return trtllm_servers.of_load(of_trtllm(server, "p"), load)


def test_servers_of_tensorrt_llm_have_what_the_script_of_their_row_asked_for() -> None:
    held_back = trtllm("meta-llama/Llama-3.1-70B", "fp8", "h200_sxm", Load("2025-10-29", 2, 1024, 1024, 4)).settings()
    alone = trtllm("meta-llama/Llama-3.1-70B", "fp8", "h200_sxm", Load("2025-10-29", 8, 1024, 1024, 4)).settings()
    assert {*held_back} - {*alone} == {
        "+scheduler.options.batch_wait_timeout_iters", "+scheduler.options.batch_wait_max_tokens_ratio",
    }  # fmt: skip
    gpt, long = Load("2025-11-02", 4, 1024, 1024, 8), Load("2026-01-29", 8, 1024, 8192, 64)
    assert trtllm("openai/gpt-oss-120b", "fp4", "h200_sxm", gpt).settings()["expert_parallel"] == "true"
    assert "expert_parallel" not in trtllm("openai/gpt-oss-120b", "fp4", "b200_sxm", gpt).settings()
    assert trtllm("deepseek-ai/DeepSeek-R1", "fp8", "b200_sxm", long).more["cost.profile"] == "p+trtllm_gen"
    asked = [
        trtllm("deepseek-ai/DeepSeek-R1", "fp4", "b200_sxm", Load("2025-11-02", *load)).more.get("expert_parallel")
        for load in ((8, 1024, 8192, 16), (8, 1024, 8192, 32), (8, 1024, 1024, 16))
    ]
    assert asked == [None, "true", "true"]


@pytest.mark.parametrize(
    ("day", "clients", "reason"), [("2026-02-05", 4, "speculation"), ("2025-11-02", 65, "data-parallel ranks")]
)
def test_what_a_script_asked_for_and_is_not_simulated_is_named(day: str, clients: int, reason: str) -> None:
    with pytest.raises(TwinServeError, match=reason):
        trtllm("deepseek-ai/DeepSeek-R1", "fp8", "b200_sxm", Load(day, 8, 1024, 8192, clients))


def test_servers_of_sglang_receive_requests_as_their_scripts_say() -> None:
    server = other_server("Qwen/Qwen3.5-397B-A17B", "fp8", "b300_sxm")
    assert server is not None
    loads = [("2026-04-17", 4, 64), ("2026-04-03", 8, 8), ("2026-04-03", 8, 256)]
    made = [sglang_servers.of_load(server, Load(day, gpus, 1024, 1024, n)) for day, gpus, n in loads]
    assert [each.more["+scheduler.options.scheduler_recv_interval"] for each in made] == [10, 10, 30]
    assert [each.max_num_seqs for each in made] == [64, 8, 128]
    with pytest.raises(TwinServeError, match="speculation"):
        sglang_servers.of_load(server, Load("2026-04-03", 4, 1024, 1024, 8))


def test_tables_of_sglang_are_those_of_its_version_first(tmp_path: Path) -> None:
    versions = {"package": ["0.5.14", "0.5.6.post2"], "old": ["0.5.6.post2", "0.5.10", "0.5.9", "0.5.12"]}
    for root, names in versions.items():
        for name in names:
            folder = tmp_path / root / "data" / "h200_sxm" / "gemm" / "sglang" / name
            folder.mkdir(parents=True)
            if name != "0.5.12":  # which only says whose tables it takes
                (folder / "gemm_perf.parquet").touch()
    silicon, history = tmp_path / "package" / "silicon_sample.csv", tmp_path / "old"
    expected = {
        "0.5.1.post1": ["0.5.6.post2", "0.5.9", "0.5.10", "0.5.14"],
        "0.5.6.post2": ["0.5.6.post2", "0.5.9", "0.5.10", "0.5.14"],
        "0.5.9": ["0.5.9", "0.5.10", "0.5.14", "0.5.6.post2"],
        "0.5.23": ["0.5.14", "0.5.10", "0.5.9", "0.5.6.post2"],
        "nightly-dev": ["0.5.14"],
    }
    for version, names in expected.items():
        found = sglang_kernels(silicon, "h200_sxm", version, history)
        assert [each.rpartition("/")[2] for each in found] == names
        assert [tmp_path.name in each and "/package:" in each for each in found] == [name == "0.5.14" for name in names]
    assert [each.rpartition("/")[2] for each in sglang_kernels(silicon, "h200_sxm", "0.5.6.post2")] == ["0.5.14"]


def test_tables_of_tensorrt_llm_are_the_newest_but_of_tritons_experts(tmp_path: Path) -> None:
    for root, names in {"package": ["1.3.0rc20"], "old": ["1.0.0rc3", "1.2.0rc5", "1.3.0rc20"]}.items():
        for name in names:
            folder = tmp_path / root / "data" / "h200_sxm" / "gemm" / "trtllm" / name
            folder.mkdir(parents=True)
            (folder / "gemm_perf.parquet").touch()
    silicon, history = tmp_path / "package" / "silicon_sample.csv", tmp_path / "old"
    llama = other_server("meta-llama/Llama-3.1-70B", "fp8", "h200_sxm")
    gpt_oss = other_server("openai/gpt-oss-120b", "fp4", "h200_sxm")
    assert llama is not None and gpt_oss is not None
    for version, first in {"1.1.0rc2.post2": "1.0.0rc3", "gpt-oss-dev": "1.0.0rc3", "1.2.0rc6": "1.2.0rc5"}.items():
        found = [trtllm_kernels(silicon, "h200_sxm", server, version, history)[0] for server in (llama, gpt_oss)]
        assert [each.rpartition("/")[2] for each in found] == ["1.3.0rc20+static_scales", f"{first}+triton"]


def test_nvidias_servers_have_a_cuda_graph_for_each_number_of_clients() -> None:
    found = {}
    for backend, make in {"trtllm": of_trtllm, "sglang": of_sglang}.items():
        server = other_server("Qwen/Qwen3-32B", "nan", "h100_sxm")
        assert server is not None
        made = found[backend] = generated(make(server, "p"), Load("", 1, 2048, 256, 24)).settings()
        assert made["engine.pads_decodes"] == "false"
    assert found["trtllm"]["validation.tokens_beyond_prompt"] == "1524"
    assert "validation.tokens_beyond_prompt" not in found["sglang"]


def test_versions_of_sglang_are_servers_of_their_own(tmp_path: Path) -> None:
    path, versions = tmp_path / "rows.csv", {"0.5.9": 2, "0.5.10.post1": 1}
    rows = [{**ROW, "backend": "sglang", "model_path": "x/y", "backend_version": each} for each in versions]
    pd.DataFrame([rows[0], *rows]).to_csv(path, index=False)
    found = {selected.version: points(path, selected).left_out for selected in selections(path)}
    assert found == {name: {"no server is known for these rows": count} for name, count in versions.items()}


def test_rows_are_simulated_with_the_settings_of_their_server_or_with_other_constants(tmp_path: Path) -> None:
    server = next(each for each in SERVERS if each.model_path == "Qwen/Qwen3-235B-A22B-FP8")
    row = {**ROW, "model_path": server.model_path, "system": "h200_sxm", "batch_size": 1}
    pd.DataFrame([row]).to_csv(tmp_path / "rows.csv", index=False)
    rows = CaseRows(server, tmp_path / "rows.csv")
    found, slower = rows.simulate(), rows.simulate(HOST._replace(synchronous_step_us=5000.0))
    lengthened = slower["simulated_tpot_ms"] - found["simulated_tpot_ms"]
    assert lengthened.to_list() == [pytest.approx(5, abs=0.01)]
