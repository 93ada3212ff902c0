"""Fleets and pipelines of a configuration: what they report, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.config.schema.changes import AutoscalerConfig
from harness.errors import ConfigError
from harness.results import metrics
from harness.results.measures.engine_metrics import engine_metrics
from harness.results.measures.servers import levels, step_integral
from harness.results.tables import RunResult
from harness.studies.outcome import Run
from harness.studies.run import serve_trace
from tests.harness.builders import config
from tests.selection import few

ARRIVALS = ("model=qwen3-0.6b", "trace.num_requests=100", "progress=false")


def served(*overrides: str) -> Run:
    rate = [] if any(each.startswith("arrival") for each in overrides) else ["arrival.rate=60"]
    return serve_trace(config(*ARRIVALS, *rate, *overrides))


@pytest.mark.parametrize("router", few(["round_robin", "prefix_affinity", "least_requests", "least_tokens"], 2))
def test_the_metrics_of_a_fleet_are_those_of_its_servers_together(router: str) -> None:
    run = served("replicas=3", f"router={router}")
    summary, requests, steps = run.summary, run.requests, run.steps
    servers: list[dict[str, Any]] = summary["servers"]
    assert sum(server["num_requests"] for server in servers) == 100 == summary["completed"]
    assert [server["num_requests"] for server in servers] == requests["server"].value_counts().sort_index().tolist()
    assert sum(server["num_steps"] for server in servers) == summary["num_steps"] == len(steps)
    for name in ("output_throughput", "mean_running", "mean_waiting"):
        assert sum(server[name] for server in servers) == pytest.approx(summary[name])
    for name in ("mean_kv_cache_usage",):
        assert np.mean([server[name] for server in servers]) == pytest.approx(summary[name])
    assert max(s["max_kv_cache_usage"] for s in servers) / 3 <= summary["max_kv_cache_usage"]
    assert summary["num_gpus"] == 3 and summary["output_throughput_per_gpu"] == summary["output_throughput"] / 3
    assert (np.diff(steps["start_time"]) >= 0).all() and steps["step"].tolist() == list(range(len(steps)))


def test_servers_are_told_of_the_requests_that_count() -> None:
    summary = served("replicas=2", "metrics.warmup=1").summary
    assert summary["num_excluded"] > 0
    assert sum(server["num_requests"] for server in summary["servers"]) == summary["num_prompts"]
    assert sum(server["completed"] for server in summary["servers"]) == summary["completed"]


def test_servers_with_nothing_to_do_are_summed_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    summed: list[int] = []

    def counted(result: RunResult, *span: float) -> dict[str, float]:
        summed.append(len(result.steps))
        return engine_metrics(result, *span)

    monkeypatch.setattr(metrics, "engine_metrics", counted)
    servers = served("replicas=300", "trace.num_requests=5").summary["servers"]
    assert [server["server"] for server in servers] == list(range(300))
    assert len(summed) <= 1 + 5 + 1, "all, those with requests, and one of the others"
    assert sum(server["completed"] for server in servers) == 5 and servers[-1]["mean_running"] == 0
    assert {server["mean_waiting"] for server in servers if not server["num_requests"]} == {0.0}


def test_a_pipeline_says_where_its_steps_are_beyond_the_profile() -> None:
    lengths = [f"trace/lengths@trace.{part}=constant" for part in ("prompt", "output")]
    lengths += ["trace=synthetic", "trace.prompt.value=125000", "trace.output.value=200", "trace.num_requests=2"]
    limits = ["max_num_seqs=2", "max_num_batched_tokens=131072", "num_blocks=20000"]
    model = ["model=llama-3.1-8b", "cost=profiled", "pipeline_parallel_size=2"]
    run = served(*model, *lengths, *limits)
    assert any("beyond the profile's ranges" in note for note in run.summary["notes"])


RANKS = ("model=qwen3-30b-a3b", "data_parallel_size=2", "expert_parallel=true")


def test_ranks_with_equal_work_step_as_one_and_hold_half_of_the_experts() -> None:
    lengths = [f"trace/lengths@trace.{part}=constant" for part in ("prompt", "output")]
    alike = ["trace=synthetic", *lengths, "trace.num_requests=12", "arrival=all_at_once", "cost=roofline"]
    run = served(*RANKS, *alike, "router=round_robin")
    halves = [table.drop(columns=["step", "server"]).reset_index(drop=True) for _, table in run.steps.groupby("server")]
    assert halves[0].equals(halves[1]) and len(halves[0]) > 100
    assert run.summary["num_gpus"] == run.summary["num_servers"] == 2
    alone = served(*RANKS[:1], *alike, "replicas=2", "router=round_robin")
    assert run.summary["num_blocks"] > 2 * alone.summary["num_blocks"]
    assert run.summary["mean_tpot_ms"] < alone.summary["mean_tpot_ms"]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ("model=qwen3-8b", "data_parallel_size=2: .* has no experts"),
        ("expert_parallel=false", "use expert_parallel=true"),
        ("data_parallel_size=3", "expert_parallel=true: 3 GPUs must share out the 128 experts"),
        ("data_parallel_size=3 model=deepseek-v3", "expert_parallel=true: 3 GPUs must share out the 256 experts"),
        ("data_parallel_size=1", "expert_parallel=true: its GPUs share out whole experts, and there is one GPU"),
        ("engine.max_lookahead_steps=2", "each step is planned on its own"),
        ("cost=linear", "cost=linear does not tell"),
    ],
)
def test_servers_that_cannot_be_ranks_are_refused(changed: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        config(*RANKS, *changed.split())


def test_servers_that_come_and_go_are_counted_paid_for_and_shown() -> None:
    scaled = ["autoscaler.metric=requests", "autoscaler.target=4", "autoscaler.most=3", "autoscaler.interval_s=0.5"]
    scaled += ["autoscaler.start_up_s=0.5", "failures=[{server:0,time_s:1,down_s:1}]"]
    run = served("router=least_requests", "trace.num_requests=200", *scaled)
    summary = run.summary
    assert summary["completed"] == 200 and summary["num_retried"] > 0 and summary["num_servers"] == 3
    times, taking, paid = np.array(summary["server_counts"]).T
    assert times[0] == 0 and taking[0] == 1 and paid.max() == summary["max_paid_servers"] == 3
    start, end = run.requests["arrival_time"].min(), run.requests["finish_time"].max()
    hours = sum(
        count * max(0.0, min(until, end) - max(since, start))
        for since, until, count in zip(times, [*times[1:], np.inf], paid, strict=True)
    )
    assert summary["gpu_hours"] == pytest.approx(hours / 3600)
    assert summary["cost"] == pytest.approx(summary["gpu_hours"] * 3.99)
    assert summary["request_imbalance"] is None
    assert "Servers paid for" in (page := run.report()) and f"Cost so far (${summary['cost']:,.2f} in all)" in page
    lost = served("replicas=2", "failures=[{server:1,time_s:1}]", "retry_failed=false").summary
    assert lost["aborted"] > 0 and lost["aborted"] + lost["completed"] == 100


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (["failures=[{server:2,time_s:1}]"], "server 2 of 2"),
        (["autoscaler.metric=slo"], "needs a limit to hold"),
        (["autoscaler.metric=kv_use", "autoscaler.target=1"], "must be < 1 for kv_use"),
        (
            ["autoscaler.metric=slo", "metrics.slo.ttft_ms=500", "metrics.slo.percentile=100"],
            "autoscaler.target=1, from metrics.slo.percentile=100: must be < 1 for slo",
        ),
        (["autoscaler.metric=queue", "autoscaler.most=1"], "replicas=2: must be from autoscaler.fewest=1"),
        (["failures=[{server:0,time_s:1}]", "tiers=host"], "need engine=sim fleet=replicas tiers=none"),
    ],
)
def test_servers_that_cannot_come_and_go_are_refused(changed: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        config("replicas=2", *changed)


def test_an_autoscaler_aims_at_the_percentile_of_the_slo() -> None:
    assert AutoscalerConfig(metric="slo").aim(90) == 0.9
    assert AutoscalerConfig(metric="slo", target=0.95).aim(90) == 0.95
    assert AutoscalerConfig(metric="queue").aim(90) == 4


@pytest.mark.parametrize("rate", [20, 200])
@pytest.mark.long
def test_the_verdict_is_that_of_one_server_with_its_share_of_the_rate(rate: int) -> None:
    one = served(f"arrival.rate={rate}", "max_num_seqs=16", "trace.num_requests=500").summary
    two = served(f"arrival.rate={2 * rate}", "max_num_seqs=16", "trace.num_requests=1000", "replicas=2").summary
    assert one["verdict"] == two["verdict"]
    assert two["offered_load"] == pytest.approx(one["offered_load"], rel=0.06)


def test_a_fleet_of_one_is_the_run_without_a_fleet() -> None:
    runs = [served(), served("replicas=1", "router=prefix_affinity")]
    for name in ("requests", "steps"):
        one, other = (getattr(run, name) for run in runs)
        assert one.equals(other)
    assert "servers" not in runs[0].summary and (runs[0].requests["server"] == 0).all()


def test_stored_results_of_fleets_are_read_again(tmp_path: Path) -> None:
    from harness.results.stored.files import read_results

    run = served("replicas=2", "trace.num_requests=40", "perfetto=true")
    run.write(tmp_path)
    result, summary = read_results(tmp_path)
    assert result.num_servers == 2 and len(summary["servers"]) == 2
    assert result.steps["server"].unique().tolist() == [0, 1]


def test_conversations_find_their_prefix_on_the_server_that_has_it() -> None:
    trace = ("trace=sharegpt_multiturn", "arrival=sessions", "arrival.rate=8", "trace.num_requests=150", "replicas=4")
    rates = {router: served(*trace, f"router={router}").summary["prefix_cache_hit_rate"]
             for router in ("round_robin", "prefix_affinity")}  # fmt: skip
    assert rates["prefix_affinity"] > 1.4 * rates["round_robin"]


def test_two_stages_serve_a_backlog_faster_than_one_and_no_faster_than_twice() -> None:
    lengths = [f"trace/lengths@trace.{part}=constant" for part in ("prompt", "output")]
    lengths += ["trace=synthetic", "trace.prompt.value=100", "trace.output.value=60"]
    backlog = ("arrival=all_at_once", "trace.num_requests=320", "model=qwen3-8b", *lengths)
    one, two = (served(*backlog, f"pipeline_parallel_size={n}", f"max_num_seqs={32 * n}") for n in (1, 2))
    assert 1.3 < one.summary["duration"] / two.summary["duration"] < 2
    assert two.steps["lane"].unique().tolist() == [0, 1] and two.summary["num_gpus"] == 2
    # A lane's steps follow one another, and every gap between tokens is one of its steps or longer.
    for _, steps in two.steps.groupby("lane"):
        assert (np.diff(steps["start_time"]) >= steps["duration"].to_numpy()[:-1] - 1e-9).all()
    assert two.result.gaps.values.min() >= two.steps["duration"].min() - 1e-9
    assert two.result.gaps.mean() == pytest.approx(two.summary["mean_itl_ms"] / 1e3)


@pytest.mark.parametrize("overrides", [("replicas=3",), ("pipeline_parallel_size=2", "replicas=2")])
def test_levels_agree_with_a_walk_over_the_steps(overrides: tuple[str, ...]) -> None:
    steps = served(*overrides, "trace.num_requests=40").steps
    found = levels(steps, steps["num_running"].to_numpy())
    rng = np.random.default_rng(0)
    for time in rng.choice(steps["start_time"][steps["num_running"].diff() != 0], 20):
        begun = steps[steps["start_time"] <= time]
        last = begun.groupby("server").tail(1)
        ends = (begun["start_time"] + begun["duration"]).groupby(begun["server"]).max()
        expected = sum(row.num_running for row in last.itertuples() if ends[row.server] > time)
        at = np.searchsorted(found.begins, time, side="right") - 1
        assert (found.values[at] if time < found.ends[at] else 0) == expected
    whole = step_integral(steps, steps["num_decode_seqs"].to_numpy(), [-1.0, 1e9])
    assert whole.tolist() == [0.0, steps["num_decode_seqs"].sum()]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["replicas=2", "engine=gpu"], "^replicas=2: engine=gpu is one server"),
        (["pipeline_parallel_size=2", "engine=cpu"], "^pipeline_parallel_size=2: engine=cpu is one server"),
        (
            ["pipeline_parallel_size=2", "scheduler.async_scheduling=true"],
            "^pipeline_parallel_size=2: .*async_scheduling=false",
        ),
        (["pipeline_parallel_size=2", "tiers=host"], "^pipeline_parallel_size=2: .* use tiers=none"),
        (["pipeline_parallel_size=2", "cost=linear"], "^pipeline_parallel_size=2: cost=linear does not tell"),
        (["pipeline_parallel_size=99"], "^pipeline_parallel_size=99: must be <= 36"),
        (["replicas=0"], "^replicas=0: must be"),
        (["router.rule=nearest"], "rule='nearest': choose one of"),
        (["router=prefix_affinity", "router.options.min_match=2"], "options.min_match=2: must be >= 0 and <= 1"),
        (["router.options.slack=2"], "options.slack: rule=round_robin has no such setting"),
    ],
)
def test_what_a_fleet_cannot_be_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(*overrides)


def test_the_page_of_a_fleet_shows_its_servers_and_what_they_hold_together() -> None:
    run = served("replicas=3", "router=least_requests", "trace.num_requests=200")
    page = run.report()
    assert "Behind a router: least_requests." in page
    assert page.count("Running (peak") and f"Running (peak {run.summary['max_running']} of 768 seats)" in page
