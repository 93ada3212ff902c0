"""Fleets of several pools: what each is, what the results say of them, and what is refused."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from harness import run
from harness.config import parse
from harness.config.pools import pools_of
from harness.engines.resolving.serve_line import serve_line
from harness.errors import ConfigError
from harness.results.summary import print_summary
from harness.studies.outcome import Run
from tests.harness.builders import composed, config

APART = ("fleet=disaggregated", "fleet.prefill.replicas=2", "fleet.decode.replicas=3")


def served(*overrides: str) -> Run:
    return run(*APART, "trace.num_requests=150", "arrival.rate=20", *overrides)


def test_prompts_and_decodes_are_on_servers_of_their_own() -> None:
    result = served()
    requests, summary = result.requests, result.summary
    assert set(requests["prefill_server"]) == {0, 1} and set(requests["server"]) == {2, 3, 4}
    assert (requests["status"] == "finished").all()
    assert (requests["prefill_end_time"] < requests["first_token_time"]).all()
    assert summary["handed_over"] == 150 and summary["num_gpus"] == summary["num_servers"] == 5
    assert [server["role"] for server in summary["servers"]] == ["prefill"] * 2 + ["decode"] * 3
    assert sum(server["num_requests"] for server in summary["servers"]) == 2 * 150
    between = requests["first_token_time"] - requests["prefill_end_time"]
    assert summary["mean_handover_ms"] == pytest.approx(1e3 * between.mean())
    assert 1e3 * requests["parked_time"].mean() == pytest.approx(summary["mean_kv_transfer_ms"])
    blocks = -(-(requests["num_prompt_tokens"] - 1) // 16)  # the last token is computed by whoever decodes
    assert summary["kv_transferred_bytes"] == blocks.sum() * 16 * 36 * 2 * 8 * 128 * 2  # of Qwen3-8B in 16 bits
    prompts, decodes = requests["prefill_server"].value_counts(), requests["server"].value_counts()
    ahead = max(prompts.max() / (150 / 2), decodes.max() / (150 / 3))
    assert summary["request_imbalance"] == pytest.approx(ahead)
    page = result.report()
    assert page.count("1 × NVIDIA H100 80GB HBM3") == 5 and page.count("vllm serve Qwen/Qwen3-8B") == 2


@pytest.mark.long
def test_a_slower_network_and_a_longer_way_make_the_first_token_later() -> None:
    near, far = served("fleet.request_ms=0"), served("fleet.request_ms=0", "network.bandwidth=1e9")
    assert far.summary["mean_kv_transfer_ms"] > 5 * near.summary["mean_kv_transfer_ms"]
    longer = served("fleet.request_ms=50")
    assert longer.summary["mean_handover_ms"] > near.summary["mean_handover_ms"] + 45


def test_a_pool_is_as_the_run_but_for_its_own_keys() -> None:
    own = (
        "fleet.decode.device=h200", "fleet.decode.tensor_parallel_size=2", "fleet.prefill.max_num_batched_tokens=4096",
        "fleet.decode.scheduler={async_scheduling:true}", "fleet.prefill.tiers={host:{gib:8},offload:true}",
    )  # fmt: skip
    whole = config(*APART, "max_num_seqs=64", *own)
    (first, prefill), (second, decode) = pools_of(whole)
    assert (first, second) == ("prefill", "decode")
    assert (prefill.device.name, decode.device.name) == ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
    assert (prefill.tensor_parallel_size, decode.tensor_parallel_size) == (1, 2)
    assert (prefill.max_num_batched_tokens, decode.max_num_batched_tokens) == (4096, 8192)
    assert prefill.max_num_seqs == decode.max_num_seqs == 64
    assert (prefill.tiers.host.gib, prefill.tiers.host.gb_per_s, decode.tiers.host.gib) == (8, 25, 0)
    assert (prefill.scheduler.async_scheduling, decode.scheduler.async_scheduling) == (False, True)
    assert whole.num_gpus == 2 * 1 + 3 * 2 and whole.num_servers == 5


def test_a_pool_can_be_ranks_that_share_out_experts() -> None:
    ranks = ("fleet.prefill.data_parallel_size=2", "fleet.prefill.expert_parallel=true", "fleet.decode.replicas=1",
             "fleet.decode.tensor_parallel_size=4", "model=qwen3-30b-a3b")  # fmt: skip
    whole = config(*APART, *ranks)
    (_, prefill), (_, decode) = pools_of(whole)
    assert (prefill.num_expert_ranks, decode.num_expert_ranks) == (2, 1)
    assert (whole.num_servers, whole.num_gpus) == (2 * 2 + 1, 2 * 2 + 4)
    with pytest.raises(ConfigError, match="fleet.prefill.data_parallel_size=2: ranks that share the experts' matrices"):
        config(*APART, ranks[0], "model=qwen3-30b-a3b")


def test_a_fleet_whose_requests_are_all_rejected_has_no_prompt_on_any_server() -> None:
    lengths = ("trace=synthetic", "trace/lengths@trace.prompt=constant", "trace.prompt.value=500")
    servers = served(*lengths, "kv_cache_memory_bytes=6000000", "trace.num_requests=5").summary["servers"]
    assert [server["num_requests"] for server in servers[:2]] == [0, 0]


def test_a_fleet_of_different_gpus_has_the_pools_of_each() -> None:
    pools = "fleet.pools=[{replicas:1,device:l40s},{replicas:2,device:h200}]"
    result = run("fleet=custom", pools, "router=least_requests", "trace.num_requests=60", "arrival.rate=20")
    blocks = [pool["num_blocks"] for pool in result.summary["pools"]]
    assert blocks[1] > 3 * blocks[0]
    used = result.steps.groupby("server")["num_used_blocks"].max()
    assert result.summary["max_kv_cache_usage"] <= used.sum() / (blocks[0] + 2 * blocks[1])
    lines = result.summary["vllm_command"].splitlines()
    assert [re.split("[#;] ", line)[-1] for line in lines] == ["NVIDIA L40S", "NVIDIA H200"]
    assert "kv-transfer" not in lines[0] and "prefill_server" not in result.requests
    print_summary(result.summary, Console(file=(printed := io.StringIO()), width=200))
    told = re.findall(r"Servers +(\d with .*?):", printed.getvalue())
    assert told == ["1 with 1 NVIDIA L40S", "2 with 1 NVIDIA H200 each"]


def test_the_lines_of_vllm_hand_over() -> None:
    lines = served("fleet.decode.tensor_parallel_size=2", "trace.num_requests=5").summary["vllm_command"].splitlines()
    assert len(lines) == 2 and all("--kv-transfer-config" in line and "NixlConnector" in line for line in lines)
    assert "--tensor-parallel-size 2" in lines[1] and lines[1].endswith("for decode")
    by_layers = serve_line(config(*APART, "fleet.kv_transfer=by_layers")).splitlines()
    sides = ("kv_producer", "kv_consumer")
    assert all("P2pNcclConnector" in line and side in line for line, side in zip(by_layers, sides, strict=True))


@pytest.mark.parametrize(("rate", "verdict"), [(8, "stable"), (60, "overloaded")])
@pytest.mark.sample(1)
def test_the_busiest_pool_decides_the_verdict(rate: float, verdict: str) -> None:
    """One server for prompts of 4,000 tokens, of which it computes about 10 a second; four for a few decodes."""
    lengths = ("trace=synthetic", "trace/lengths@trace.prompt=constant", "trace.prompt.value=4000",
               "trace/lengths@trace.output=constant", "trace.output.value=8")  # fmt: skip
    fleet = ("fleet=disaggregated", "fleet.decode.replicas=4", f"arrival.rate={rate}", "trace.num_requests=600")
    assert run(*fleet, *lengths).summary["verdict"] == verdict


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["replicas=3"], "fleet.kind=disaggregated: replicas=3 is for fleet=replicas"),
        (["engine=cpu", "model=tiny"], "fleet.kind=disaggregated: engine=cpu is one server"),
        (["trace.n=2"], "trace.n=2: samples of a prompt are not handed over"),
        (["fleet.decode.pipeline_parallel_size=2", "scheduler.async_scheduling=false"], "cannot be a pipeline"),
        (["scheduler=static"], "needs scheduler.enable_chunked_prefill=true"),
        (["allocator=contiguous_max", "scheduler.enable_prefix_caching=false"], "needs allocator=paged"),
        (["fleet.decode.tiers={host:{gib:1},offload:true}"], "decode has no tiers behind it"),
        (["fleet.decode.device=h20x"], "fleet.decode.device=h20x: no option of device; did you mean"),
        (["fleet.decode.scheduler={foo:1}"], "fleet.decode.scheduler.foo: unknown key"),
        (
            ["fleet.prefill.max_num_batched_tokens=64"],
            "fleet.prefill.max_num_batched_tokens=64: must be >= max_num_seqs",
        ),
        (["fleet.decode_router.rule=nope"], "fleet.decode_router.rule='nope': choose one of"),
        (["task=validate"], "task=validate is about one server"),
    ],
)
def test_what_cannot_be_handed_over_is_refused_in_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        config(*APART, *overrides)
    assert "\n" not in str(error.value)


def test_roles_must_fit_together() -> None:
    with pytest.raises(ConfigError, match="all must be serve, or both prefill and decode be there"):
        config("fleet=custom", "fleet.pools=[{role:decode},{role:serve}]")


def test_the_page_shows_the_hand_over() -> None:
    text = served("trace.num_requests=30").report()
    assert "handed over" in text and "decode" in text


def test_a_pool_has_the_batch_limits_that_vllm_takes_on_its_own_device() -> None:
    pools = "fleet.pools=[{device:l40s},{device:b200},{},{device:l40s,max_num_batched_tokens:512}]"
    found = {}
    for given in ((), ("max_num_seqs=100",)):
        own = [each.config for each in pools_of(parse(composed("fleet=custom", pools, "device=h200", *given)))]
        found[given] = [(each.max_num_seqs, each.max_num_batched_tokens) for each in own]
    assert found[()] == [(256, 2048), (1024, 16384), (1024, 8192), (256, 512)]
    assert found["max_num_seqs=100",] == [(100, 2048), (100, 16384), (100, 8192), (100, 512)]
    prefill, decode = (each.config for each in pools_of(parse(composed(*APART, "fleet.prefill.device=l40s"))))
    assert (prefill.max_num_batched_tokens, decode.max_num_batched_tokens) == (2048, 8192)
