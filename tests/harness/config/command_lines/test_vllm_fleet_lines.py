"""Several command lines of vLLM are the pools of a fleet, and a fleet's lines are the same fleet on the way back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.config import RunConfig
from harness.config.command_lines.importing import expand
from harness.config.pools import pools_of
from harness.engines.resolving.serve_line import serve_line
from harness.errors import ConfigError
from tests.harness.builders import config
from tests.harness.config.builders import SERVE


def sides(role: str, connector: str = "NixlConnector") -> str:
    return f"--kv-transfer-config '{json.dumps({'kv_connector': connector, 'kv_role': role})}'"


def imported(*lines: str) -> RunConfig:
    return config(*expand([f"import_vllm={line}" for line in lines]).overrides)


def test_lines_with_roles_behind_a_router_are_a_fleet(tmp_path: Path) -> None:
    file = tmp_path / "fleet.sh"
    file.write_text(
        f"""#!/bin/bash
        # two for prompts, two for decodes
        vllm-router --policy=cache_aware --cache-threshold 0.4 --prefill http://a --decode http://b

        {SERVE} --enforce-eager --max-num-batched-tokens 16384 {sides("kv_producer")} &
        CUDA_VISIBLE_DEVICES=1 {SERVE} --max-num-batched-tokens 16384 --enforce-eager {sides("kv_producer")} &
        {SERVE} -tp 2 \\
            --max-model-len 9000 {sides("kv_consumer")}  # 3 such servers; NVIDIA H200
        """
    )
    found = imported(str(file))
    prompts, decodes = pools_of(found)
    assert (prompts.role, prompts.config.replicas) == ("prefill", 2)
    assert (decodes.role, decodes.config.replicas) == ("decode", 3)
    assert getattr(prompts.config.engine, "max_graph_tokens", None) == 0 and prompts.config.max_model_len is None
    assert getattr(decodes.config.engine, "max_graph_tokens", 0) is None and decodes.config.max_model_len == 9000
    assert (prompts.config.max_num_batched_tokens, decodes.config.tensor_parallel_size) == (16384, 2)
    assert prompts.config.device == found.device and decodes.config.device.name == "NVIDIA H200"
    assert found.router.rule == "prefix_affinity" and found.router.options["min_match"] == 0.4


def test_servers_that_differ_or_not() -> None:
    assert imported(SERVE, SERVE, f"{SERVE}  # 2 such servers").replicas == 1
    alike = pools_of(imported(SERVE, SERVE, f"{SERVE}  # 2 such servers"))
    assert [pool.config.replicas for pool in alike] == [4]
    mixed = pools_of(imported(f"{SERVE} -dp 2  # NVIDIA L40S", f"{SERVE} -q fp8 --no-async-scheduling"))
    assert [pool.config.replicas for pool in mixed] == [2, 1]
    assert [pool.config.weight_format for pool in mixed] == ["none", "fp8"]
    assert [pool.config.scheduler.async_scheduling for pool in mixed] == [True, False]
    alone = imported(f"{SERVE}  # 5 such servers behind a router: power_of_two; NVIDIA A100-SXM4-80GB")
    assert (alone.replicas, alone.router.rule, "A100" in alone.device.name) == (5, "power_of_two", True)
    beside = expand([f"import_vllm={SERVE} -tp 2", f"import_vllm={SERVE}", "tensor_parallel_size=4"]).overrides
    assert [pool.config.tensor_parallel_size for pool in pools_of(config(*beside))] == [4]


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ([SERVE, f"{SERVE} {sides('kv_producer')}"], "servers for prompts and servers for decodes"),
        ([f"{SERVE} {sides('kv_both')}", f"{SERVE} {sides('kv_consumer')}"], "# for prefill or # for decode"),
        ([SERVE, "vllm serve Qwen/Qwen3-32B"], "the lines differ in model"),
        ([SERVE, f"{SERVE} --block-size 32"], "the lines differ in block_size"),
        ([SERVE, "vllm-router --policy best"], "--policy best"),
        (["vllm-router"], "needs lines that start servers"),
        ([SERVE, "sleep 3"], "must be a command line that starts with vllm serve"),
        ([f"{SERVE} {sides('kv_producer', 'Lost')}", SERVE], "'Lost' is not simulated"),
        ([f"{SERVE} {sides('kv_both', 'LMCacheConnectorV1')}"], "not simulated, and .* tiers=shared has a store"),
        ([f"{SERVE} {sides('kv_both', 'MultiConnector')}"], "'MultiConnector' is not simulated"),
        ([f"{SERVE} {sides('kv_both', 'OffloadingConnector')}"], "needs cpu_bytes_to_use"),
    ],
)
def test_what_is_no_fleet_is_refused(lines: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        imported(*lines)
    assert str(caught.value).startswith("import_vllm: ")


def test_commas_divide_a_comment_too_and_what_is_not_read_of_it_is_named() -> None:
    own, note = f"{SERVE}  # L40S, 3 such servers; for whom it may concern", "'for whom it may concern' is not read"
    found = expand([f"import_vllm={own}\n{SERVE}  # vLLM 0.24.0; not in vLLM: a=1, b=2"])
    pools = next(item for item in found.overrides if item.startswith("fleet.pools="))
    assert "{replicas: 3,role: serve,device: l40s}" in pools
    assert [text for text in found.notes if "comment" in text] == [text for text in found.notes if note in text] != []


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("vllm-router", "prefix_affinity"),
        ("vllm-router --policy consistent_hash", "session_affinity"),
        ("python -m dynamo.frontend --http-port 8000", "round_robin"),
        ("python3 -m dynamo.frontend --router-mode kv", "weighted_score"),
    ],
)
def test_the_rule_of_a_router(line: str, rule: str) -> None:
    assert f"router={rule}" in expand([f"import_vllm={line}\n{SERVE}\n{SERVE} -tp 2"]).overrides


@pytest.mark.parametrize(
    ("pools", "more"),
    [
        ("{role:serve,replicas:2,device:h200,quantization:fp8},{role:serve,max_num_seqs:77}", "router=power_of_two"),
        (
            "{role:prefill,engine:{max_graph_tokens:0}},{role:decode,replicas:3,tensor_parallel_size:2}",
            "fleet.kv_transfer=by_layers",
        ),
        ("{role:prefill,tiers:{host:{gib:100},offload:true,rule:vllm}},{role:decode}", "block_size=32"),
        (
            "{role:serve,tiers:{host:{gib:0.5},offload:true,rule:vllm}},{role:serve,max_num_seqs:77}",
            "router=power_of_two",
        ),
    ],
)
def test_a_fleet_is_the_same_on_the_way_back(pools: str, more: str) -> None:
    asked = config("fleet=custom", f"fleet.pools=[{pools}]", "model=qwen3-8b", "scheduler=vllm", more)
    line = serve_line(asked)
    found = imported(line)
    assert serve_line(found) == line
    for own, back in zip(pools_of(asked), pools_of(found), strict=True):
        assert back.role == own.role and back.config.num_servers == own.config.num_servers
        for key in ("device", "weight_format", "max_num_seqs", "tensor_parallel_size", "engine", "tiers"):
            assert getattr(back.config, key) == getattr(own.config, key), key
    assert found.kv_connector == asked.kv_connector
